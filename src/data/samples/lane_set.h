// A data set as all readers of a process share it, and the lanes that one reader follows.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/samples/packing.h"
#include "data/samples/picture_plan.h"

namespace braid {

struct LaneSetOptions {
  DataConfig data{};
  LoaderConfig loader{};
  std::string split{};
  bool is_training = true;  // otherwise each sample once, then again from the start
  int lanes = 1;
  std::int64_t sequence_length = 0;
  std::int64_t seed = 0;
  std::vector<MediaToken> media{};      // of all encoders, in the topology's order
  std::optional<VisionInput> vision{};  // none: samples with pictures are refused
  std::shared_ptr<BadSamples> bad{};    // of the run; none: the set counts its own, and names none
  // Between attempts to read a shard after an error of the system; the run ends if the last attempt fails.
  ReadPauses read_pauses = usual_read_pauses();
};

OrderConfig order_of(const LaneSetOptions& options);

// ConfigError if lanes of this data set cannot continue at these positions, by lane, because settings or the data set
// have changed. All positions depend on the same, so the first stands for all; DataError if it is damaged.
void check_positions(const LaneSetOptions& options, const Blend& blend, const SequenceSettings& settings,
                     const std::vector<std::string>& positions);

// Safe to use by several threads at once.
struct LaneSet {
  static constexpr std::size_t kMostOpenShards = 64;  // per process

  // Opens the data set and the tokenizer. ConfigError if they are missing, or do not fit the model.
  explicit LaneSet(LaneSetOptions given);

  OrderConfig order() const { return order_of(options); }

  const LaneSetOptions options;
  const std::shared_ptr<BadSamples> bad;
  const std::shared_ptr<const Blend> blend;
  mutable SampleReader reader;
  const SequenceMaker sequences;
};

// The lanes of some consecutive language replicas. A replica's sequences come from its lanes in turn.
class ReplicaLanes {
 public:
  struct Replicas {
    int first = 0, count = 1, all = 1;
  };

  // `positions`: by lane, of all; empty: from the start.
  ReplicaLanes(std::shared_ptr<const LaneSet> set, const Replicas& replicas, const std::vector<std::string>& positions);

  // The next sequence of a replica, counted from the first one here.
  Pack next(int replica);

  struct Position {
    int lane;
    std::string text;
  };
  std::vector<Position> positions(int replica) const;  // of its lanes

  BadSamples& bad() { return *set_->bad; }
  WorkerPool& pool() { return pool_; }

 private:
  const std::shared_ptr<const LaneSet> set_;
  const int per_replica_, first_lane_;
  WorkerPool pool_;
  std::vector<std::unique_ptr<PackLane>> lanes_{};
  // Which lane of each replica is next. It is not part of a position: a step takes equally many from each lane.
  std::vector<int> turns_;
};

}  // namespace braid
