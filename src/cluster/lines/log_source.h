// Which files there are to read, and their lines in constant memory, however long they are: decoded, without a common
// prefix, and joined if a terminal cut them.
#pragma once

#include "base/socket.h"

namespace braid {

// Converts UTF-16, as PowerShell writes it, to UTF-8, piece by piece.
struct Utf16Decoder {
  // Nothing if the text does not begin like UTF-16: with its byte order mark, or with every other byte 0.
  static std::optional<Utf16Decoder> for_text(std::string_view beginning);

  std::string decode(std::string_view bytes);

  bool big_endian = false;
  std::optional<unsigned char> half_unit{};  // the first byte of an incomplete unit
  std::uint32_t high = 0;                    // the first half of a pair
};

// The width at which a terminal cut the lines of a text; 0 if they were not cut.
std::size_t width_of_wrapped(std::string_view text);

// The name of a host, pod or container that stands before every line of a text, with what divides it from the line:
// "worker-3  | ", "[pod/train-0/main] ". Empty where there is none, or where it tells more than a name.
std::string common_prefix(std::string_view text);

struct LogFile {
  std::string path;         // "-": stdin
  std::string name;         // as reports show it
  std::optional<int> rank;  // from its name, if it is one of several; it may be wrong
  bool in_folder = false;   // found there, and not asked for by name
};

// Replaces folders by all files below them that may be logs, in the order of their names. A folder below that cannot be
// read is listed itself. ConfigError if a folder contains no log.
std::vector<LogFile> find_logs(const std::vector<std::string>& arguments);

class LineReader {
 public:
  static constexpr std::size_t kLongestLine = 1 << 16;
  static constexpr std::size_t kHistory = 1 << 18;  // the least that recent() returns, in bytes, if the file is longer

  explicit LineReader(const LogFile& file);  // ConfigError when it cannot be read

  struct Line {
    std::string_view text;     // without its end; valid until the next call
    std::uint64_t number = 0;  // from 1
    bool begins_line = true;   // false: it continues a line longer than kLongestLine
  };
  // Lines beyond kLongestLine are returned in pieces with the same number. Lines that a terminal wrapped are joined,
  // and have the number of their first piece.
  bool next(Line& line);

  // Whether a file is binary. Its first bytes decide, so it is known after construction.
  bool looks_binary() const { return binary_; }
  std::uint64_t bytes() const { return bytes_; }

  // The text up to the end of the line that next() returned last, from some way before it.
  std::string_view recent() const { return std::string_view(buffer_).substr(0, begin_); }

 private:
  bool fill();
  bool next_piece(Line& line);
  bool next_joined(Line& line);

  Fd fd_;
  std::string name_;
  std::string buffer_;
  std::size_t begin_ = 0;        // of the text that next() has not returned
  std::size_t piece_bytes_ = 0;  // size of the last piece that it returned
  std::uint64_t number_ = 1, bytes_ = 0;
  bool ended_ = false, binary_ = false, continues_ = false;
  std::optional<Utf16Decoder> utf16_{};
  std::size_t wrapped_at_ = 0;  // columns; 0: not wrapped
  std::string prefix_;          // of every line; next() removes it
  std::string joined_;          // the line that next() returns
};

}  // namespace braid
