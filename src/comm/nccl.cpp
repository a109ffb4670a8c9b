// Built with BRAID_CUDA only; otherwise comm/no_nccl.cpp replaces it.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/core/Event.h>
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include "base/error.h"
#include "comm/backend_factory.h"
#include "comm/store.h"

namespace braid {
namespace {

// libtorch's watchdog would end a process that sees a peer's failure, before the board has named the cause.
void leave_failures_to_the_board() {
  for (const char* name :
       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_PROPAGATE_ERROR", "TORCH_NCCL_RETHROW_CUDA_ERRORS"})
    setenv(name, "0", /*overwrite=*/1);
}

}  // namespace

MakeBackend nccl_backends(std::shared_ptr<Store> store, int device_index, std::chrono::milliseconds timeout) {
  leave_failures_to_the_board();
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_index));
  return [store = std::move(store), device, timeout](const std::string& name, const std::vector<int>& ranks,
                                                     int group_rank) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    options->group_name = name;
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store_of_group(*store, name, ranks), group_rank,
                                                               static_cast<int>(ranks.size()), options);
    backend->setBoundDeviceId(device);
    backend->enableCollectivesTiming();  // for device_span_of()
    // Connecting is collective. Left to a group's first operation it could deadlock: ranks may use groups in different
    // orders, but they make them in one.
    backend->eagerConnectSingleDevice(device);
    return backend;
  };
}

std::function<bool()> completion_of(const c10d::Work& work) {
  using NcclWork = c10d::ProcessGroupNCCL::WorkNCCL;
  // Its copy constructor leaves the tensors out.
  const auto copy = c10::make_intrusive<NcclWork>(dynamic_cast<const NcclWork&>(work));
  return [copy] { return copy->isCompleted() && !copy->exception(); };  // after an error it never completes
}

namespace {

// Reads the events between which the GPU carries a work out.
class TimedWork : public c10d::ProcessGroupNCCL::WorkNCCL {
 public:
  explicit TimedWork(const WorkNCCL& work) : WorkNCCL(work) {}  // leaves the tensors out

  DeviceSpan span_after(const c10::Event& since) const {
    const double end_ms = ms_between(since, *ncclEndEvent_);
    const bool has_start = ncclStartEvent_ && ncclStartEvent_->isCreated();
    return {has_start ? std::max(0.0, std::min(ms_between(since, *ncclStartEvent_), end_ms)) : 0, end_ms};
  }

 private:
  static double ms_between(const c10::Event& from, const at::cuda::CUDAEvent& to) {
    float ms = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(from.eventId()), to.event()));
    return ms;
  }
};

}  // namespace

std::function<DeviceSpan(const c10::Event&)> device_span_of(const c10d::Work& work) {
  const auto copy = c10::make_intrusive<TimedWork>(dynamic_cast<const c10d::ProcessGroupNCCL::WorkNCCL&>(work));
  return [copy](const c10::Event& since) { return copy->span_after(since); };
}

std::string gpu_identity(int device_index) {
  const auto& uuid = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device_index))->uuid.bytes;
  std::string text = "GPU-";
  for (const char byte : uuid) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string nccl_version() {
  const std::uint64_t version = torch::cuda::nccl::version();
  return fmt::format("{}.{}.{}", version >> 32, version >> 16 & 0xffff, version & 0xffff);
}

}  // namespace braid
