#include "ops/moe_cuda.h"

#include <ATen/ops/empty.h>

#include "kernels/expert_order.h"
#include "ops/kernel_call.h"

namespace braid::cuda {

bool can_sort_by_expert(std::int64_t num_experts) { return num_experts <= kernels::kMaxSortedExperts; }

ExpertOrder sort_by_expert(const at::Tensor& experts, std::int64_t num_experts) {
  const at::Tensor flat = experts.reshape(-1).contiguous();
  const std::int64_t slots = flat.numel();
  const auto integers = [&](at::IntArrayRef shape, at::ScalarType dtype) {
    return at::empty(shape, flat.options().dtype(dtype));
  };
  const ExpertOrder order = {.order = integers({slots}, at::kLong),
                             .inverse = integers({slots}, at::kLong),
                             .counts = integers({num_experts}, at::kLong),
                             .ends = integers({num_experts}, at::kInt)};
  const at::Tensor block_counts = integers({kernels::sort_blocks(slots), num_experts}, at::kInt);
  const c10::cuda::CUDAGuard guard(flat.device());
  kernels::sort_by_expert(data<std::int64_t>(flat), slots, static_cast<int>(num_experts),
                          data<std::int32_t>(block_counts),
                          {.order = data<std::int64_t>(order.order),
                           .inverse = data<std::int64_t>(order.inverse),
                           .counts = data<std::int64_t>(order.counts),
                           .ends = data<std::int32_t>(order.ends)},
                          c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return order;
}

at::Tensor permute_to_experts_forward(const at::Tensor& x, const at::Tensor& inverse, std::int64_t top_k) {
  const at::Tensor dense = with_dense_rows(x), rows = at::empty({x.size(0) * top_k, x.size(1)}, x.options());
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::permute_to_experts<T>(matrix<const T>(dense), data<std::int64_t>(inverse), static_cast<int>(top_k),
                                   data<T>(rows), stream);
  });
  return rows;
}

at::Tensor unpermute_from_experts_forward(const at::Tensor& rows, const at::Tensor& inverse, std::int64_t top_k,
                                          const at::Tensor& added) {
  const at::Tensor dense = rows.contiguous(), y = at::empty({rows.size(0) / top_k, rows.size(1)}, rows.options());
  const at::Tensor dense_added = with_dense_rows(added);
  call_kernel(rows, [&]<class T>(cudaStream_t stream) {
    kernels::unpermute_from_experts<T>(data<T>(dense), data<std::int64_t>(inverse), static_cast<int>(top_k),
                                       const_matrix<T>(dense_added), matrix<T>(y), stream);
  });
  return y;
}

}  // namespace braid::cuda
