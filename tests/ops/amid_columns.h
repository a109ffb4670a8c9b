#pragma once

#include "ops/gradients.h"

namespace braid::testing {

// `op` on columns of a wider matrix, from the second on, and with an output that is part of a wider one: no row of its
// first input or of its output's gradient is aligned or follows its neighbour.
inline Operator amid_columns(const Operator& op) {
  return [op](const Tensors& in) {
    const std::int64_t columns = in[0].size(1) - 1;
    Tensors inner = in;
    inner[0] = in[0].narrow(1, 1, columns);
    return at::cat({op(inner), in[0].narrow(1, 0, 1)}, 1);
  };
}

}  // namespace braid::testing
