// One operation of a schedule.
#pragma once

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

struct Op {
  enum Kind {
    Agree,     // all ranks learn the sizes of the step's microbatches
    Load,      // this rank's share of a microbatch, for a stage that reads it
    Gather,    // complete the stage's updated parameters
    Forward,   // of a stage and microbatch
    Backward,  // likewise
    Exchange,  // transfers that run together
    Reduce,    // sum the stage's gradients over its replicas
    Update,    // update all parameters of this rank, after one gradient norm over all ranks
  };
  Kind kind;
  Stage stage{};                      // of all but Agree, Exchange and Update
  int microbatch = 0;                 // of Load, Forward and Backward
  std::vector<Transfer> transfers{};  // of Exchange
  bool computes() const { return kind == Forward || kind == Backward; }
};

}  // namespace braid
