#pragma once

#include <ATen/ATen.h>
#include "ops/moe.h"

namespace braid::testing {

inline ExpertRows expert_rows(const std::vector<std::int64_t>& counts, const at::Device& device) {
  std::vector<int> ends(counts.size());
  std::inclusive_scan(counts.begin(), counts.end(), ends.begin());
  return {counts, at::tensor(ends, at::kInt).to(device)};
}

}  // namespace braid::testing
