// Where ranks wait for each other in a schedule: which ranks take part in an op, and how many of them have arrived.
#pragma once

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
      if (stage.index == 0) first_stage_.push_back(stages_.size());
      const Module& module = topology.module(stage.module);
      const RankBlock all = ranks_of(topology, stage);
      const int replica = module.dense.size_of("tp") * module.dense.size_of("cp");
      const int expert = module.expert.size_of("expt_tp") * module.expert.size_of("ep");
      auto& first = stages_.emplace_back(StageRanks{all, replica, std::lcm(replica, expert)}).first_meeting;
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
    if (!op.has_stage()) return {0, topology_.world_size()};
    const bool reads_text = op.kind == Op::Load && !topology_.module(op.stage.module).is_encoder;
    if (op.kind == Op::EndGather || reads_text) return {rank, 1};
    const StageRanks& stage = stages_[number_of(op.stage)];
    const int size = op.kind == Op::Load ? stage.replica : op.computes() ? stage.computing : stage.all.size;
    return {stage.all.first + (rank - stage.all.first) / size * size, size};
  }

  // For more than one rank.
  Meeting& at(const Op& op, const RankBlock& ranks) {
    const StageRanks& stage = stages_[number_of(op.stage)];
    const std::size_t first = stage.first_meeting[op.kind];
    if (!op.has_stage()) return meetings_[first];
    return meetings_[first + op.microbatch * (stage.all.size / ranks.size) +
                     (ranks.first - stage.all.first) / ranks.size];
  }

  // A number for each stage of each module.
  std::size_t number_of(const Stage& stage) const { return first_stage_[stage.module] + stage.index; }
  std::size_t stages() const { return stages_.size(); }

 private:
  // tp and cp vary fastest in the dense view, expt_tp and ep in the expert view, so the ranks with which one rank has
  // collectives in a forward or backward are a block of consecutive ranks. Waiting is transitive: a rank waits for all
  // ranks that members of its blocks wait for.
  struct StageRanks {
    RankBlock all;
    int replica, computing;                                  // how many ranks are in such a block
    std::array<std::size_t, Op::kKinds> first_meeting = {};  // by kind: index into meetings_
  };

  const Topology& topology_;
  std::vector<std::size_t> first_stage_;  // by module
  std::vector<StageRanks> stages_;
  std::vector<Meeting> meetings_;  // of a stage and kind: by microbatch and block of ranks
};

}  // namespace braid
