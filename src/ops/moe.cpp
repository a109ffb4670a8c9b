#include "ops/moe.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "base/error.h"
#include "ops/linear.h"

namespace braid {

ExpertOrder sort_by_expert(const at::Tensor& experts, std::int64_t num_experts) {
  at::NoGradGuard guard;
  const at::Tensor flat = experts.reshape(-1);
  // Not bincount, which would make the host wait for the GPU.
  at::Tensor counts = at::zeros({num_experts}, flat.options());
  counts.scatter_add_(0, flat, flat.new_ones(flat.sizes()));
  return {.order = std::get<1>(at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false)), .counts = counts};
}

at::Tensor permute_to_experts_forward(const at::Tensor& x, const at::Tensor& order, std::int64_t top_k) {
  return x.index_select(0, order.div(top_k, "floor"));
}

// Gathers through the inverse order: unlike an indexed add, it is deterministic. ATen sums bf16 in fp32.
at::Tensor permute_to_experts_backward(const at::Tensor& grad, const at::Tensor& order, std::int64_t top_k) {
  at::Tensor inverse = at::empty_like(order);
  inverse.scatter_(0, order, at::arange(order.numel(), order.options()));
  return grad.index_select(0, inverse).view({grad.size(0) / top_k, top_k, grad.size(1)}).sum(1);
}

namespace {

void check_row_count(std::int64_t rows, const ExpertOrder& order, std::int64_t top_k) {
  BRAID_CHECK_EQ(rows, order.order.numel(), "rows sorted by expert");
  BRAID_CHECK_EQ(rows % top_k, 0, "each token has {} rows", top_k);
}

}  // namespace

at::Tensor permute_to_experts(const at::Tensor& x, const ExpertOrder& order, std::int64_t top_k) {
  check_row_count(x.size(0) * top_k, order, top_k);
  return differentiable(
      "PermuteToExpertsBackward", {x}, [&] { return permute_to_experts_forward(x, order.order, top_k); },
      [order = order.order, top_k](const at::Tensor& grad) { return permute_to_experts_backward(grad, order, top_k); });
}

at::Tensor unpermute_from_experts(const at::Tensor& rows, const ExpertOrder& order, std::int64_t top_k) {
  check_row_count(rows.size(0), order, top_k);
  return differentiable(
      "UnpermuteFromExpertsBackward", {rows}, [&] { return permute_to_experts_backward(rows, order.order, top_k); },
      [order = order.order, top_k](const at::Tensor& grad) { return permute_to_experts_forward(grad, order, top_k); });
}

namespace {

using Counts = std::vector<std::int64_t>;

// libtorch's grouped product needs bf16 on a GPU, at least one row, and strides that are multiples of 16 bytes.
bool has_grouped_kernel(const at::Tensor& rows, const at::Tensor& weight) {
  const bool aligned = weight.size(1) % 8 == 0 && weight.size(2) % 8 == 0;
  return rows.is_cuda() && rows.scalar_type() == at::kBFloat16 && rows.size(0) > 0 && aligned;
}

template <class Visit>
void for_each_expert(const Counts& counts, Visit visit) {  // visit(expert, begin, count), those with rows only
  std::int64_t begin = 0;
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] > 0) visit(static_cast<std::int64_t>(expert), begin, counts[expert]);
    begin += counts[expert];
  }
}

// Each expert's rows times its matrix.   rows: [R, In], matrices: [E, In, Out] -> [R, Out]
at::Tensor multiply_rows(const at::Tensor& rows, const at::Tensor& matrices, const ExpertRows& experts) {
  if (has_grouped_kernel(rows, matrices)) return at::_grouped_mm(rows.contiguous(), matrices, experts.ends);
  at::Tensor result = at::empty({rows.size(0), matrices.size(2)}, rows.options());
  for_each_expert(experts.counts, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
    at::Tensor part = result.narrow(0, begin, count);
    at::mm_out(part, rows.narrow(0, begin, count), matrices.select(0, expert));
  });
  return result;
}

// The sum of each expert's outer products of output gradients and rows.   grad: [R, Out], rows: [R, In] -> [E, Out, In]
at::Tensor weight_grad_of(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& weight,
                          const ExpertRows& experts) {
  if (has_grouped_kernel(rows, weight)) {
    at::Tensor result = at::_grouped_mm(grad.t(), rows.contiguous(), experts.ends);
    // Some GPUs leave the result for an expert without rows unwritten.
    for (std::size_t expert = 0; expert < experts.counts.size(); ++expert)
      if (experts.counts[expert] == 0) result.select(0, static_cast<std::int64_t>(expert)).zero_();
    return result;
  }
  at::Tensor result = at::zeros(weight.sizes(), weight.options());
  for_each_expert(experts.counts, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
    at::Tensor part = result.select(0, expert);
    at::mm_out(part, grad.narrow(0, begin, count).t(), rows.narrow(0, begin, count));
  });
  return result;
}

// Undefined if it was added to the weight's sum.
at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                           const ExpertRows& experts) {
  if (!weight.sum->is_kept()) return weight_grad_of(grad, rows, weight.value, experts);
  if (has_grouped_kernel(rows, weight.value))
    weight.sum->value.add_(weight_grad_of(grad, rows, weight.value, experts));
  else
    for_each_expert(experts.counts, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
      at::Tensor sum = weight.sum->value.select(0, expert);
      add_weight_gradient(grad.narrow(0, begin, count), rows.narrow(0, begin, count), sum);
    });
  weight.sum->added();
  return {};
}

}  // namespace

ExpertRows expert_rows(const std::vector<std::int64_t>& counts, const at::Device& device) {
  std::vector<int> ends(counts.size());
  std::inclusive_scan(counts.begin(), counts.end(), ends.begin());
  return {counts, at::tensor(ends, at::kInt).to(device)};
}

at::Tensor grouped_linear_forward(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts) {
  return multiply_rows(rows, weight.transpose(1, 2), experts);
}

Tensors grouped_linear_backward(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                                const ExpertRows& experts, bool rows_want_gradient) {
  const at::Tensor dense = grad.contiguous();
  return {rows_want_gradient ? multiply_rows(dense, weight.value, experts) : at::Tensor(),
          rows.defined() ? weight_gradient(dense, rows, weight, experts) : at::Tensor()};
}

at::Tensor grouped_linear(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts) {
  const Counts& counts = experts.counts;
  const at::Tensor& matrices = weight.value;
  BRAID_CHECK(rows.dim() == 2 && matrices.dim() == 3 && rows.size(1) == matrices.size(2),
              "rows and weights must have the same inner width");
  BRAID_CHECK_EQ(static_cast<std::int64_t>(counts.size()), matrices.size(0), "a row count per expert");
  const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  BRAID_CHECK_EQ(total, rows.size(0), "rows of all experts");
  return differentiable(
      "GroupedLinearBackward", {rows, matrices}, [&] { return grouped_linear_forward(rows, matrices, experts); },
      [rows = matrices.requires_grad() ? rows : at::Tensor(), weight, experts, rows_train = rows.requires_grad()](
          const at::Tensor& grad) { return grouped_linear_backward(grad, rows, weight, experts, rows_train); });
}

}  // namespace braid
