// The sequences of one lane: samples in the data set's order, packed. Every rank that reads a lane sees the same
// sequences in the same order, whether it needs their text or their pictures. Text is tokenized and the headers of
// pictures are read here; pixels are not.
#pragma once

#include <cstdint>
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

class PackStream;  // the sequences of one worker of a lane

// What all streams of a reader share. The objects outlive the streams.
struct PackSources {
  std::shared_ptr<const Blend> blend;
  SampleReader& reader;
  const SequenceMaker& sequences;
  const SampleFields& fields;
  BadSamples& bad;
  WorkerPool& pool;
};

// What the position of a lane depends on. The fields are those of the recipe.
LaneIdentity pack_lane_identity(const Blend& blend, const SampleFields& fields, const LoaderConfig& config,
                                const OrderConfig& order, int lane, const SequenceSettings& settings);
// The sequences of a lane: those of its workers in turn.
class PackLane {
 public:
  PackLane(const PackSources& sources, const LoaderConfig& config, const OrderConfig& order, int lane);
  ~PackLane();

  // Returns nothing at the end of evaluation, and the call after that starts again; training does not end. DataError if
  // no sample fits.
  std::optional<Pack> next();

  // The same as in Lane. The samples in buffers are read again; DataError if one of them can no longer be used.
  std::string save();
  void restore(std::string_view position);

 private:
  const LaneIdentity identity_;
  const std::unique_ptr<InTurn<PackStream>> workers_;
};

}  // namespace braid
