#include "tensor/copies.h"
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace braid {

HostCopy::HostCopy(const at::Tensor& values) : host_(values) {
  if (!values.is_cuda()) return;
  host_ = at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(values, /*non_blocking=*/true);
  copied_.emplace(at::kCUDA);
  copied_->record(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(values.device()));
}

const at::Tensor& HostCopy::get() {
  if (copied_) copied_->synchronize();
  copied_.reset();
  return host_;
}

at::Tensor to_host(const at::Tensor& values) { return HostCopy(values).get(); }

}  // namespace braid
