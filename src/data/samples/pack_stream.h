// The sequences of one worker of a lane: samples in the data set's order, packed. Text is tokenized and the headers of
// pictures are read here; pixels are not.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "data/samples/bad_samples.h"
#include "data/samples/data_config.h"
#include "data/samples/token_sequence.h"
#include "data/shards/order.h"
#include "data/shards/sample_reader.h"

namespace braid {

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

class PackStream {
 public:
  // `seed`: of the order of packs.
  PackStream(StreamPtr order, const PackSources& sources, const LoaderConfig& config, std::uint64_t seed);

  // Nothing at the end of evaluation, and the call after that starts again; training does not end. DataError if no
  // sample fits.
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

}  // namespace braid
