// Counts of whole numbers: their summary, and a histogram of them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace braid {

class Distribution {
 public:
  void add(std::int64_t value) {
    ++counts_[value];
    ++count_;
  }
  std::int64_t count() const { return count_; }
  const std::map<std::int64_t, std::int64_t>& counts() const { return counts_; }  // of each value

  // Of an empty distribution: 0.
  std::int64_t min() const { return quantile(0); }
  std::int64_t max() const { return quantile(1); }
  std::int64_t quantile(double share) const;  // the least value that at least this share of all does not exceed
  double mean() const;
  std::int64_t sum() const;

  struct Bar {
    std::int64_t first, last, count;  // values from first to last
  };
  // At most about `most` bars of equal width, a round number.
  std::vector<Bar> bars(int most) const;

 private:
  std::map<std::int64_t, std::int64_t> counts_{};
  std::int64_t count_ = 0;
};

nlohmann::ordered_json summary_json(const Distribution& values);
std::vector<std::string> summary_cells(const Distribution& values);  // min, median, mean, p90, max

}  // namespace braid
