// Which embeddings of an encoder's output go over which edge to the language model, on one rank and for one microbatch.
// The replicas of each module hold equal shares of the samples in dp order, and an edge carries the samples that both
// its ends hold. This covers fan-in, fan-out and one-to-one.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/schedule.h"

namespace braid {

// Consecutive samples of a microbatch.
struct SampleRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// The samples that the rank's replica holds of a microbatch of `samples`.
SampleRange samples_of_replica(const Module& module, std::int64_t samples, int global_rank);

// The slice of its replica's embeddings that the encoder's end of an edge sends, or receives the gradient of.
struct EmbeddingSlice {
  std::vector<std::int64_t> counts;  // embeddings of each sample
  std::int64_t begin = 0, rows = 0;
};

class Bridge {
 public:
  // `samples`: per microbatch, over all language replicas.
  Bridge(const Topology& topology, const std::vector<Edge>& edges, std::int64_t samples);

  // The samples of the replica to which a rank of a module belongs.
  SampleRange samples_of(int module, int global_rank) const;
  SampleRange shared_samples(int edge) const;

  // `counts`: embeddings of each sample of the edge's encoder replica.
  EmbeddingSlice slice(int edge, const std::vector<std::int64_t>& counts) const;

 private:
  const Topology& topology_;
  const std::vector<Edge>& edges_;
  const std::int64_t samples_;
};

}  // namespace braid
