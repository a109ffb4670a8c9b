// Measures how fast Braid's own operators are on this machine, and collectives among the ranks of this host, called as
// training calls them; fits the parameters of a hardware profile to the measurements. No libtorch here.
#pragma once

#include "base/terminal.h"
#include "predict/hardware.h"

namespace braid {

struct GpuFacts {
  std::string name;
  std::int64_t memory_bytes = 0;
};
GpuFacts gpu_facts();  // describes the first GPU

struct CalibrationOptions {
  DeviceChoice device = DeviceChoice::Cuda;
  double seconds = 25;  // spent on measuring operators; a few rounds through all of them always run
};

// Measures the speeds of operators and the host's time to start them. `report` receives what is measured next.
HardwareProfile calibrate(const CalibrationOptions& options, const std::function<void(const std::string&)>& report,
                          const TellProgress& tell);

// --- collectives

class World;

struct CollectiveCase {
  std::string operation{};  // see Collective::operation
  int ranks = 2;            // ranks in the group, all on one host
  std::int64_t bytes = 0;   // see Collective::bytes
};

struct MeasuredCollective {
  CollectiveCase call{};
  double seconds = 0;  // CPU time of the rank's process
  double elapsed = 0;  // wall time
};

struct CollectiveTimes {
  double layers_s = 0;  // time of the layers between the calls
  double crowding = 1;  // CPU time of the layers with all ranks running, divided by that with one rank per core
  std::vector<MeasuredCollective> calls{};
};

// A rank's measurements with and without calls between layers.
struct CollectiveRuns {
  struct Seconds {
    double computed = 0, elapsed = 0;  // CPU time of the rank's process, wall time
  };
  struct Pair {
    Seconds without, with;
  };
  struct Round {
    Seconds few{}, all{};       // without calls: one rank per core runs the layers, then all ranks do
    std::vector<Pair> cases{};  // without and with the calls of each case
  };
  int ranks = 2, cores = 0;
  int calls = 0;  // calls between the layers of one run
  std::vector<CollectiveCase> cases{};
  std::vector<Round> rounds{};
};

// Takes medians over all rounds. A shared machine's speed changes from second to second, so each run with calls is
// measured relative to the run without calls just before it. There is no crowding if every rank has a core.
CollectiveTimes times_of(const CollectiveRuns& runs);

// The cases for fit_collectives(): small messages of each operation, gathers of several sizes.
std::vector<CollectiveCase> collective_cases(int ranks);

// Sets collective_us, collective_cpu and the links of a profile whose cores are set, so that predict/op_time.h
// reproduces these times as closely as possible. An operation pays for one call, but its number of successive messages
// grows with the group; so groups of different sizes must be measured to separate the two latencies.
void fit_collectives(const std::vector<MeasuredCollective>& measured, HardwareProfile& profile);

// Measures each case `rounds` times. A rank computes a small layer before each call, so that its threads fall asleep
// and wake up, and caches are as cold after a call as in training. Every rank of `world` must call this. `few` is valid
// only on the first `cores` ranks. `after_round` is also called after the warm-up round.
CollectiveRuns measure_collectives(
    World& world, int cores, const std::vector<CollectiveCase>& cases, int rounds,
    const std::function<void()>& after_round = [] {});

// Runs in each rank that the launcher started: measures collective_cases(); rank 0 writes the result to `path`.
void measure_collectives_as_rank(const std::string& path, int cores);
CollectiveTimes read_collectives(const std::string& path);

// Scales the calls' times to the operator speeds in `profile`, since the machine's speed may have changed in between.
std::vector<MeasuredCollective> at_speed_of(const HardwareProfile& profile, const CollectiveTimes& times);

}  // namespace braid
