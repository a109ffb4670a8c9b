#pragma once

#include "ops/gradients.h"

namespace braid::testing {

// As product_sum, but the error itself, of products in fp8: a tensor core adds 32 terms at a time with 13 bits, and
// truncates them, with random signs, and their sum by up to 2^-13 each.
inline double fast_sum(std::int64_t terms, std::int64_t chain) {
  const double in_float = Roundings{random_sum(terms, /*of_term=*/3)}.of(at::kFloat);
  if (test_device().is_cpu()) return in_float;
  const double steps = std::ceil(static_cast<double>(std::min(terms, chain)) / 32);
  return (std::sqrt(32) + 1) * (steps + 1) * 2 / 3 / 8192 + in_float;
}
inline double fast_sum(std::int64_t terms) { return fast_sum(terms, terms); }

}  // namespace braid::testing
