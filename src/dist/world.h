// This rank among all ranks of the run, and the groups it makes with them. A World is handed down explicitly;
// there is no default one.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/group.h"
#include "dist/progress.h"

namespace braid {

class BackendFactory;
class Topology;

class World {
 public:
  // `progress` outlives the world and says what this rank is doing.
  World(int rank, int size, c10::Device device, std::shared_ptr<BackendFactory> backends, Progress& progress);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  c10::Device device() const { return device_; }
  Progress& progress() { return progress_; }

  // Collective over `ranks` (global, ascending, this rank among them). A group of one needs no backend and
  // gets none.
  Group make_group(const std::string& name, const std::vector<int>& ranks);
  // All ranks. The first call connects them, so every rank makes it at the same point.
  const Group& everyone();

 private:
  const int rank_, size_;
  const c10::Device device_;
  std::shared_ptr<BackendFactory> backends_;
  std::map<std::string, int> groups_made_;  // by name: keeps the meetings of equally named groups apart
  // Connections stay open as long as the world: when an exception unwinds a rank, its peers must not see them
  // close before the rank has said what happened.
  std::vector<c10::intrusive_ptr<c10d::Backend>> connections_;
  std::optional<Group> everyone_;
  Progress& progress_;
};

// This rank's process groups of a topology, made in plan order on every rank.
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
