#include "plan/meetings.h"

namespace braid {

Meetings::Meetings(const Topology& topology, int microbatches) : topology_(topology) {
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

RankBlock Meetings::ranks_at(int rank, const Op& op) const {
  const bool reads_text = op.kind == Op::Load && !topology_.module(op.stage.module).is_encoder;
  if (op.kind == Op::EndGather || reads_text) return {rank, 1};
  if (op.kind == Op::Load) return replica_of(topology_, op.stage, rank);
  if (op.computes()) return computes_with(topology_, op.stage, rank);
  return op.has_stage() ? ranks_of(topology_, op.stage) : RankBlock{0, topology_.world_size()};
}

Meetings::Meeting& Meetings::at(const Op& op, const RankBlock& ranks) {
  const std::size_t first = first_[number_of(op.stage)][op.kind];
  if (!op.has_stage()) return meetings_[first];
  const RankBlock all = ranks_of(topology_, op.stage);
  return meetings_[first + op.microbatch * (all.size / ranks.size) + (ranks.first - all.first) / ranks.size];
}

}  // namespace braid
