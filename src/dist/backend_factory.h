// Creates process groups: Gloo or NCCL between processes, memory between threads.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}

namespace braid {

class Store;

// Long, so that the watchdog (dist/failure_board.h) names a hang before a collective's own time-out hides it. Time in
// which the run is suspended counts towards this time-out too.
inline constexpr std::chrono::milliseconds kCollectiveTimeout = std::chrono::days(7);

class BackendFactory {
 public:
  virtual ~BackendFactory() = default;
  // Called by every member of the group; `ranks[group_rank]` is the caller. Members must create their groups in the
  // same order.
  virtual c10::intrusive_ptr<c10d::Backend> make(const std::string& name, const std::vector<int>& ranks,
                                                 int group_rank) = 0;
};

// The addresses on which a rank's Gloo listens, and its connect time-out.
struct GlooSettings {
  std::vector<std::string> addresses{};  // of this host; connections are spread over them
  std::chrono::milliseconds connect_timeout{}, timeout{};
};

// ConfigError when this host cannot listen there.
std::unique_ptr<BackendFactory> make_gloo_factory(std::shared_ptr<Store> store, const GlooSettings& settings);

// In a build without CUDA this throws ConfigError, and the version is empty.
std::unique_ptr<BackendFactory> make_nccl_factory(std::shared_ptr<Store> store, int device_index,
                                                  std::chrono::milliseconds timeout);
std::string nccl_version();

// The unique id of this GPU; empty in a build without CUDA.
std::string gpu_identity(int device_index);

// The backend for a world whose rank r has its tensors on devices[r] ("" = the CPU): NCCL when each rank has its own
// GPU, else Gloo.
std::string fitting_backend(const std::vector<std::string>& devices);

// The group's name in the store, where several groups have the same name.
std::string group_key(const std::string& name, const std::vector<int>& ranks);

}  // namespace braid
