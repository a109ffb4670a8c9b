// What every rank does in one step, in order, as data: the executor runs exactly this list, the verifier proves that it
// ends, the drawing shows it.
//
// All modules form one pipeline: the encoders, which end together, then the language model. Each stage runs one
// forward, one backward (1F1B) once enough microbatches are under way to keep the stages behind it busy. Colocated
// modules share their ranks, so they take turns instead: encoders first, then the language model, then the encoders'
// backward.
#pragma once

#include <string>
#include <vector>

#include "plan/topology.h"

namespace braid {

struct ScheduleOptions {
  int microbatches = 1;
  std::vector<std::string> frozen{};                    // modules that have no backward
  std::vector<std::string> frozen_before_last_stage{};  // modules of which only the last stage has one
  int prefetch = 0;  // how many finished microbatches an encoder may hold back beyond what 1F1B needs
};

// Whether a stage has a backward; it then gets the gradient of what it sends.
bool is_trained(const Topology& topology, const ScheduleOptions& options, int module, int stage);

// Where activations go from one rank to another (or to itself, when modules share ranks); gradients come back.
struct Edge {
  int from_module, from_rank;  // modules are indices into topology.modules()
  int to_module, to_rank;
  bool crosses_modules() const { return from_module != to_module; }
};

// From each stage to the next, rank by rank; from the first rank of each encoder replica's last stage to the first rank
// of every language replica that has samples in common with it.
std::vector<Edge> make_edges(const Topology& topology);

// One tensor over an edge: what a stage made of a microbatch, or its gradient on the way back.
struct Transfer {
  enum Kind { Activation, Gradient };
  Kind kind;
  int edge;  // index into make_edges()
  int microbatch;
  bool outgoing;
};

struct Op {
  enum Kind { Forward, Backward, Exchange };
  Kind kind;
  int module = 0;                     // index into topology.modules(), of Forward and Backward
  int microbatch = 0;                 // likewise
  std::vector<Transfer> transfers{};  // of Exchange: they run together
};

struct Schedule {
  std::vector<std::vector<Op>> ranks;  // by global rank
};

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options);

// What is wrong with a schedule, as sentences; nothing when it is sound:
// - every transfer that goes out comes in, and the other way round;
// - it ends under the strictest reading of NCCL: an exchange is over when all its transfers have met their other side;
// - nothing runs before its input is there, every forward of a module that is trained has its backward;
// - no rank holds more microbatches of a module than max_in_flight() allows.
std::vector<std::string> verify(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options);

// make_schedule(), which is a mistake of ours if it is not sound.
Schedule verified_schedule(const Topology& topology, const ScheduleOptions& options);

int microbatches_of(const Workload& workload, const Topology& topology);

// The most microbatches whose forward is done and whose backward is not, on a rank that runs this stage.
int max_in_flight(const Topology& topology, const ScheduleOptions& options, int module, int stage);

}  // namespace braid
