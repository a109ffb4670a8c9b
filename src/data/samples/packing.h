// The sequences of one lane: samples in the data set's order, packed. Every rank that reads a lane sees the same
// sequences in the same order, whether it needs their text or their pictures. Text is tokenized and the headers of
// pictures are read here; pixels are not.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "data/samples/bad_samples.h"
#include "data/samples/data_config.h"
#include "data/samples/token_sequence.h"
#include "data/shards/lane.h"
#include "data/shards/order.h"
#include "data/shards/sample_reader.h"

namespace braid {

// Which samples share a sequence: pure functions of the samples' lengths, so that every reader of a lane packs alike.
using Packs = std::vector<std::vector<std::size_t>>;  // indices into the lengths

// Fills one sequence after the other with the longest sample that still fits. Lengths are at most `capacity`.
Packs pack_greedily(const std::vector<std::int64_t>& lengths, std::int64_t capacity);

// Opens as many sequences as all samples need, and `spare` more, and gives each sample, the longest first, to the
// emptiest: sequences of about equal length. Samples that do not fit there get sequences of their own.
Packs pack_evenly(const std::vector<std::int64_t>& lengths, std::int64_t capacity, int spare);

// `packing`: the recipe's `loader.packing`.
Packs make_packs(const std::vector<std::int64_t>& lengths, std::int64_t capacity, const std::string& packing);

// The order in which packs are used: a random one, since packing sorts by length. Depends only on its arguments.
void shuffle_packs(Packs& packs, std::uint64_t seed, std::uint64_t round);

// Where a picture is. Its bytes are read again when it is decoded, so that buffers of samples stay small.
struct StoredPicture {
  std::string name;
  std::uint64_t offset = 0;  // in the shard
  std::size_t size = 0;
};

struct ReadSample {
  SampleRef ref{};
  const Shard* shard = nullptr;  // of the blend
  int lane = 0;
  std::string key{};
  TokenSequence tokens{};
  std::vector<StoredPicture> pictures{};
  std::size_t stored_bytes = 0;  // of all its parts
};
using Pack = std::vector<ReadSample>;  // one sequence

// What all streams of a reader share. The objects outlive the streams.
struct PackSources {
  std::shared_ptr<const Blend> blend;
  SampleReader& reader;
  const SequenceMaker& sequences;
  const SampleFields& fields;
  BadSamples& bad;
  WorkerPool& pool;
};

// The sequences of one worker of a lane.
class PackStream {
 public:
  // `seed`: of the order of packs.
  PackStream(StreamPtr order, const PackSources& sources, const LoaderConfig& config, std::uint64_t seed);

  // Returns nothing at the end of evaluation, and the call after that starts again; training does not end. DataError if
  // no sample fits.
  std::optional<Pack> next();

  // Restoring continues exactly where save() was called. The samples in the buffer are read again; DataError if one of
  // them can no longer be used.
  void save(StateWriter& state) const;
  void restore(StateReader& state);

 private:
  void refill();
  void select();
  bool fit(TokenSequence& tokens, const Shard& shard, std::int64_t index, const std::string& key);
  std::optional<ReadSample> read(const SampleRef& ref);
  std::vector<ReadSample> read_all(const std::vector<SampleRef>& refs);
  std::vector<ReadSample> read_saved(StateReader& state);
  std::size_t held() const;
  void check_capacity() const;

  const StreamPtr order_;
  const PackSources sources_;
  const std::size_t buffer_;
  const std::string packing_;
  const std::uint64_t seed_;
  bool ended_ = false;
  std::uint64_t round_ = 0;             // selections so far
  std::vector<ReadSample> unpacked_{};  // read, for the next selection
  std::deque<Pack> packs_{};            // of the last selection
};

// What the position of a lane depends on. The fields are those of the recipe.
LaneIdentity pack_lane_identity(const Blend& blend, const SampleFields& fields, const LoaderConfig& config,
                                const OrderConfig& order, int lane, const SequenceSettings& settings);
// What a stored position depends on. DataError if it is damaged.
LaneIdentity identity_of_position(std::string_view position);
// Refuses what PackLane::restore would refuse, with the same errors, except damage behind the identity.
void check_position(const LaneIdentity& identity, std::string_view position);

// The sequences of a lane: those of its workers in turn.
class PackLane {
 public:
  PackLane(const PackSources& sources, const LoaderConfig& config, const OrderConfig& order, int lane);

  // Returns nothing at the end of evaluation; training does not end.
  std::optional<Pack> next() { return workers_.next(); }

  // The same as in Lane, but in hexadecimal digits, which any file can hold.
  std::string save() const;
  void restore(std::string_view state);

 private:
  LaneIdentity identity_;
  InTurn<PackStream> workers_;
};

}  // namespace braid
