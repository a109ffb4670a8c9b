#include "ops/grouped_linear_cuda.h"

#include "kernels/expert_gradients.h"
#include "ops/kernel_call.h"

namespace braid::cuda {
namespace {

kernels::ExpertWeights weights_of(const at::Tensor& grad, const at::Tensor& ends) {
  BRAID_CHECK(grad.is_contiguous(), "gradients of experts must be contiguous");
  return {data<std::int32_t>(ends), grad.size(0), grad.size(1) * grad.size(2)};
}

}  // namespace

void clear_expert_gradients(const at::Tensor& ends, const at::Tensor& grad) {
  call_kernel(grad, [&]<class T>(cudaStream_t stream) {
    kernels::clear_gradients(weights_of(grad, ends), data<__nv_bfloat16>(grad), stream);
  });
}

}  // namespace braid::cuda
