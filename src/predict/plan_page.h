// How plans are shown. The page of a plan: layouts of a recipe with their predicted time and memory, and timelines.
// `braid plan search` shows many layouts, `braid plan simulate` one, which it can also write as a trace. No libtorch
// here.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "predict/search.h"

namespace braid {

// The parts of an iteration's time, on the average rank of a module or of modules that share ranks.
struct PlanTimes {
  std::string name{};  // "language, 256 ranks"
  std::vector<std::pair<std::string, double>>
      parts{};  // "compute", "tp", "waiting": seconds that add up to an iteration
};

// A piece of work on a track: ranks compute on one, and gather and reduce on another.
struct PlanSpan {
  int track = 0;
  std::string name{};  // "forward 3"
  std::string kind{};  // one colour each: "language forward", "gradients"
  double begin_s = 0, end_s = 0;
};

struct PlanTimeline {
  std::vector<std::string> tracks{};  // "rank 8 language[pp=0]", "rank 8 gathers and reductions"
  std::vector<PlanSpan> spans{};
};

struct PlanStageMemory {
  std::string module{};
  int stage = 0, rank = 0;                              // the fullest of its ranks
  std::vector<std::pair<std::string, double>> bytes{};  // by kind: parameters, moments, activations, ...
  double needed_bytes = 0;                              // the sum of these
};

struct PlanLayout {
  std::string name{};                                           // "images dp 8, language tp 2 ep 16 dp 32"
  std::vector<std::pair<std::string, std::string>> settings{};  // keys of the recipe and their values
  std::string settings_text{};           // "micro batch 2, recompute norms": identifies the layout
  double iteration_s = 0, spread_s = 0;  // spread: standard deviation over steps
  double tokens_per_s_per_gpu = 0, tflops_per_gpu = 0;
  double bubble = 0;  // share of the iteration, 0 to 1
  double exposed_communication_s = 0;
  double needed_bytes = 0;  // of the fullest GPU, or of the host that all ranks share
  double device_bytes = 0;  // the same, with freed memory that the allocator keeps
  bool fits = true;
  bool on_front = false;   // no other layout that fits is faster with less memory
  std::string bound_by{};  // "language backward"
  std::vector<PlanTimes> times{};
  std::vector<PlanStageMemory> memory{};
  PlanTimeline timeline{};  // may be empty
};

struct PlanPage {
  std::string recipe{}, model{};
  std::string hardware{}, hardware_source{};  // "h100", "datasheet"
  std::int64_t ranks = 0, global_batch = 0;
  double memory_bytes = 0;           // capacity of a GPU or of the host
  bool memory_is_shared = false;     // by all ranks of a host
  int baseline = -1;                 // index of the unchanged recipe in layouts; -1: not among them
  int best = 0;                      // index of the layout that the page shows first
  std::vector<std::string> notes{};  // caveats: "datasheet figures, not measured"
  std::vector<PlanLayout> layouts{};
};

// Marks the layouts that fit and that no other layout beats in both time and memory.
void mark_front(std::vector<PlanLayout>& layouts);

nlohmann::ordered_json to_json(const PlanPage& page);
std::string plan_html(const PlanPage& page);

struct PageRecipe {
  std::string name{};  // of the file
  const Recipe& recipe;
  const HardwareProfile& hardware;
  std::string sizes{};  // of samples, in words
};

// A page of one layout with its timeline.
PlanPage page_of(const PageRecipe& about, const SimulationAndStep& simulated);
// A page of the best layouts, the given recipe and the front, in this order; the best ones and the recipe get
// timelines. `steps` are the options they were simulated with.
PlanPage page_of(const PageRecipe& about, const SearchResult& result, const SimulateOptions& steps);

// The same step with times in milliseconds.
Play in_milliseconds(Play play);

// Writes a simulated step as a timeline for Perfetto, in the format of a run's trace (log/trace.h): one row for each
// played rank, with its gathers and reductions below. Throws a ConfigError if the file cannot be written.
void write_trace(const PlayedStep& step, const std::string& path);

}  // namespace braid
