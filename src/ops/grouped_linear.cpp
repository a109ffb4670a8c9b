#include "ops/grouped_linear.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <numeric>

#include "base/error.h"
#include "ops/has_kernel.h"
#include "ops/linear.h"

namespace braid {

void ExpertRows::prefetch() const {
  if (!on_host() && !host_->ends) host_->ends.emplace(ends_);
}

const std::vector<std::int64_t>& ExpertRows::counts() const {
  if (on_host()) return *host_->counts;
  prefetch();
  const at::Tensor& ends = host_->ends->get();
  std::vector<std::int64_t>& counts = host_->counts.emplace(ends.numel());
  std::adjacent_difference(ends.data_ptr<int>(), ends.data_ptr<int>() + ends.numel(), counts.begin());
  return counts;
}

namespace {

// libtorch's grouped product needs bf16 on a GPU, at least one row, and strides that are multiples of 16 bytes.
bool has_grouped_kernel(const at::Tensor& rows, const at::Tensor& matrices) {
  const bool aligned = matrices.size(1) % 8 == 0 && matrices.size(2) % 8 == 0;
  return rows.is_cuda() && rows.scalar_type() == at::kBFloat16 && rows.size(0) > 0 && aligned;
}

// Braid's own grouped products need no counts on the host.
bool has_row_kernel([[maybe_unused]] const at::Tensor& rows, [[maybe_unused]] const at::Tensor& weight) {
  if constexpr (kHasKernels) return cuda::has_row_products(rows, weight);
  return false;
}

template <class Visit>
void for_each_expert(const ExpertRows& experts, Visit visit) {  // visit(expert, begin, count)
  std::int64_t begin = 0, expert = 0;
  for (const std::int64_t count : experts.counts()) {
    visit(expert++, begin, count);
    begin += count;
  }
}

// Each expert's rows times weight[e], or its transpose.
// rows: [R, Out], weight: [E, Out, In] -> [R, In]; transposed, rows: [R, In] -> [R, Out]
at::Tensor multiply_rows(const at::Tensor& rows, const at::Tensor& weight, bool transposed, const ExpertRows& experts) {
  if constexpr (kHasKernels)
    if (cuda::has_row_products(rows, weight)) return cuda::multiply_rows(experts.ends(), rows, weight, transposed);
  const at::Tensor matrices = transposed ? weight.transpose(1, 2) : weight;
  if (has_grouped_kernel(rows, matrices)) return at::_grouped_mm(rows.contiguous(), matrices, experts.ends());
  at::Tensor result = at::empty({rows.size(0), matrices.size(2)}, rows.options());
  for_each_expert(experts, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    at::Tensor part = result.narrow(0, begin, count);
    at::mm_out(part, rows.narrow(0, begin, count), matrices.select(0, expert));
  });
  return result;
}

// grad^T rows of each expert, as one product; undefined where there are no rows.   -> [E, Out, In]
[[maybe_unused]] at::Tensor grouped_gradients(const at::Tensor& grad, const at::Tensor& rows,
                                              const ExpertRows& experts) {
  return at::_grouped_mm(grad.t(), rows.contiguous(), experts.ends());
}

// Without a kernel, one product per expert: libtorch's grouped product rounds its result and cannot add it to a sum.
// grad: [R, Out], rows: [R, In], sum: [E, Out, In]
void write_weight_gradients(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& sum, bool is_first,
                            const ExpertRows& experts) {
  if constexpr (kHasKernels)
    if (cuda::has_gradient_products(grad, rows, sum, is_first))
      return cuda::write_expert_gradients(experts.ends(), grad, rows, sum, is_first);
  for_each_expert(experts, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
    const at::Tensor slice = sum.select(0, expert);
    if (count > 0)
      add_weight_gradient(grad.narrow(0, begin, count), rows.narrow(0, begin, count), slice, is_first);
    else if (is_first)
      slice.zero_();
  });
}

at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                           const ExpertRows& experts) {
  const auto write = [&](const at::Tensor& sum, bool is_first) {
    write_weight_gradients(grad, rows, sum, is_first, experts);
  };
  if (weight.sum->write_by(write, weight.gradient_parts)) return {};
  const at::Tensor result = at::empty(weight.value.sizes(), weight.value.options().requires_grad(false));
  if constexpr (kHasKernels)
    if (!cuda::has_gradient_products(grad, rows, result, true) && has_grouped_kernel(rows, weight.value)) {
      const at::Tensor rounded = grouped_gradients(grad, rows, experts);
      cuda::clear_expert_gradients(experts.ends(), rounded);
      return rounded;
    }
  write_weight_gradients(grad, rows, result, /*is_first=*/true, experts);
  return result;
}

}  // namespace

at::Tensor grouped_linear_forward(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts) {
  return multiply_rows(rows, weight, /*transposed=*/true, experts);
}

Tensors grouped_linear_backward(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                                const ExpertRows& experts, bool rows_want_gradient) {
  const at::Tensor dense = grad.contiguous();
  return {rows_want_gradient ? multiply_rows(dense, weight.value, /*transposed=*/false, experts) : at::Tensor(),
          rows.defined() ? weight_gradient(dense, rows, weight, experts) : at::Tensor()};
}

void check_grouped_linear(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts) {
  BRAID_CHECK(rows.dim() == 2 && weight.dim() == 3 && rows.size(1) == weight.size(2),
              "rows and weights must have the same inner width");
  BRAID_CHECK_EQ(experts.ends().numel(), weight.size(0), "a row count per expert");
  if (!experts.on_host()) return;
  const std::vector<std::int64_t>& counts = experts.counts();
  const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  BRAID_CHECK_EQ(total, rows.size(0), "rows of all experts");
}

at::Tensor grouped_linear(const Recomputable& input, const Weight& weight, const ExpertRows& experts, Result result) {
  const at::Tensor &rows = input.value, &matrices = weight.value;
  check_grouped_linear(rows, matrices, experts);
  if (weight.sum->value.defined() && needs_gradient({matrices}) && !has_row_kernel(rows, matrices)) experts.prefetch();
  return differentiable(
      "GroupedLinearBackward", {rows, matrices},
      [&] {
        return result == Result::Needed ? grouped_linear_forward(rows, matrices, experts)
                                        : rows.new_empty({rows.size(0), matrices.size(1)});
      },
      [saved = input.saved_if(matrices.requires_grad()), weight, experts, rows_train = rows.requires_grad()](
          const at::Tensor& grad) { return grouped_linear_backward(grad, saved(), weight, experts, rows_train); });
}

}  // namespace braid
