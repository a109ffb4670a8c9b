#include "data/shards/worker_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace braid {
namespace {

// Interleaves the reversals of both halves, starting with the left one.
std::vector<std::int64_t> reversed(std::int64_t first, std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  if (n <= 2) {
    std::iota(order.begin(), order.end(), first);
    return order;
  }
  const std::vector<std::int64_t> left = reversed(first, n / 2), right = reversed(first + n / 2, n - n / 2);
  order.clear();
  for (std::size_t i = 0; i < right.size(); ++i) {
    if (i < left.size()) order.push_back(left[i]);
    order.push_back(right[i]);
  }
  return order;
}

// Begins of the slices of a piece within one shard. Python's round() rounds halves to even, as nearbyint() does.
void add_slices(std::int64_t begin, std::int64_t end, std::optional<std::int64_t> longest,
                std::vector<std::int64_t>& borders) {
  const auto length = static_cast<double>(end - begin);
  double slices = 1;
  if (longest && length > static_cast<double>(*longest) * 1.5)
    slices = std::max(std::nearbyint(length / static_cast<double>(*longest)), 1.0);
  const double step = length / slices;
  for (double i = 0; i < slices; ++i) {
    const std::int64_t border = begin + static_cast<std::int64_t>(i * step);
    if (borders.empty() || border > borders.back()) borders.push_back(border);
  }
}

}  // namespace

std::vector<std::int64_t> bit_reversal(std::int64_t n) { return reversed(0, n); }

std::pair<std::int64_t, std::int64_t> worker_range(std::pair<std::int64_t, std::int64_t> samples,
                                                   const std::vector<std::int64_t>& order, std::int64_t rotation,
                                                   std::int64_t worker) {
  const std::int64_t workers = std::ssize(order);
  BRAID_CHECK(worker >= 0 && worker < workers, "worker {} of {}", worker, workers);
  const std::int64_t total = samples.second - samples.first;
  const std::int64_t base = total / workers, extra = total % workers;
  std::int64_t begin = samples.first, own = 0;
  for (std::int64_t i = 0; i < workers; ++i) {
    const std::int64_t count = base + ((i - rotation + workers) % workers < extra ? 1 : 0);
    if (order[static_cast<std::size_t>(i)] < worker) begin += count;
    if (order[static_cast<std::size_t>(i)] == worker) own = count;
  }
  return {begin, begin + own};
}

std::vector<std::int64_t> slice_borders(std::pair<std::int64_t, std::int64_t> range,
                                        const std::vector<std::int64_t>& shard_starts,
                                        std::optional<std::int64_t> longest) {
  std::vector<std::int64_t> borders;
  if (range.first >= range.second) return borders;
  auto next = std::upper_bound(shard_starts.begin(), shard_starts.end(), range.first);
  for (std::int64_t begin = range.first; begin < range.second; ++next) {
    const std::int64_t end = next == shard_starts.end() ? range.second : std::min(*next, range.second);
    if (end > begin) add_slices(begin, end, longest, borders);
    begin = end;
  }
  borders.push_back(range.second);
  return borders;
}

}  // namespace braid
