// One line on the terminal, drawn over and over: how far a run is. Where that is no terminal, nothing at all.
#pragma once

#include <string>

#include "dist/control_line.h"

namespace braid {

// " 120/1000 [###-----] lm loss 2.3456 | 65536 tokens/s | 1:02:03 left", cut or filled with bar to `columns`.
std::string to_line(const RunProgress& progress, int columns);

class ProgressBar {
 public:
  explicit ProgressBar(int fd);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // clears

  void draw(const RunProgress& progress);

  // To be called before anything else is printed, which would otherwise continue the bar's line.
  void clear();

 private:
  void put(const std::string& text);

  int fd_;
  bool is_terminal_, drawn_ = false;
};

}  // namespace braid
