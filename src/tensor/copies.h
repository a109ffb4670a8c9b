// Copies between host and device during which the host continues.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace braid {

// A copy in host memory.
class HostCopy {
 public:
  // Queues the copy behind the work that is queued on the tensor's GPU; a tensor of the host is not copied.
  explicit HostCopy(const at::Tensor& values);
  // Waits for that work and the copy.
  const at::Tensor& get();

 private:
  at::Tensor host_;  // pinned
  std::optional<c10::Event> copied_;
};

// The host waits for an event. In a plain copy, to memory that is not pinned, the driver would hold a lock while it
// waits, and the failure monitor could not ask how far the GPU is.
at::Tensor to_host(const at::Tensor& values);

// `host` on `device`. A GPU copies from pinned memory while the host goes on; from other memory the host would have to
// wait until everything queued before is done. libtorch reuses pinned memory only after such a copy.
inline at::Tensor upload(const at::Tensor& host, const at::Device& device) {
  if (!device.is_cuda() || !host.is_cpu()) return host.to(device);
  return (host.is_pinned() ? host : host.pin_memory()).to(device, /*non_blocking=*/true);
}

}  // namespace braid
