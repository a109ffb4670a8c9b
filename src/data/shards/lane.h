// The samples of one lane, in Energon's order. A lane is what Energon calls a rank: one of several readers that share
// the samples of a blend. It has several workers and takes their samples in turn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/shards/metadataset.h"
#include "data/shards/order.h"
#include "data/shards/stream_state.h"

namespace braid {

// Which samples of a data set each worker reads, as in Energon: all workers get an equal consecutive share, cut into
// slices at shard borders. Depends only on the total number of workers, not on how ranks group them.

// 0 .. n-1 such that every prefix is spread evenly: for powers of two, with the bits of each index reversed.
std::vector<std::int64_t> bit_reversal(std::int64_t n);

// The range of one worker. `order` is the bit_reversal() of the number of workers: the samples that remain after
// division go to workers in this order, starting after the first `rotation` of it.
std::pair<std::int64_t, std::int64_t> worker_range(std::pair<std::int64_t, std::int64_t> samples,
                                                   const std::vector<std::int64_t>& order, std::int64_t rotation,
                                                   std::int64_t worker);

// The borders of slices of `range`: none crosses a border of `shard_starts`, and each has about `longest` samples.
// Empty if the range is.
std::vector<std::int64_t> slice_borders(std::pair<std::int64_t, std::int64_t> range,
                                        const std::vector<std::int64_t>& shard_starts,
                                        std::optional<std::int64_t> longest);

// Takes items from several streams in turn, and skips those that have ended. A stream has next(), which returns an
// optional item, and serialize().
template <class Stream>
class InTurn {
 public:
  void add(std::unique_ptr<Stream> stream) {
    streams_.push_back(std::move(stream));
    ended_.push_back(false);
  }

  // Returns nothing when all streams have ended; the call after that starts again.
  auto next() -> decltype(std::declval<Stream>().next()) {
    for (std::size_t tried = 0; tried < streams_.size(); ++tried) {
      const std::size_t turn = turn_;
      turn_ = (turn_ + 1) % streams_.size();
      if (ended_[turn]) continue;
      if (auto item = streams_[turn]->next()) return item;
      ended_[turn] = true;
    }
    std::fill(ended_.begin(), ended_.end(), false);
    turn_ = 0;
    return std::nullopt;
  }

  // Sealed with what the streams depend on. restore() continues exactly where save() was called. It refuses the state
  // of other settings or a changed data set with a ConfigError that names the difference, damage with a DataError.
  std::string save(const LaneIdentity& identity) {
    StreamState state;
    serialize(state);
    return seal_state(identity, state);
  }

  void restore(const LaneIdentity& identity, std::string_view sealed) {
    StreamState state = open_state(identity, sealed);
    serialize(state);
    state.expect_end();
  }

 private:
  void serialize(StreamState& state) {
    state.number(turn_, streams_.size() - 1);
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      bool ended = ended_[i];
      state.number(ended, 1);
      ended_[i] = ended;
      streams_[i]->serialize(state);
    }
  }

  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<bool> ended_;  // of each stream
  std::size_t turn_ = 0;
};

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

  // Returns nothing at the end of evaluation; training does not end.
  std::optional<SampleRef> next() { return workers_.next(); }

  // See InTurn.
  std::string save() { return workers_.save(identity_); }
  void restore(std::string_view state) { workers_.restore(identity_, state); }

  const Blend& blend() const { return *blend_; }

 private:
  std::shared_ptr<const Blend> blend_;
  LaneIdentity identity_;
  InTurn<SampleStream> workers_;
};

}  // namespace braid
