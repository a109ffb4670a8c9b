#include "comm/world.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "comm/backend_factory.h"
#include "comm/comm_meter.h"
#include "plan/channels.h"
#include "plan/topology.h"

namespace braid {

World::World(int rank, int size, c10::Device device, std::shared_ptr<BackendFactory> backends, Progress& progress,
             std::shared_ptr<BackendFactory> host_backends)
    : rank_(rank),
      size_(size),
      device_(device),
      backends_(std::move(backends)),
      host_backends_(host_backends ? std::move(host_backends) : backends_),
      progress_(progress),
      meter_(std::make_shared<CommMeter>(device)) {}

World::~World() { progress_.forget_devices(); }

void World::close() {
  for (const auto& connection : connections_) connection->shutdown();
}

Group World::make_group(const std::string& name, const std::vector<int>& ranks, bool on_host) {
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  BRAID_CHECK(self != ranks.end(), "rank {} makes group {} without being in it", rank_, name);
  const int group_rank = static_cast<int>(self - ranks.begin());
  const c10::Device device = on_host ? c10::Device(c10::kCPU) : device_;
  if (ranks.size() == 1) return Group(name, {rank_}, 0, device, nullptr, progress_);

  const std::string instance = fmt::format("{}@{}", name, ++groups_made_[group_key(name, ranks)]);
  auto scope = progress_.meet("connect", {{name, ranks}});
  try {
    connections_.push_back((on_host ? host_backends_ : backends_)->make(instance, ranks, group_rank));
    return Group(name, ranks, group_rank, device, connections_.back(), progress_, meter_);
  } catch (const c10::Error& e) {
    throw CommError(fmt::format("connecting group {}: {}", name, e.what_without_backtrace()));
  } catch (const std::runtime_error& e) {
    throw CommError(fmt::format("connecting group {}: {}", name, e.what()));
  }
}

const Group& World::everyone() {
  if (!everyone_) {
    std::vector<int> ranks(static_cast<std::size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    everyone_ = make_group("world", ranks);
    everyone_->barrier();
  }
  return *everyone_;
}

Groups::Groups(World& world, const Topology& topology) : world_(world.everyone()) {
  const std::vector<GroupSpec> channels = make_channel_groups(topology);
  for (const std::vector<GroupSpec>* specs : {&topology.groups(), &channels})
    for (const GroupSpec& spec : *specs)
      if (spec.connected && std::binary_search(spec.ranks.begin(), spec.ranks.end(), world.rank()))
        by_name_.emplace(spec.name, world.make_group(spec.name, spec.ranks, spec.on_host));
}

const Group& Groups::get(const std::string& module, const std::string& key) const {
  const auto group = by_name_.find(module + "." + key);
  BRAID_CHECK(group != by_name_.end(), "rank {} is in no group {}.{}", world_.rank(), module, key);
  return group->second;
}

}  // namespace braid
