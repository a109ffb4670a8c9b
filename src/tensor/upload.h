// Copies from host memory that the host does not wait for.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid {

// `host` on `device`. A GPU copies from pinned memory while the host goes on; from other memory the host would have to
// wait until everything queued before is done. libtorch reuses pinned memory only after such a copy.
inline at::Tensor upload(const at::Tensor& host, const at::Device& device) {
  if (!device.is_cuda() || !host.is_cpu()) return host.to(device);
  return (host.is_pinned() ? host : host.pin_memory()).to(device, /*non_blocking=*/true);
}

}  // namespace braid
