// What every rank does in one step, in order, as data: the executor runs exactly this list, the player on paper proves
// that it ends and tells when everything happens, the drawing shows it.
//
// Each stage runs one forward, one backward (1F1B) once enough microbatches are in flight to keep the stages behind it
// busy; a rank with several stages of a module interleaves them as Megatron does. Colocated modules share their ranks,
// so they take turns: encoders first, then the language model, then the encoders' backward.
#pragma once

#include <string>
#include <vector>

#include "plan/pipeline.h"

namespace braid {

struct ScheduleOptions {
  int microbatches = 1;
  std::vector<std::string> frozen{};                    // modules that have no backward
  std::vector<std::string> frozen_before_last_stage{};  // modules of which only the last stage has one
  bool forward_only = false;                            // no backward anywhere, and no update
  int prefetch = 0;  // how many finished microbatches an encoder may hold back beyond what 1F1B needs
};

// Whether a stage has a backward; it then gets the gradient of what it sends.
bool is_trained(const Topology& topology, const ScheduleOptions& options, const Stage& stage);

// Whether forwards of a stage need tokens, labels or media of the microbatch, besides activations.
bool reads_batch(const Topology& topology, const Stage& stage);

// One tensor over an edge: the output of a stage for a microbatch, or its gradient on the way back.
struct Transfer {
  enum Kind { Activation, Gradient };
  Kind kind;
  int edge;  // index into make_edges()
  int microbatch;
  bool outgoing;
};

struct Op {
  enum Kind {
    Agree,     // all ranks know the sizes of the step's microbatches
    Load,      // this rank's part of a microbatch, for a stage that reads it
    Gather,    // the stage's updated parameters are complete
    Forward,   // of a stage and microbatch
    Backward,  // likewise
    Exchange,  // transfers that run together
    Reduce,    // the stage's gradients are summed over its replicas
    Update,    // of all parameters of this rank, after one gradient norm over all ranks
  };
  Kind kind;
  Stage stage{};                      // of all but Agree, Exchange and Update
  int microbatch = 0;                 // of Load, Forward and Backward
  std::vector<Transfer> transfers{};  // of Exchange
  bool computes() const { return kind == Forward || kind == Backward; }
};

struct Schedule {
  std::vector<std::vector<Op>> ranks;  // by global rank
};

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options);

// What is wrong with a schedule, as sentences; nothing when it is sound:
// - every transfer that goes out comes in, and the other way round, in the same order;
// - it ends under the strictest reading of NCCL (plan/player.h);
// - nothing runs before its input is there, every forward of a stage that is trained has its backward;
// - no rank holds more microbatches of a stage than max_in_flight() allows.
std::vector<std::string> verify(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options);

// make_schedule(), which is a mistake of ours if it is not sound.
Schedule verified_schedule(const Topology& topology, const ScheduleOptions& options);

int microbatches_of(const Workload& workload, const Topology& topology);

// The most microbatches whose forward is done and whose backward is not, in one stage.
int max_in_flight(const Topology& topology, const ScheduleOptions& options, const Stage& stage);

}  // namespace braid
