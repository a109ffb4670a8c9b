#include "ops/moe.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"

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

}  // namespace braid
