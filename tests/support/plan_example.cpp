#include "support/plan_example.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace braid::testing {
namespace {

struct Choice {
  int tp = 1, pp = 1, encoder_ranks = 4;
  bool recompute = false;
};

// One pipeline: the encoder, then the stages of the language model, with 1F1B. Spans are added in an order in which
// every span follows those it waits for, and begin as early as these allow.
class Pipeline {
 public:
  Pipeline(const Choice& choice, int microbatches) : choice_(choice), microbatches_(microbatches) {
    timeline_.tracks = {"rank 0 images"};
    for (int stage = 0; stage < choice.pp; ++stage)
      timeline_.tracks.push_back(fmt::format("rank {} language[pp={}]", 4 + 4 * stage, stage));
    timeline_.tracks.push_back("bridge");
    timeline_.tracks.push_back("gradients");
    free_at_.assign(timeline_.tracks.size(), 0);
  }

  PlanTimeline build() {
    const int stages = choice_.pp + 1;
    std::vector<int> forwards(stages, 0), backwards(stages, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < stages; ++stage) {
        const int held = forwards[stage] - backwards[stage];
        const bool may_forward = forwards[stage] < microbatches_ &&
                                 (held < stages - stage || backwards[stage] == microbatches_) &&
                                 (stage == 0 || forward_.count({stage - 1, forwards[stage]}));
        const bool may_backward = backwards[stage] < forwards[stage] &&
                                  (stage == stages - 1 || backward_.count({stage + 1, backwards[stage]}));
        if (may_backward && (held >= stages - stage || forwards[stage] == microbatches_)) {
          add_backward(stage, backwards[stage]++);
          moved = true;
        } else if (may_forward) {
          add_forward(stage, forwards[stage]++);
          moved = true;
        }
      }
    }
    for (int stage = 1; stage < stages; ++stage) {
      const int reduce = add({.track = stages + 1, .name = "reduce", .kind = "gradients"}, 0.06 / choice_.tp,
                             {backward_.at({stage, microbatches_ - 1})});
      add({.track = stage, .name = "update", .kind = "optimizer"}, 0.04, {reduce});
    }
    return std::move(timeline_);
  }

 private:
  double language_s() const { return 0.4 / choice_.tp / choice_.pp * (choice_.tp > 1 ? 1.12 : 1); }
  double images_s() const { return 0.36 / choice_.encoder_ranks; }

  void add_forward(int stage, int microbatch) {
    std::vector<int> after;
    if (stage > 0) after = {forward_.at({stage - 1, microbatch})};
    if (stage == 1) {  // embeddings cross the bridge
      after = {add({.track = choice_.pp + 1, .name = fmt::format("{}", microbatch), .kind = "bridge"}, 0.012, after)};
    }
    const bool images = stage == 0;
    forward_[{stage, microbatch}] = add(
        {.track = stage, .name = fmt::format("{}", microbatch), .kind = images ? "images forward" : "language forward"},
        images ? images_s() : language_s(), after);
  }

  void add_backward(int stage, int microbatch) {
    std::vector<int> after = {forward_.at({stage, microbatch})};
    if (stage < choice_.pp) after.push_back(backward_.at({stage + 1, microbatch}));
    const bool images = stage == 0;
    backward_[{stage, microbatch}] = add({.track = stage,
                                          .name = fmt::format("{}", microbatch),
                                          .kind = images ? "images backward" : "language backward"},
                                         (choice_.recompute ? 3 : 2) * (images ? images_s() : language_s()), after);
  }

  int add(PlanSpan span, double seconds, const std::vector<int>& after) {
    const auto track = static_cast<std::size_t>(span.track);
    span.begin_s = free_at_[track];
    for (const int before : after)
      span.begin_s = std::max(span.begin_s, timeline_.spans[static_cast<std::size_t>(before)].end_s);
    span.end_s = free_at_[track] = span.begin_s + seconds;
    timeline_.spans.push_back(std::move(span));
    return static_cast<int>(timeline_.spans.size()) - 1;
  }

  const Choice choice_;
  const int microbatches_;
  PlanTimeline timeline_{};
  std::vector<double> free_at_{};
  std::map<std::pair<int, int>, int> forward_{}, backward_{};
};

std::vector<PlanTimes> times_of(const Choice& choice, double iteration_s) {
  const double tp = choice.tp > 1 ? 0.08 * iteration_s : 0, images = (choice.encoder_ranks < 4 ? 1 : 0.5) * iteration_s;
  return {
      {.name = "images", .parts = {{"compute", images}, {"waiting", iteration_s - images}}},
      {.name = "language", .parts = {{"compute", 0.6 * iteration_s}, {"tp", tp}, {"waiting", 0.4 * iteration_s - tp}}}};
}

std::vector<PlanStageMemory> memory_of(const Choice& choice) {
  std::vector<PlanStageMemory> stages = {
      {.module = "images",
       .rank = 0,
       .bytes = {{"parameters", 1.3e9}, {"moments", 5.2e9 / choice.encoder_ranks}, {"activations", 6e9}}}};
  for (int stage = 0; stage < choice.pp; ++stage) {
    const double share = 1.0 / choice.tp / choice.pp;
    stages.push_back(
        {.module = "language",
         .stage = stage,
         .rank = 4 + 4 * stage,
         .bytes = {{"parameters", 40e9 * share},
                   {"gradients", 20e9 * share},
                   {"moments", 30e9 * share},
                   {"activations", (choice.recompute ? 8e9 : 34e9) / choice.tp * (choice.pp - stage) / choice.pp},
                   {"logits", stage == choice.pp - 1 ? 3e9 / choice.tp : 0}}});
  }
  for (PlanStageMemory& stage : stages)
    for (const auto& [kind, bytes] : stage.bytes) stage.needed_bytes += bytes;
  return stages;
}

PlanLayout layout_of(const Choice& choice) {
  PlanLayout layout{
      .name = fmt::format("images dp {}, language tp {} pp {}", choice.encoder_ranks, choice.tp, choice.pp),
      .settings = {{"topology.modules.images.dp", std::to_string(choice.encoder_ranks)},
                   {"topology.modules.language.tp", std::to_string(choice.tp)},
                   {"topology.modules.language.pp", std::to_string(choice.pp)},
                   {"model.recompute", choice.recompute ? "[full]" : "[]"}},
      .settings_text = choice.recompute ? "micro batch 1, recompute full" : "micro batch 1"};
  layout.timeline = Pipeline(choice, 8).build();
  for (const PlanSpan& span : layout.timeline.spans) layout.iteration_s = std::max(layout.iteration_s, span.end_s);
  layout.spread_s = 0.03 * layout.iteration_s;
  layout.tokens_per_s_per_gpu = 65536 / layout.iteration_s / 16;
  layout.tflops_per_gpu = 1200 / layout.iteration_s / 16;
  layout.bubble = 1 - 8 * 1.2 / choice.tp / choice.pp / layout.iteration_s;
  layout.times = times_of(choice, layout.iteration_s);
  layout.exposed_communication_s = 0.1 * layout.iteration_s;
  layout.memory = memory_of(choice);
  for (const PlanStageMemory& stage : layout.memory)
    layout.needed_bytes = std::max(layout.needed_bytes, stage.needed_bytes);
  layout.device_bytes = 1.1 * layout.needed_bytes;
  layout.fits = layout.needed_bytes < 72e9;
  layout.bound_by = choice.encoder_ranks < 4 ? "images backward" : "language backward";
  return layout;
}

}  // namespace

PlanPage example_plan() {
  PlanPage page{.recipe = "recipes/example.yaml",
                .model = "nemotron-vlm-20l",
                .hardware = "h100",
                .hardware_source = "datasheet",
                .ranks = 16,
                .global_batch = 128,
                .memory_bytes = 72e9,
                .notes = {"The figures of h100 come from its datasheet; nothing was measured on one."}};
  for (const int tp : {1, 2, 4})
    for (const int pp : {1, 2, 4})
      for (const int encoder_ranks : {2, 4, 8})
        for (const bool recompute : {false, true})
          page.layouts.push_back(layout_of({tp, pp, encoder_ranks, recompute}));
  std::stable_sort(page.layouts.begin(), page.layouts.end(), [](const PlanLayout& a, const PlanLayout& b) {
    return std::pair(!a.fits, a.iteration_s) < std::pair(!b.fits, b.iteration_s);
  });
  page.baseline = 20;
  mark_front(page.layouts);
  for (std::size_t i = 3; i < page.layouts.size(); ++i)  // as a search does, which keeps the best ones'
    if (static_cast<int>(i) != page.baseline) page.layouts[i].timeline = {};
  return page;
}

}  // namespace braid::testing
