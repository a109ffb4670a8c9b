// Output for terminals: lines wrapped to the width, and colour. Files and pipes get neither.
#pragma once

namespace braid {

int columns_of(int fd);     // 80 where it is unknown
bool shows_colour(int fd);  // a terminal that supports it, and NO_COLOR is not set

// Whether `fd` is a pipe whose reader has exited, or a closed terminal: losing output there is not a failure.
bool has_no_reader(int fd);

// Wraps lines to the width of `fd`, with continuation lines indented, if it is a terminal.
std::string fitted(std::string_view text, int fd);

// "braid: <message>", fitted, its first line in red where `fd` shows colour.
std::string error_text(std::string_view message, int fd);

// Breaks lines after `between` so that they have at most `width` columns; all but the first begin with `indent`. Longer
// pieces stay whole.
std::string folded(std::string_view text, std::size_t width, std::string_view indent, std::string_view between = " ");

// "[####------]", filled up to a share of 0 to 1.
std::string bar_text(double share, int length);

// A line on a terminal that is redrawn in place and wiped at the end, for the progress of long work. Prints nothing if
// the output is not a terminal.
class StatusLine {
 public:
  explicit StatusLine(int fd);
  StatusLine(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  // How many columns a text may have: on some terminals, a line that reaches the last column starts the next line,
  // which \r does not undo. Two more columns are left for the ^C that a terminal echoes.
  static int width_in(int columns) { return std::max(columns - 3, 0); }

  void draw(const std::string& text);  // cut to the terminal's width
  // Call before printing anything else, which would otherwise continue this line.
  void clear();
  // Of the terminal.
  int columns() const { return columns_of(fd_); }

 private:
  void put(const std::string& text);

  int fd_;
  bool is_terminal_, drawn_ = false;
};

// What long work does now, and the share of it that is done, 0 to 1. Any thread may call it.
using TellProgress = std::function<void(const std::string& doing, double share)>;

// Draws that on stderr: "comparing bounds [####------] 41 %", at most ten times a second.
class WorkStatus {
 public:
  void show(const std::string& doing, double share);
  void clear();  // see StatusLine

 private:
  std::mutex mutex_;
  StatusLine line_{2};
  std::chrono::steady_clock::time_point next_draw_{};
};

}  // namespace braid
