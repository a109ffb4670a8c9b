// Messages from a rank to Braid's local launcher through the rank's stdout, in order with its other output. These lines
// begin with a control character, and the launcher removes them. Only ranks of Launcher::Local write them.
#pragma once

namespace braid {

// How far the run has come, for the launcher's progress bar.
struct RunProgress {
  std::int64_t iteration = 0, iterations = 0;
  std::optional<double> lm_loss{};
  double tokens_per_s = 0;
  double seconds_left = 0;
  bool evaluates = false;  // the iteration is done and is being evaluated
};

// Text about the whole run, printed without the rank's prefix.
struct PlainText {
  std::string text;
};

// A requested output file is incomplete: the run must exit with 1 even if it succeeds otherwise.
struct LostOutput {};

// A signal ended the run early and cleanly: the launcher must exit with 128 + this signal, with which a rank cannot.
struct EndedBySignal {
  int signal = 0;
};

using ControlLine = std::variant<RunProgress, PlainText, LostOutput, EndedBySignal>;

std::string to_control_line(const RunProgress& progress);  // with its newline
std::string to_control_line(LostOutput lost);
std::string to_control_line(EndedBySignal ended);
std::string to_control_lines(const PlainText& text);  // one for each line of the text

// Nothing for an ordinary line or one that only resembles a control line; `line` has no newline.
std::optional<ControlLine> parse_control_line(std::string_view line);

}  // namespace braid
