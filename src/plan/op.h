// The operations of a schedule, and what a schedule depends on besides the topology.
#pragma once

#include "plan/pipeline.h"

namespace braid {

// One tensor over an edge: a stage's output for a microbatch, or the gradient of that output on the way back.
struct Transfer {
  enum Kind { Activation, Gradient };
  Kind kind;
  int edge;  // index into make_edges()
  int microbatch;
  bool outgoing;
};

// Gathers and reductions run while the rank goes on with its list; the end of one is an op of its own.
struct Op {
  enum Kind {
    StartGather,  // of the stage's updated parameters, over its replicas
    EndGather,    // all of the stage's parameters have arrived; with overlap, its first forward has awaited them as it
                  // read them
    Begin,        // of the step: all ranks learn the sizes of its microbatches; all gradients are zero
    Load,         // this rank's share of a microbatch, for a stage that reads it
    Forward,      // of a stage and microbatch
    Backward,     // likewise
    Exchange,     // the start of transfers over one channel (plan/channels.h), which run together
    StartReduce,  // the sum of the stage's gradients over its replicas
    EndReduce,    // the stage's gradients are complete
    Update,       // of all parameters of this rank, after one gradient norm over all ranks
  };
  static constexpr int kKinds = Update + 1;
  Kind kind;
  Stage stage{};                      // of all but Begin, Exchange and Update
  int microbatch = 0;                 // of Load, Forward and Backward
  std::vector<Transfer> transfers{};  // of Exchange

  bool computes() const { return kind == Forward || kind == Backward; }
  bool starts_collective() const { return kind == StartGather || kind == StartReduce; }
  bool ends_collective() const { return kind == EndGather || kind == EndReduce; }
  // Whether it awaits the gather or reduction that `start` starts.
  bool ends(const Op& start) const {
    return stage == start.stage &&
           ((kind == EndGather && start.kind == StartGather) || (kind == EndReduce && start.kind == StartReduce));
  }
  bool has_stage() const { return kind != Begin && kind != Exchange && kind != Update; }
};

// In words, for messages.
std::string describe(const Transfer& transfer, const std::vector<Edge>& edges);
std::string describe(const Op& op, const Topology& topology);

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

// The parameter sets of a topology's modules, which can be frozen: "language", "images.encoder", "images.projector".
std::vector<std::string> parameter_set_names(const Topology& topology);

// An encoder with both sets frozen has no backward; if only its projector trains, only its last stage has one.
ScheduleOptions schedule_options(const Topology& topology, const std::vector<std::string>& frozen, int microbatches,
                                 int prefetch);

// Whether a stage has a backward; it then receives the gradient of the output it sends.
bool is_trained(const Topology& topology, const ScheduleOptions& options, const Stage& stage);

// Whether a step ends with an update, for which gradients are reduced and after which parameters are gathered.
bool has_update(const ScheduleOptions& options);

// Whether forwards of a stage read the microbatch besides activations: media, tokens, labels, lengths of sequences.
bool reads_batch(const Topology& topology, const Stage& stage);

}  // namespace braid
