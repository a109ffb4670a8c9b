// Creates process groups: Gloo or NCCL between processes, memory between threads.
#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10 {
struct Event;
}
namespace c10d {
class Backend;
class Store;
class Work;
}  // namespace c10d

namespace braid {

class Store;

// Long, so that the watchdog (comm/failure_board.h) names a hang before a collective's own time-out hides it. Time in
// which the run is suspended counts towards this time-out too.
inline constexpr std::chrono::milliseconds kCollectiveTimeout = std::chrono::days(7);

// Makes the backend of a group. Every member calls it, and members make their groups in the same order;
// `ranks[group_rank]` is the caller.
using MakeBackend = std::function<c10::intrusive_ptr<c10d::Backend>(const std::string& name,
                                                                    const std::vector<int>& ranks, int group_rank)>;

struct GlooSettings {
  std::vector<std::string> addresses{};  // of this host; connections are spread over them
  std::chrono::milliseconds connect_timeout{}, timeout{};
};

// ConfigError when this host cannot listen there.
MakeBackend gloo_backends(std::shared_ptr<Store> store, const GlooSettings& settings);

// The failure board, and not NCCL's own watchdog, decides what happens after an error. In a build without CUDA this
// throws ConfigError, and the version is empty.
MakeBackend nccl_backends(std::shared_ptr<Store> store, int device_index, std::chrono::milliseconds timeout);
std::string nccl_version();

// These two do not keep the tensors of a work of NCCL's. Whether the GPU has completed it, on any thread; and, once it
// has, when the GPU carried it out, in ms after an event that it has passed.
std::function<bool()> completion_of(const c10d::Work& work);
struct DeviceSpan {
  double begin_ms = 0, end_ms = 0;
};
std::function<DeviceSpan(const c10::Event& since)> device_span_of(const c10d::Work& work);

// Calls `done` on one of Gloo's threads when it has completed this work. False for sends and receives, whose completion
// Gloo does not report.
bool tell_completion(c10d::Work& work, std::function<void()> done);

// The unique id of this GPU; empty in a build without CUDA.
std::string gpu_identity(int device_index);

// Lets NCCL connect ranks of one GPU, which it takes for a mistake unless they claim to be on different hosts. They
// then communicate through sockets. Call it before the first group is made.
void share_gpu_over_nccl(int rank, bool one_host);

// The backends that a world can use whose rank r has its tensors on devices[r] ("" = the CPU), the fastest first:
// "nccl" if each rank has its own GPU, "gloo", "nccl-shared" if all are on GPUs.
std::vector<std::string> fitting_backends(const std::vector<std::string>& devices);

// The group's name in the store, where several groups have the same name; and its part of the store.
std::string group_key(const std::string& name, const std::vector<int>& ranks);
c10::intrusive_ptr<c10d::Store> store_of_group(const Store& store, const std::string& name,
                                               const std::vector<int>& ranks);

}  // namespace braid
