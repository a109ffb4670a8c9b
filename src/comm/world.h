// This rank among all ranks of the run, and the groups it creates with them.
#pragma once

#include <c10/core/Device.h>
#include "comm/backend_factory.h"
#include "comm/group.h"
#include "comm/progress.h"

namespace braid {

class CommMeter;
class Topology;

class World {
 public:
  // `progress` must outlive the world. `host_backends` serve groups whose tensors are in host memory; none: `backends`
  // do.
  World(int rank, int size, c10::Device device, MakeBackend backends, Progress& progress,
        MakeBackend host_backends = nullptr);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  c10::Device device() const { return device_; }
  Progress& progress() { return progress_; }
  CommMeter& meter() { return *meter_; }  // of all its groups

  // The run has succeeded: closes all connections. Without it, after a failure, they stay as they are.
  void close();

  // Collective over `ranks` (global, ascending, this rank among them). A group of one has no backend.
  Group make_group(const std::string& name, const std::vector<int>& ranks, bool on_host = false);
  // The group of all ranks. The first call connects them, so every rank must make it at the same point.
  const Group& everyone();

 private:
  const int rank_, size_;
  const c10::Device device_;
  const MakeBackend backends_, host_backends_;
  std::map<std::string, int> groups_made_;  // by name and ranks: distinguishes groups that have both in common
  // Connections stay open as long as the world exists: when an exception unwinds a rank, its peers must not see them
  // close before the rank has reported the error.
  std::vector<c10::intrusive_ptr<c10d::Backend>> connections_;
  std::optional<Group> everyone_;
  Progress& progress_;
  const std::shared_ptr<CommMeter> meter_;
};

// This rank's connected process groups of a topology, created in plan order on every rank.
class Groups {
 public:
  Groups(World& world, const Topology& topology);

  const Group& world() const { return world_; }
  // The group over `key` ("tp", "dp-cp") of a module that runs on this rank.
  const Group& get(const std::string& module, const std::string& key) const;

 private:
  Group world_;
  std::map<std::string, Group> by_name_;
};

}  // namespace braid
