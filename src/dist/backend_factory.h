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

class BackendFactory {
 public:
  virtual ~BackendFactory() = default;
  // Called by every member of the group; `ranks[group_rank]` is the caller. Members of one group call in the
  // same order.
  virtual c10::intrusive_ptr<c10d::Backend> make(const std::string& name, const std::vector<int>& ranks,
                                                 int group_rank) = 0;
};

// `loopback`: all ranks are on this host, so nothing listens where other hosts could reach it.
std::unique_ptr<BackendFactory> make_gloo_factory(std::shared_ptr<Store> store, bool loopback,
                                                  std::chrono::milliseconds timeout);

// In a build without CUDA this throws ConfigError, and the version is empty.
std::unique_ptr<BackendFactory> make_nccl_factory(std::shared_ptr<Store> store, int device_index,
                                                  std::chrono::milliseconds timeout);
std::string nccl_version();

}  // namespace braid
