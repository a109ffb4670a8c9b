// The page of a plan: layouts of a recipe with their predicted time and memory, timelines, and what-if questions, which
// the browser answers from what is stored here. `braid plan search` fills in many layouts, `braid plan simulate` one.
// No libtorch here.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace braid {

// A part of an iteration's time. The exposed seconds of all parts add up to the iteration. If a part takes f times as
// long, with f > 1, the iteration gets longer by busy_s * (f - 1) - slack_s, unless that is negative; with f < 1 it
// gets shorter by exposed_s * (1 - f).
struct TimePart {
  std::string name{};       // "language forward", "tp", "gradients"
  std::string link{};       // the class of link that it uses ("NVLink"); empty: none
  double busy_s = 0;        // how long it runs
  double exposed_s = 0;     // how much of that nothing hides
  double slack_s = 0;       // how much longer it may take before the iteration does
  double images_share = 0;  // of its time, 0 to 1: grows with the share of images in the data
};

// A piece of work on a track: ranks compute on one, and communicate on others.
struct PlanSpan {
  int track = 0;
  std::string name{};  // "forward 3"
  std::string kind{};  // one colour each: "language forward", "bridge"
  double begin_s = 0, end_s = 0;
  std::string link{};        // as in TimePart
  double fixed_s = 0;        // of its time: does not depend on the link's speed (latency)
  double images_share = 0;   // as in TimePart
  std::vector<int> after{};  // spans that end before it begins, besides the one before it on its track
};

// Spans of a track follow each other in the order of the list, and `after` names earlier ones of the list. The browser
// replays this order with other durations; time between spans that no dependency explains stays.
struct PlanTimeline {
  std::vector<std::string> tracks{};  // "rank 8 language[pp=0]", "rank 8 gradients"
  std::vector<PlanSpan> spans{};
};

struct PlanStageMemory {
  std::string module{};
  int stage = 0, rank = 0;                              // the fullest of its ranks
  std::vector<std::pair<std::string, double>> bytes{};  // by kind: parameters, moments, activations, ...
  double peak_bytes = 0;
};

struct PlanLayout {
  std::string name{};                                           // "images dp 8, language tp 2 ep 16 dp 32"
  std::vector<std::pair<std::string, std::string>> settings{};  // keys of the recipe and their values
  double iteration_s = 0, spread_s = 0;                         // spread: standard deviation over steps
  double tokens_per_s_per_gpu = 0, tflops_per_gpu = 0;
  double bubble = 0;  // share of the iteration, 0 to 1
  double exposed_communication_s = 0;
  double peak_bytes = 0;  // of the fullest rank
  bool fits = true;
  bool on_front = false;   // no other layout that fits is faster with less memory
  std::string bound_by{};  // "language backward"
  std::string reason{};    // why it wins or loses
  std::vector<TimePart> parts{};
  std::vector<PlanStageMemory> memory{};
  PlanTimeline timeline{};  // may be empty
};

struct PlanPage {
  std::string recipe{}, model{};
  std::string hardware{}, hardware_source{};  // "h100", "datasheet"
  std::int64_t ranks = 0, global_batch = 0;
  double memory_bytes = 0;           // that a rank may use; 0: unknown
  int baseline = -1;                 // the recipe as it is, an index of layouts; -1: not among them
  int best = 0;                      // what the page shows first
  std::vector<std::string> notes{};  // what the reader should know: "datasheet figures, not measured"
  std::vector<PlanLayout> layouts{};
};

// Marks the layouts that fit and that no other one beats in both time and memory.
void mark_front(std::vector<PlanLayout>& layouts);

nlohmann::ordered_json to_json(const PlanPage& page);
std::string plan_html(const PlanPage& page);

}  // namespace braid
