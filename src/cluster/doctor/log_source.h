// How a log's bytes become text: its encoding, and lines that a terminal cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/socket.h"

namespace braid {

// UTF-16, as PowerShell writes it, to UTF-8, piece by piece.
class Utf16Decoder {
 public:
  // Nothing when the text does not begin like UTF-16: with its mark, or with every other byte 0.
  static std::optional<Utf16Decoder> for_text(std::string_view beginning);

  std::string decode(std::string_view bytes);

 private:
  explicit Utf16Decoder(bool big_endian) : big_endian_(big_endian) {}

  bool big_endian_;
  std::string rest_;  // bytes that make no whole character yet
};

// The width at which the lines of a text were cut, as a copied terminal's are; 0 when they were not.
std::size_t width_of_wrapped(std::string_view text);

std::size_t columns(std::string_view line);  // characters

// The name of a host, pod or container that stands before every line of a text, with what divides it from the line:
// "worker-3  | ", "[pod/train-0/main] ". Empty where there is none, or where it tells more than a name.
std::string common_prefix(std::string_view text);

// Whether a line of a wrapped text is one of its own, and no continuation.
bool begins_afresh(std::string_view line);

struct LogFile {
  std::string path;         // "-": stdin
  std::string name;         // as it is told to people
  std::optional<int> rank;  // from its name, if it is one of several; no proof
  bool in_folder = false;   // found there, and not asked for by name
};

// Files as they are, folders as all files below them that may be logs, in the order of their names; a folder below that
// cannot be read stands for itself. ConfigError when a folder has none.
std::vector<LogFile> find_logs(const std::vector<std::string>& arguments);

class LineReader {
 public:
  static constexpr std::size_t kLongestLine = 1 << 16;
  static constexpr std::size_t kHistory = 1 << 18;  // bytes that recent() has at least, if there were as many

  explicit LineReader(const LogFile& file);  // ConfigError when it cannot be read

  struct Line {
    std::string_view text;     // without its end; valid until the next call
    std::uint64_t number = 0;  // from 1
    bool whole = true;         // else the continuation of a line that was too long
  };
  // Lines beyond kLongestLine come in pieces that have the same number. Those of a log that was wrapped at some width
  // are joined, and have the number of their first piece.
  bool next(Line& line);

  // Whether a file is binary. Decided by its first bytes, so it is known from the first line on.
  bool looks_binary() const { return binary_; }
  std::uint64_t bytes() const { return bytes_; }

  // The text from some way before the line that was given out last to the end of it.
  std::string_view recent() const;

 private:
  bool fill();
  std::size_t read_some(char* into, std::size_t most);
  void decode(std::string_view raw);
  bool next_piece(Line& line);
  bool next_joined(Line& line);

  Fd fd_;
  std::string name_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what is not given out yet
  std::uint64_t number_ = 1, bytes_ = 0;
  bool ended_ = false, binary_ = false, continues_ = false;
  std::optional<Utf16Decoder> utf16_{};
  std::size_t wrapped_at_ = 0;  // columns; 0: not wrapped
  std::string prefix_;          // of every line; not given out
  std::string joined_, held_;   // the line that is given out, and the one behind it
  std::uint64_t held_number_ = 0;
};

}  // namespace braid
