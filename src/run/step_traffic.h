// What a rank communicates in one training step, on paper: the sum over the ops of the schedule (run/rank_step.h).
// Progress::traffic() counts the same during a step, on every rank, for every group and operation. Of the experts'
// all-to-all, the sums over ep x expt_tp are the same (paper/stage.h). The count leaves out what a run
// does besides steps: the first exchange of batch sizes, log lines, evaluation, checkpoints. No libtorch here.
#pragma once

#include "comm/progress.h"
#include "plan/schedule.h"
#include "run/step_sizes.h"

namespace braid {

// `sizes` are those of the step. At its end, the ranks of a replica share the batches of the `next` one.
TrafficTable step_traffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan,
                          const StepSizes& sizes, const StepSizes& next, int global_rank);

}  // namespace braid
