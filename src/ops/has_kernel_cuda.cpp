#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include "ops/has_kernel.h"

namespace braid {

KernelQueue::KernelQueue(const at::Device& device)
    : guard_(device), queue_{c10::cuda::getCurrentCUDAStream(), [this, device](std::size_t bytes) {
                               const auto options = at::TensorOptions(at::kByte).device(device);
                               scratch_.push_back(at::empty({static_cast<std::int64_t>(bytes)}, options));
                               return scratch_.back().data_ptr();
                             }} {}

void KernelQueue::check_launch() const { C10_CUDA_KERNEL_LAUNCH_CHECK(); }

}  // namespace braid
