#include "cluster/local/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"
#include "base/terminal.h"

namespace braid {

std::string to_line(const RunProgress& progress, int columns) {
  constexpr int kShortestBar = 10, kLongestBar = 40;
  const std::string iterations = std::to_string(progress.iterations);
  const std::string count = fmt::format(" {:{}}/{}", progress.iteration, iterations.size(), iterations);
  std::string numbers;
  if (progress.lm_loss) numbers += fmt::format(" lm loss {:.4f} |", *progress.lm_loss);
  if (progress.tokens_per_s > 0) numbers += fmt::format(" {:.0f} tokens/s |", progress.tokens_per_s);
  numbers += progress.evaluates ? " evaluating" : fmt::format(" {} left", clock_text(progress.seconds_left));
  const int width = StatusLine::width_in(columns);
  const int room = width - static_cast<int>(count.size() + numbers.size()) - 3;
  const double share =
      progress.iterations > 0 ? static_cast<double>(progress.iteration) / static_cast<double>(progress.iterations) : 0;
  const std::string bar = room >= kShortestBar ? " " + bar_text(share, std::min(room, kLongestBar)) : "";
  return (count + bar + numbers).substr(0, static_cast<std::size_t>(width));
}

}  // namespace braid
