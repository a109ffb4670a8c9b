// What every rank does in one step, as an ordered list: the executor runs exactly this list, the player (plan/player.h)
// proves that it does not deadlock and computes when each op runs, and the drawing shows it.
//
// Each stage runs one forward, one backward (1F1B) once enough microbatches are in flight to keep the later stages
// busy; a rank with several stages of a module interleaves them as Megatron does. Colocated modules share their ranks
// and take turns: the encoders' forwards, the language model, the encoders' backwards.
#pragma once

#include "plan/op.h"

namespace braid {

struct Schedule {
  std::vector<std::vector<Op>> ranks;  // by global rank
};

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options);

// The forwards and backwards of one rank, in order.
std::vector<Op> turns_of(const Topology& topology, const ScheduleOptions& options, int rank);

// The defects of a schedule as sentences; none when:
// - every send has its receive and vice versa, in the same order;
// - it does not deadlock under the strictest reading of NCCL (plan/player.h);
// - every op has its inputs before it runs, at most one op early; each forward of a trained stage has its backward;
// - every trained stage's gradients are complete before the update, and its parameters before its first forward;
// - no rank holds more microbatches of a stage than max_in_flight() allows.
std::vector<std::string> verify(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options);

// make_schedule(), checked; a defect is an internal error.
Schedule verified_schedule(const Topology& topology, const ScheduleOptions& options);

int microbatches_of(const Workload& workload, const Topology& topology);

// The most microbatches of a stage whose forward is done and whose backward is not.
int max_in_flight(const Topology& topology, const ScheduleOptions& options, const Stage& stage);

// What all ranks need to run one step: the edges between stages and the verified schedule.
struct StepPlan {
  StepPlan(const Topology& topology, const ScheduleOptions& options);
  const ScheduleOptions options;
  const std::vector<Edge> edges;
  const Schedule schedule;
};

}  // namespace braid
