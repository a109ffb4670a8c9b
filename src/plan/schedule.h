// What every rank does in one step, as an ordered list: the executor runs exactly this list, the player (plan/player.h)
// proves that it does not deadlock and computes when each op runs, and the drawing shows it.
//
// Each stage runs one forward, one backward (1F1B) once enough microbatches are in flight to keep the later stages
// busy; a rank with several stages of a module interleaves them as Megatron does. Colocated modules share their ranks
// and take turns: the encoders' forwards, the language model, the encoders' backwards.
#pragma once

#include <string>
#include <vector>

#include "plan/op.h"
#include "plan/pipeline.h"

namespace braid {

struct ScheduleOptions {
  int microbatches = 1;
  std::vector<std::string> frozen{};                    // modules without a backward
  std::vector<std::string> frozen_before_last_stage{};  // modules of which only the last stage has a backward
  bool forward_only = false;                            // no backward anywhere, and no update
  bool updates = true;                                  // false: no update, so no reductions and no gathers either
  bool overlap_reduce = false;                          // a stage's gradients are reduced during its last backward
  bool overlap_gather = false;                          // updated parameters arrive while the next step begins
  int prefetch = 0;  // how many finished microbatches an encoder may hold beyond what 1F1B needs
};

// Whether a stage has a backward; it then receives the gradient of the output it sends.
bool is_trained(const Topology& topology, const ScheduleOptions& options, const Stage& stage);

// Whether a step ends with an update, for which gradients are reduced and after which parameters are gathered.
bool has_update(const ScheduleOptions& options);

// Whether forwards of a stage read the microbatch besides activations: media, tokens, labels, lengths of sequences.
bool reads_batch(const Topology& topology, const Stage& stage);

struct Schedule {
  std::vector<std::vector<Op>> ranks;  // by global rank
};

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options);

// The defects of a schedule as sentences; none when:
// - every send has its receive and vice versa, in the same order;
// - it does not deadlock under the strictest reading of NCCL (plan/player.h);
// - every op has its inputs before it runs, and every forward of a trained stage has its backward;
// - every trained stage's gradients are complete before the update, and its parameters before its first forward;
// - no rank holds more microbatches of a stage than max_in_flight() allows.
std::vector<std::string> verify(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options);

// make_schedule(), checked; a defect is an internal error.
Schedule verified_schedule(const Topology& topology, const ScheduleOptions& options);

int microbatches_of(const Workload& workload, const Topology& topology);

// The most microbatches of a stage whose forward is done and whose backward is not.
int max_in_flight(const Topology& topology, const ScheduleOptions& options, const Stage& stage);

}  // namespace braid
