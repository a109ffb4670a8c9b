// Predicts how long a training step of a recipe takes on a machine, and why. Every op of the schedule gets a duration
// and the player (plan/player.h) runs the schedule in a world where one rank stands for all
// that do the same. No libtorch here.
#pragma once

#include "log/iteration_log.h"
#include "plan/player.h"
#include "predict/hardware.h"
#include "predict/op_time.h"
#include "predict/step_draws.h"
#include "run/step_sizes.h"

namespace braid {

// The shares of their speed that operators and links reach, for example under another program.
struct Efficiency {
  double compute = 1, links = 1;
};
HardwareProfile slower(HardwareProfile hardware, const Efficiency& efficiency);

struct SimulateOptions {
  int steps = 1;
  DrawStep draw{};                        // default: full_step(), in which all replicas are equal
  bool equal_replicas = false;            // replicas are equal in drawn steps, too, and played as one
  std::optional<ReadingTimes> reading{};  // default: readers never delay a step
};

// Seconds of a step on the average rank of a module.
struct ModuleTimes : OpTime {
  std::string name{};
  int ranks = 0;
  double waiting = 0;  // for other ranks, for a core of the host, or for readers of the data
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

// A smaller world whose step takes as long as that of a large one: one rank stands for all that do the same at the same
// time. The ranks of a replica (tensor and context parallel) become one rank; if microbatches have equal sizes, the
// number of replicas shrinks by the same factor in every module. Ranks compute and communicate as in the large world.
struct ReducedWorld {
  std::vector<Module> modules;  // of the large world
  Recipe recipe;                // of the small world
  Topology topology;            // of the small world
  int replicas_of_each = 1;     // replicas for which one of the small world stands

  // The rank of the large world for which a rank of the small one stands in a module of both.
  int full_rank(int module, int rank) const;
  int full_size() const;  // ranks of the large world
};

// `equal_replicas`: all replicas' microbatches have equal sizes. Throws the same ConfigErrors as Topology.
ReducedWorld reduce_world(const Recipe& recipe, bool equal_replicas);

// The last step as it was played, on `world.topology` and in seconds.
struct PlayedStep {
  ReducedWorld world;
  Schedule schedule;
  Play play;
};

Simulation simulate(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& options = {});
// Also returns the last step.
struct SimulationAndStep {
  Simulation simulation;
  PlayedStep step;
};
SimulationAndStep simulate_and_keep(const Recipe& recipe, const HardwareProfile& hardware,
                                    const SimulateOptions& options = {});

// The time of a data set's readers. They read ahead, so a step waits only if the slowest one takes longer than it.
class ReadingTime {
 public:
  ReadingTime(const ReadingTimes& times, const Recipe& recipe, const Topology& topology);

  void add(const StepSizes& step);

  struct Slowest {
    std::string module{};
    double seconds = 0;  // of the mean step
  };
  Slowest slowest() const;

 private:
  const ReadingTimes times_;
  const int threads_, micro_batch_;
  const std::int64_t together_;  // language replicas that exchange samples; each one's reader reads the lanes of all
  const Topology& topology_;
  std::vector<std::vector<double>> seconds_;  // sums over all steps, by module and replica
  int steps_ = 0;
};

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
