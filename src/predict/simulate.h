// Predicts how long a training step of a recipe takes on a machine, and why. Every op of the schedule gets a duration
// (predict/step_times.h), and the player (plan/player.h) runs the schedule in a world where one rank stands for all
// that do the same (predict/reduced_world.h).
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "log/iteration_log.h"
#include "plan/player.h"
#include "predict/data_stats.h"
#include "predict/hardware.h"
#include "predict/reduced_world.h"
#include "run/step_sizes.h"

namespace braid {

// The shares of their speed that operators and links reach, for example under another program.
struct Efficiency {
  double compute = 1, links = 1;
};
HardwareProfile slower(HardwareProfile hardware, const Efficiency& efficiency);

// Returns the sizes of the n-th step of a recipe.
using DrawStep = std::function<StepSizes(const Recipe& recipe, const Topology& topology, int step)>;

struct SimulateOptions {
  int steps = 1;
  DrawStep draw{};                        // default: full_step(), in which all replicas are equal
  bool equal_replicas = false;            // replicas are equal in drawn steps, too, and played as one
  std::optional<ReadingTimes> reading{};  // default: readers never delay a step
};

// Seconds of a step on the average rank of a module.
struct ModuleTimes {
  std::string name{};
  int ranks = 0;
  double compute = 0;
  std::array<double, kCommKinds> exposed{};  // by CommKind: communication that nothing hides
  double waiting = 0;                        // for other ranks, for a core of the host, or for readers of the data

  double communication() const;
};

struct Simulation {
  double iteration_s = 0;               // the mean of all steps
  double spread_s = 0;                  // their standard deviation
  double fastest_s = 0, slowest_s = 0;  // of them
  double tokens_per_s_per_gpu = 0, tflops_per_gpu = 0;
  double bubble = 0;                   // the share of all ranks' time in which they wait
  std::string limiting_module{};       // the module that computes and communicates longest
  double exposed_communication_s = 0;  // of that module
  std::string bound_by{};  // "language: compute", "images: compute", "language: ep communication", "host: cores",
                           // "language: waiting", "images: reading"
  double reading_s = 0;    // of the data set's slowest reader per step; 0 if unknown
  std::vector<ModuleTimes> modules{};  // means of all steps
  int ranks = 0, nodes = 0, played_ranks = 0;
};

// The last step as it was played, on `world.topology` and in seconds.
struct PlayedStep {
  ReducedWorld world;
  Schedule schedule;
  Play play;
};

// Whether drawings of a step show an op: all that takes time but exchanges, which run beside everything.
inline bool is_shown(const Op& op, const OpSpan& span) { return op.kind != Op::Exchange && span.end > span.begin; }

Simulation simulate(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& options = {});
// Also returns the last step.
struct SimulationAndStep {
  Simulation simulation;
  PlayedStep step;
};
SimulationAndStep simulate_and_keep(const Recipe& recipe, const HardwareProfile& hardware,
                                    const SimulateOptions& options = {});

// The gain of `loader.balance: cost`: the same drawn steps, predicted with and without it.
struct BalanceGain {
  double without_s = 0, with_s = 0;  // seconds of an iteration
  int replicas = 1;                  // language replicas that exchange samples

  double share() const { return 1 - with_s / without_s; }  // of `without_s` that is saved
};

// `own` is the simulation of the unchanged recipe. Returns nothing if steps are not drawn (all samples are then equal),
// if the recipe must not move samples, or with more than 1024 language replicas, since a second simulation is needed.
std::optional<BalanceGain> balance_gain(const Recipe& recipe, const HardwareProfile& hardware,
                                        const SimulateOptions& options, const Simulation& own);

}  // namespace braid
