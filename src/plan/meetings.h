// Where ranks wait for each other in a schedule: which ranks take part in an op, and how many of them have arrived.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "plan/op.h"

namespace braid {

class Meetings {
 public:
  struct Meeting {
    int came = 0;     // ranks that have arrived
    double last = 0;  // when the last of them did
  };

  Meetings(const Topology& topology, int microbatches) : topology_(topology) {
    std::size_t size = 0;
    for (const Stage& stage : all_stages(topology)) {
      if (stage.index == 0) first_stage_.push_back(first_.size());
      const RankBlock all = ranks_of(topology, stage);
      auto& first = first_.emplace_back();
      for (const auto kind : {Op::Begin, Op::Load, Op::Forward, Op::Backward, Op::EndReduce, Op::Update}) {
        const RankBlock ranks = ranks_at(all.first, {kind, stage});
        const bool repeats = kind == Op::Load || kind == Op::Forward || kind == Op::Backward;
        first[kind] = size;
        if (ranks.size > 1) size += repeats ? all.size / ranks.size * microbatches : 1;
      }
    }
    meetings_.resize(size);
  }

  // The ranks that take part in an op of `rank`, which must meet for it. The ranks of a replica share media when they
  // load them; text they already have. A gather or reduction involves all ranks of its stage; parameters arrive on each
  // rank separately, but gradients are complete only when all have added theirs.
  RankBlock ranks_at(int rank, const Op& op) const {
    const bool reads_text = op.kind == Op::Load && !topology_.module(op.stage.module).is_encoder;
    if (op.kind == Op::EndGather || reads_text) return {rank, 1};
    if (op.kind == Op::Load) return replica_of(topology_, op.stage, rank);
    if (op.computes()) return computes_with(topology_, op.stage, rank);
    return op.has_stage() ? ranks_of(topology_, op.stage) : RankBlock{0, topology_.world_size()};
  }

  // For more than one rank.
  Meeting& at(const Op& op, const RankBlock& ranks) {
    const std::size_t first = first_[number_of(op.stage)][op.kind];
    if (!op.has_stage()) return meetings_[first];
    const RankBlock all = ranks_of(topology_, op.stage);
    return meetings_[first + op.microbatch * (all.size / ranks.size) + (ranks.first - all.first) / ranks.size];
  }

  // A number for each stage of each module.
  std::size_t number_of(const Stage& stage) const { return first_stage_[stage.module] + stage.index; }
  std::size_t stages() const { return first_.size(); }

 private:
  const Topology& topology_;
  std::vector<std::size_t> first_stage_;                    // by module
  std::vector<std::array<std::size_t, Op::kKinds>> first_;  // by stage and kind: index of the first of its meetings
  std::vector<Meeting> meetings_;                           // of a stage and kind: by microbatch and block of ranks
};

}  // namespace braid
