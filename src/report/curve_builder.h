// Collects values in the order of a file, in which a restarted run repeats iterations.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "report/run_record.h"

namespace braid {

class CurveBuilder {
 public:
  // The later value of an iteration counts.
  void add(const std::string& curve, std::int64_t iteration, std::optional<double> value) {
    if (value) points_[curve][iteration] = *value;
  }

  Curves build() const {
    Curves curves;
    for (const auto& [name, points] : points_)
      for (const auto& [iteration, value] : points) curves[name].push_back({iteration, value});
    return curves;
  }

 private:
  std::map<std::string, std::map<std::int64_t, double>> points_{};
};

}  // namespace braid
