#include "data/inspect/distribution.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace braid {

std::int64_t Distribution::quantile(double share) const {
  const auto wanted = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(count_)));
  std::int64_t seen = 0;
  for (const auto& [value, count] : counts_)
    if ((seen += count) >= wanted) return value;
  return 0;
}

std::int64_t Distribution::sum() const {
  std::int64_t sum = 0;
  for (const auto& [value, count] : counts_) sum += value * count;
  return sum;
}

double Distribution::mean() const { return count_ == 0 ? 0 : static_cast<double>(sum()) / static_cast<double>(count_); }

std::vector<Distribution::Bar> Distribution::bars(int most) const {
  if (count_ == 0) return {};
  const std::int64_t wanted = (max() - min()) / most + 1;
  std::int64_t width = 1;  // 1, 2, 5, 10, 20, 50, ...
  for (int step = 0; width < wanted; ++step) width = step % 3 == 1 ? width / 2 * 5 : width * 2;
  std::vector<Bar> bars;
  const std::int64_t start = min() / width * width;
  for (std::int64_t first = start; first <= max(); first += width) bars.push_back({first, first + width - 1, 0});
  for (const auto& [value, count] : counts_) bars[static_cast<std::size_t>((value - start) / width)].count += count;
  return bars;
}

nlohmann::ordered_json summary_json(const Distribution& values) {
  return {{"count", values.count()}, {"min", values.min()},         {"median", values.quantile(0.5)},
          {"mean", values.mean()},   {"p90", values.quantile(0.9)}, {"max", values.max()}};
}

std::vector<std::string> summary_cells(const Distribution& values) {
  return {std::to_string(values.min()), std::to_string(values.quantile(0.5)), fmt::format("{:.1f}", values.mean()),
          std::to_string(values.quantile(0.9)), std::to_string(values.max())};
}

}  // namespace braid
