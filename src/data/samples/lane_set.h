// The packed sequences of lanes. Every rank that reads a lane sees the same sequences in the same order, whether it
// needs their text or their pictures. Text is tokenized and the headers of pictures are read here; pixels are not.
// Damaged samples are skipped and counted.
#pragma once

#include "base/files.h"
#include "base/worker_pool.h"
#include "data/samples/data_config.h"
#include "data/samples/token_sequence.h"
#include "data/shards/data_set.h"
#include "data/shards/lane.h"

namespace braid {

// Identifies a sample by its shard's path and its index there, also if its key cannot be read. It has 53 bits, so that
// a double holds it exactly.
using SampleId = std::uint64_t;
SampleId id_of_sample(const Shard& shard, std::int64_t index);

inline constexpr const char* kAdviceOnLength = "use a longer data.sequence_length, or data.over_long=truncate";

// Counts samples that are skipped or cut. It names each damaged one, and ends the run when there are too many. It
// names the first of each other kind, and keys and parts of samples that nothing uses. All calls may come from several
// threads at once.
class BadSamples {
 public:
  using Say = std::function<void(const std::string& text)>;

  // `say` gets a line for each damaged sample. `say_first` gets one for each name that samples have and nothing uses,
  // and for the first sample of each kind of Unfit. They are not called by two threads at once.
  BadSamples(std::int64_t limit, Say say, Say say_first = nullptr)
      : limit_(limit), say_(std::move(say)), say_first_(std::move(say_first)) {}

  // A damaged sample, with its name for messages: a key in quotes. It counts once, however often epochs and readers
  // meet it. DataError if there are more than the limit.
  void add(const DataSet& data, const SampleRef& ref, const std::string& name, const std::string& reason);
  // What `braid data inspect` needs to find the same reasons, for the message of that error.
  void set_inspect_flags(std::string flags) {
    const std::lock_guard lock(mutex_);
    inspect_flags_ = std::move(flags);
  }
  void say(const std::string& text) const {  // a line of its own, about no sample
    const std::lock_guard lock(mutex_);
    if (say_) say_(text);
  }
  std::set<SampleId> damaged() const { return locked(damaged_); }
  std::int64_t count() const { return std::ssize(damaged()); }

  // Says once of each name that it is not used, with the first sample that has it.
  bool says_unused() const { return say_first_ != nullptr; }
  void add_unused(const std::vector<std::string>& names, const std::string& sample, const Shard& shard);

  // There may be any number of these. Of each kind, the first million counts once each, and the others as often as they
  // are met. `tokens`: all of the sample.
  void add(Unfit kind, const Shard& shard, std::int64_t index, const std::string& key, std::int64_t tokens);
  std::int64_t count(Unfit kind) const { return locked(of(kind).count); }
  std::set<SampleId> ids(Unfit kind) const { return locked(of(kind).ids); }  // of the first million

  std::string why_none_is_left() const;  // for a message about a reader that has found no sample to use

 private:
  struct UnfitSamples {
    std::set<SampleId> ids{};
    std::int64_t count = 0;
  };
  const UnfitSamples& of(Unfit kind) const { return unfit_[static_cast<std::size_t>(kind)]; }
  template <class Value>
  Value locked(const Value& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  const std::int64_t limit_;
  const Say say_, say_first_;
  mutable std::mutex mutex_{};
  std::set<SampleId> damaged_{};
  std::set<std::string> unused_{};
  std::string first_damaged_{}, inspect_flags_{};
  std::array<UnfitSamples, 3> unfit_{};  // by kind
};

// Which samples share a sequence: pure functions of the samples' lengths, so that every reader of a lane packs alike.
using Packs = std::vector<std::vector<std::size_t>>;  // indices into the lengths

// Fills one sequence after the other with the longest sample that still fits. Lengths are at most `capacity`.
Packs pack_greedily(const std::vector<std::int64_t>& lengths, std::int64_t capacity);

// Opens as many sequences as all samples need, and `spare` more, and gives each sample, the longest first, to the
// emptiest: sequences of about equal length. Samples that do not fit there get sequences of their own.
Packs pack_evenly(const std::vector<std::int64_t>& lengths, std::int64_t capacity, int spare);

Packs make_packs(const std::vector<std::int64_t>& lengths, std::int64_t capacity, Packing packing);

// The order in which packs are used: a random one, since packing sorts by length. Depends only on its arguments.
void shuffle_packs(Packs& packs, std::uint64_t seed, std::uint64_t round);

struct ReadSample {
  SampleRef ref{};
  const Shard* shard = nullptr;  // of the blend
  int lane = 0;
  std::string key{};
  TokenSequence tokens{};
  std::vector<StoredPart> pictures{};  // read again when they are decoded, so that buffers of samples stay small
  std::size_t stored_bytes = 0;        // of all its parts
};
using Pack = std::vector<ReadSample>;  // one sequence

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

// A data set as all readers of a process share it. Safe to use by several threads at once.
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

// One picture. The sample outlives it.
struct PictureJob {
  const ReadSample* sample;
  std::span<const MediaPlan> inputs;
  std::int64_t first_patch, patches;  // among those of all jobs
};

// The patches of a sample follow those of the jobs before it.
void add_picture_jobs(const ReadSample& sample, std::vector<PictureJob>& jobs);
inline std::int64_t patches_of(const std::vector<PictureJob>& jobs) {
  return jobs.empty() ? 0 : jobs.back().first_patch + jobs.back().patches;
}

// Writes the picture's patches into `rows`, [patches of all jobs, 3 * patch * patch]. A picture whose header is fine
// may still be damaged: then its rows become zeros and the sample is reported. Returns whether it is fine.
bool decode_into(std::span<std::uint8_t> rows, const PictureJob& job, const LaneSet& set);

// The sequences of a lane: those of its workers in turn. next() returns nothing at the end of evaluation; training does
// not end. DataError if no sample fits. restore() reads the samples in buffers again; DataError if one of them can no
// longer be used. The set and the pool outlive the lane.
struct PackLane : InTurn<Pack> {
  PackLane(const LaneSet& set, WorkerPool& pool, const OrderConfig& order, int lane);
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

  std::vector<std::pair<int, std::string>> positions(int replica) const;  // of its lanes, by their numbers

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
