// Which rows of an encoder's output go over which edge to the language model, on one rank and for one microbatch of
// samples. Replicas of each module hold equal shares of the samples in dp order, so an edge carries the samples that
// both its ends have: fan-in, fan-out and one-to-one are all that.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/sample_range.h"
#include "plan/schedule.h"

namespace braid {

// The samples of a microbatch of `samples` that the replica of a rank has.
SampleRange samples_of_replica(const Module& module, std::int64_t samples, int global_rank);

// What the encoder's end of an edge sends, or takes back, of its replica's rows.
struct RowSlice {
  std::vector<std::int64_t> counts;  // rows of each sample
  std::int64_t begin = 0, rows = 0;
};

class Bridge {
 public:
  // `samples`: of a microbatch, over all language replicas.
  Bridge(const Topology& topology, const std::vector<Edge>& edges, std::int64_t samples);

  // The samples of the replica that a rank of a module belongs to.
  SampleRange samples_of(int module, int global_rank) const;
  SampleRange shared_samples(int edge) const;

  // Edges from an encoder into a language rank, in the order of their samples.
  std::vector<int> edges_into(int global_rank, int encoder) const;
  // Edges between modules that begin and end on this rank: nothing is sent over them.
  std::vector<int> edges_within(int global_rank, int encoder) const;

  // `counts`: rows of each sample of the edge's encoder replica.
  RowSlice slice(int edge, const std::vector<std::int64_t>& counts) const;

 private:
  const Topology& topology_;
  const std::vector<Edge>& edges_;
  const std::int64_t samples_;
};

}  // namespace braid
