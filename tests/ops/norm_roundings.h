#pragma once

#include "ops/gradients.h"

namespace braid::testing {

// Of a norm of rows whose mean is so many times their deviation from it.
// Forward: a difference, half of a quotient and of a sum under the root, rsqrt (2 ulp, so 4), 2 products and a bias: 9.
// Gradients of x: the same, without the bias, and 6 more for products with the weight, the mean and the root, and for
// sums: 14 of each of 3 terms, whose squares add up to that of the result: times sqrt(3).
// The sum of squares is positive, and its root halves its error; a mean has the error of the sum of its terms. A
// parameter's gradient is a sum over tokens.
inline double norm_roundings(std::int64_t tokens, std::int64_t columns, double mean = 0) {
  return 14 * std::sqrt(3.0) + positive_sum(columns) * (0.5 + mean) + random_sum(tokens);
}

}  // namespace braid::testing
