// One line on the terminal, drawn over and over: how far a run is. Where stderr is no terminal, nothing at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace braid {

struct ProgressBarState {
  std::int64_t iteration = 0, iterations = 0;
  std::optional<double> lm_loss{};
  double tokens_per_s = 0;
  double seconds_left = 0;
};

// " 120/1000 [###-----] lm loss 2.3456 | 65536 tokens/s | 1:02:03 left", cut or filled with bar to `columns`.
std::string to_line(const ProgressBarState& state, int columns);

class ProgressBar {
 public:
  explicit ProgressBar(int fd = 2);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // clears

  void draw(const ProgressBarState& state);

  // To be called before anything else is printed, which would otherwise continue the bar's line.
  void clear();

 private:
  void put(const std::string& text);

  int fd_;
  bool is_terminal_, drawn_ = false;
};

}  // namespace braid
