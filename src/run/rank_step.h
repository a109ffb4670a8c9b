// Derives what one rank computes and communicates in each op of a training step: the calls of the executor, the layers
// and the optimizer, with their sizes. step_traffic() sums up the bytes, predict/simulate.h the time. Only the
// modules' grids are needed, not process groups, so a rank costs the same in a large world as in a small one. No
// libtorch here.
#pragma once

#include <vector>

#include "comm/progress.h"
#include "optim/parameter_parts.h"
#include "paper/stage.h"
#include "plan/schedule.h"
#include "run/step_sizes.h"

namespace braid {

class RankStep {
 public:
  // `modules` are those of the whole world; `sizes` must include the replicas of this rank and of its peers.
  RankStep(const StepSetup& setup, const std::vector<Module>& modules, const ScheduleOptions& options,
           const StepSizes& sizes, int global_rank);

  // --- ops of stages

  // The leader broadcasts the values of media to the ranks of its stage, which already have the text.
  Collectives load(const Stage& stage, int microbatch) const;
  // The sizes that determine walk(): equal for microbatches that a stage treats alike.
  std::vector<std::int64_t> input_sizes(const Stage& stage, int microbatch) const;
  // The work includes operators that run only in the first microbatch of a step, or only in later ones
  // (in_microbatch()).
  StageOnPaper walk(const Stage& stage, int microbatch) const { return sizes_.walk(stage, microbatch); }
  // On the first stage of the language model, the leader of a replica shares embeddings with its ranks, and sums up
  // their gradients.
  Collectives shared_embeddings(const Stage& stage, int microbatch, bool is_forward) const;
  std::int64_t transfer_bytes(const Edge& edge, int microbatch) const;

  // --- the update

  std::int64_t agreed_bytes() const;  // of the all-reduce over the world
  // The update of a module of this rank. At the end of a step, the ranks of a replica share the batches of the `next`
  // step.
  Collectives update(int module, const StepSizes& next) const;

 private:
  std::int64_t shared_numbers(int m, const StepSizes& next) const;

  const Module& module(int m) const { return sizes_.module(m); }
  std::vector<int> own_stages(int m) const;

  const StepSetup& setup_;
  const ScheduleOptions& options_;
  const RankSizes sizes_;
  const int rank_;
};

// The communication and updates of the optimizers of a rank's parameter sets.
class RankOptimizers {
 public:
  RankOptimizers(const StepSetup& setup, const std::vector<Module>& modules, int global_rank);

  Collectives gathers(const Stage& stage) const { return all_of(stage, &OptimizerCollectives::gathers); }
  Collectives reductions(const Stage& stage) const { return all_of(stage, &OptimizerCollectives::reductions); }
  Collectives replica_sums(const Stage& stage) const { return all_of(stage, &OptimizerCollectives::replica_sums); }
  OptimizerElements elements() const;

 private:
  struct Optimizer {
    int module;
    OptimizerCollectives collectives;
  };
  Collectives all_of(const Stage& stage, Collectives (OptimizerCollectives::*list)(int) const) const;
  std::vector<Optimizer> optimizers_;
};

// A rank's communication in one training step, summed over the ops of the schedule. It equals what Progress::traffic()
// counts during a step, on every rank, for every group and operation; for the experts' all-to-all, only the sums over
// ep x expt_tp are equal (paper/stage.h). Communication outside of steps is not counted: the first exchange of batch
// sizes, log lines, evaluation, checkpoints.
//
// `sizes` are those of the step. At its end, the ranks of a replica share the batches of the `next` one.
TrafficTable step_traffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan,
                          const StepSizes& sizes, const StepSizes& next, int global_rank);

}  // namespace braid
