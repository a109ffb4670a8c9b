// One operation of a schedule.
#pragma once

#include <string>
#include <vector>

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
  bool has_stage() const { return kind != Begin && kind != Exchange && kind != Update; }
};

// In words, for messages.
std::string describe(const Transfer& transfer, const std::vector<Edge>& edges);
std::string describe(const Op& op, const Topology& topology);

}  // namespace braid
