// How a log's bytes become text: its encoding, and lines that a terminal cut.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

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

}  // namespace braid
