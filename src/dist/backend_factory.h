// Where process groups come from: Gloo or NCCL between processes, memory between threads.
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

// The watchdog (dist/failure_board.h) names a hang long before a collective's own time-out could hide it; that one also
// counts the time in which the run is stopped.
inline constexpr std::chrono::milliseconds kCollectiveTimeout = std::chrono::days(7);

class BackendFactory {
 public:
  virtual ~BackendFactory() = default;
  // Called by every member of the group; `ranks[group_rank]` is the caller. Members of one group call in the
  // same order.
  virtual c10::intrusive_ptr<c10d::Backend> make(const std::string& name, const std::vector<int>& ranks,
                                                 int group_rank) = 0;
};

// Where a rank's Gloo listens, and how long it waits.
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

// What tells this GPU from every other one; empty in a build without CUDA.
std::string gpu_identity(int device_index);

// Which transport fits a world whose rank r has its tensors on devices[r] ("" = the CPU): NCCL when each rank has a GPU
// of its own, else Gloo.
std::string fitting_backend(const std::vector<std::string>& devices);

// How a group is called in a store, where several have the same name.
std::string group_key(const std::string& name, const std::vector<int>& ranks);

}  // namespace braid
