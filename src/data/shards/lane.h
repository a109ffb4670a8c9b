// The samples of one lane, in Energon's order. A lane is what Energon calls a rank: one of several readers that share
// the samples of a blend. It has several workers and takes their samples in turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/shards/in_turn.h"
#include "data/shards/lane_state.h"
#include "data/shards/metadataset.h"
#include "data/shards/order.h"

namespace braid {

struct OrderConfig {
  int lanes = 1;
  int workers = 1;  // of each lane; 0 means 1, as in Energon
  std::int64_t seed = 0;
  bool is_training = true;                                 // otherwise each sample once, in the order of the shards
  std::int64_t shuffle_buffer = 0;                         // samples per worker; below 2: none
  std::optional<std::int64_t> max_samples_per_sequence{};  // how many are read in a row; nothing: a shard's
};

// The order of one worker, counted over all lanes. ConfigError when it would have no samples at all.
StreamPtr worker_order(std::shared_ptr<const Blend> blend, const OrderConfig& config, std::int64_t global_worker);

int workers_of(const OrderConfig& config);                       // of each lane
std::int64_t first_worker(const OrderConfig& config, int lane);  // counted over all lanes
// ConfigError if there is no such lane, or the config is invalid.
void check_order(const OrderConfig& config, int lane);
// What the state of a lane depends on; the names of settings are the recipe's keys. ConfigError as above.
LaneIdentity lane_identity(const Blend& blend, const OrderConfig& config, int lane);

class Lane {
 public:
  Lane(std::shared_ptr<const Blend> blend, const OrderConfig& config, int lane);

  // Nothing at the end of evaluation; training does not end.
  std::optional<SampleRef> next() { return workers_.next(); }

  // A short text of bytes, with a checksum. restore() continues exactly where save() was called. It refuses the state
  // of other settings or a changed data set with a ConfigError that names the difference, damage with a DataError.
  std::string save() const;
  void restore(std::string_view state);

  const Blend& blend() const { return *blend_; }

 private:
  std::shared_ptr<const Blend> blend_;
  LaneIdentity identity_;
  InTurn<SampleStream> workers_;
};

}  // namespace braid
