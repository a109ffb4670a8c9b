// Random values drawn on a GPU by Braid's kernels, the same bits as on a CPU; see ops/has_kernel.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/philox.h"

namespace braid::cuda {

// x[row][column] = scale * field.normal(i), or scale * (2 * field.uniform(i) - 1), with
// i = first + row * row_step + column.   x: [rows, columns], a view
void draw(const at::Tensor& x, const RandomField& field, std::int64_t first, std::int64_t row_step, bool normal,
          double scale);

}  // namespace braid::cuda
