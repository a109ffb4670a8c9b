#include "run/resume/choose_iteration.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ckpt/checkpoint_folder.h"
#include "comm/world.h"
#include "train/all_ranks.h"

namespace braid {
namespace {

// Waits briefly: on a shared file system some ranks see a folder later than others.
void wait_for_folder(const std::string& folder) {
  constexpr int kTries = 50;
  constexpr std::chrono::milliseconds kPause(200);
  for (int i = 0; i < kTries && !std::filesystem::exists(folder); ++i) std::this_thread::sleep_for(kPause);
}

// All ranks use the newest iteration that any of them sees.
std::optional<std::int64_t> agreed_iteration(const std::string& root, World& world) {
  const double newest = reduced({static_cast<double>(read_tracker(root).value_or(-1))}, Reduce::Max, world)[0];
  if (newest < 0) return std::nullopt;
  const auto iteration = static_cast<std::int64_t>(newest);
  wait_for_folder(iteration_folder(root, iteration));
  if (!std::filesystem::exists(iteration_folder(root, iteration))) latest_iteration(root);  // throws the error
  return iteration;
}

// The same with a fallback to older iterations. A tracker that cannot be read, or that names a missing iteration,
// counts as damage.
std::optional<std::int64_t> best_iteration(const std::string& root, World& world,
                                           const std::function<void(const std::string&)>& say) {
  double named = -1;
  std::string error;
  try {
    named = static_cast<double>(latest_iteration(root).value_or(-1));
  } catch (const DataError& e) {
    error = e.what();
  }
  named = reduced({named}, Reduce::Max, world)[0];
  if (named >= 0) {
    wait_for_folder(iteration_folder(root, static_cast<std::int64_t>(named)));
    return static_cast<std::int64_t>(named);
  }
  const auto newest = newest_before(std::numeric_limits<std::int64_t>::max(), root, world);
  if (const std::string text = first_text(error, world); !text.empty()) {
    if (!newest) throw DataError(text);
    say(fmt::format("WARNING: {}; --load-fallback uses the newest complete iteration, {}", text, *newest));
  }
  return newest;
}

}  // namespace

std::optional<std::int64_t> newest_before(std::int64_t end, const std::string& root, World& world) {
  double newest = -1;
  for (const std::int64_t iteration : iterations_in(root))
    if (iteration < end) newest = static_cast<double>(iteration);
  newest = reduced({newest}, Reduce::Max, world)[0];
  return newest < 0 ? std::nullopt : std::optional(static_cast<std::int64_t>(newest));
}

std::optional<std::int64_t> chosen_iteration(const std::string& root, bool falls_back, World& world,
                                             const std::function<void(const std::string& text)>& say) {
  return falls_back ? best_iteration(root, world, say) : agreed_iteration(root, world);
}

}  // namespace braid
