// Predicts a rank's communication in one training step by summing over the ops of the schedule (run/rank_step.h). It
// equals what Progress::traffic() counts during a step, on every rank, for every group and operation; for the experts'
// all-to-all, only the sums over ep x expt_tp are equal (paper/stage.h). Communication outside of steps is not counted:
// the first exchange of batch sizes, log lines, evaluation, checkpoints. No libtorch here.
#pragma once

#include "comm/progress.h"
#include "plan/schedule.h"
#include "run/step_sizes.h"

namespace braid {

// `sizes` are those of the step. At its end, the ranks of a replica share the batches of the `next` one.
TrafficTable step_traffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan,
                          const StepSizes& sizes, const StepSizes& next, int global_rank);

}  // namespace braid
