// A copy of a tensor in host memory, made while the host continues.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace braid {

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

}  // namespace braid
