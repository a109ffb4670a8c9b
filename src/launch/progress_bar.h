// A progress line, redrawn in place. Prints nothing if the output is not a terminal.
#pragma once

#include <string>

#include "dist/control_line.h"

namespace braid {

// " 120/1000 [###-----] lm loss 2.3456 | 65536 tokens/s | 1:02:03 left", cut or extended by the bar to `columns`.
std::string to_line(const RunProgress& progress, int columns);

class ProgressBar {
 public:
  explicit ProgressBar(int fd);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // clears

  void draw(const RunProgress& progress);

  // Call before printing anything else, which would otherwise continue the bar's line.
  void clear();

 private:
  void put(const std::string& text);

  int fd_;
  bool is_terminal_, drawn_ = false;
};

}  // namespace braid
