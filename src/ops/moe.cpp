#include "ops/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "ops/has_kernel.h"
#include "ops/moe_cuda.h"

namespace braid {

ExpertOrder sort_by_expert(const at::Tensor& experts, std::int64_t num_experts) {
  at::NoGradGuard guard;
  if constexpr (kHasKernels)
    if (experts.is_cuda() && WithoutKernels::count == 0 && cuda::can_sort_by_expert(num_experts))
      return cuda::sort_by_expert(experts, num_experts);
  const at::Tensor flat = experts.reshape(-1);
  // Not bincount, which would make the host wait for the GPU.
  at::Tensor counts = at::zeros({num_experts}, flat.options());
  counts.scatter_add_(0, flat, flat.new_ones(flat.sizes()));
  const at::Tensor order = std::get<1>(at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  at::Tensor inverse = at::empty_like(order);
  inverse.scatter_(0, order, at::arange(order.numel(), order.options()));
  return {.order = order, .inverse = inverse, .counts = counts, .ends = counts.cumsum(0).to(at::kInt)};
}

at::Tensor permute_to_experts_forward(const at::Tensor& x, const ExpertOrder& order, std::int64_t top_k) {
  if constexpr (kHasKernels)
    if (has_kernel({x})) return cuda::permute_to_experts_forward(x, order.inverse, top_k);
  return x.index_select(0, order.order.div(top_k, "floor"));
}

// Gathers through the inverse order: unlike an indexed add, it is deterministic. ATen sums bf16 in fp32.
at::Tensor permute_to_experts_backward(const at::Tensor& grad, const ExpertOrder& order, std::int64_t top_k,
                                       const at::Tensor& added) {
  if constexpr (kHasKernels)
    if (has_kernel({grad, added})) return cuda::unpermute_from_experts_forward(grad, order.inverse, top_k, added);
  const at::Tensor sum = grad.index_select(0, order.inverse).view({grad.size(0) / top_k, top_k, grad.size(1)}).sum(1);
  return added.defined() ? sum + added : sum;
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
      "PermuteToExpertsBackward", {x}, [&] { return permute_to_experts_forward(x, order, top_k); },
      [order, top_k](const at::Tensor& grad) { return permute_to_experts_backward(grad, order, top_k); });
}

at::Tensor unpermute_from_experts(const at::Tensor& rows, const ExpertOrder& order, std::int64_t top_k,
                                  const at::Tensor& added) {
  check_row_count(rows.size(0), order, top_k);
  return differentiable(
      "UnpermuteFromExpertsBackward", {rows, added},
      [&] { return permute_to_experts_backward(rows, order, top_k, added); },
      [order, top_k, rows_train = rows.requires_grad()](const at::Tensor& grad) {
        return Tensors{rows_train ? permute_to_experts_forward(grad, order, top_k) : at::Tensor(), grad};
      });
}

at::Tensor weights_by_expert(const at::Tensor& weights, const ExpertOrder& order) {
  return differentiable(
      "WeightsByExpertBackward", {weights}, [&] { return weights.reshape(-1).index_select(0, order.order); },
      [inverse = order.inverse, shape = weights.sizes().vec()](const at::Tensor& grad) {
        return grad.index_select(0, inverse).view(shape);
      });
}

}  // namespace braid
