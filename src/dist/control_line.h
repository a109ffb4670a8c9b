// What a rank tells Braid's local launcher through its own stdout, in order with what it prints: lines that begin with
// a control character and are taken out of the output. Only a rank of Launcher::Local may write them; nobody else would
// understand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace braid {

// How far the run is, for the launcher to draw.
struct RunProgress {
  std::int64_t iteration = 0, iterations = 0;
  std::optional<double> lm_loss{};
  double tokens_per_s = 0;
  double seconds_left = 0;
};

// What is said for the whole run: printed without the rank's prefix.
struct PlainText {
  std::string text;
};

// A file that was asked for is not complete: the run is to end with 1, however well it ends.
struct LostOutput {};

using ControlLine = std::variant<RunProgress, PlainText, LostOutput>;

std::string to_control_line(const RunProgress& progress);  // with its newline
std::string to_control_line(LostOutput lost);
std::string to_control_lines(const PlainText& text);  // one for each line of the text

// Nothing when it is an ordinary line, or one that only looks like ours; `line` is without its newline.
std::optional<ControlLine> parse_control_line(std::string_view line);

}  // namespace braid
