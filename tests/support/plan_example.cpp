#include "support/plan_example.h"
#include "predict/plan_page.h"

namespace braid::testing {
namespace {

using Json = nlohmann::ordered_json;

struct PlanSpan {
  int track = 0;
  std::string name{}, kind{};
  double begin_s = 0, end_s = 0;
};

struct Choice {
  int tp = 1, pp = 1, encoder_ranks = 4;
  bool recompute = false;
};

// One pipeline: the encoder, then the stages of the language model, with 1F1B. Spans are added in an order in which
// every span follows those it waits for, and begin as early as these allow.
class Pipeline {
 public:
  Pipeline(const Choice& choice, int microbatches) : choice_(choice), microbatches_(microbatches) {
    tracks_ = {"rank 0 images"};
    for (int stage = 0; stage < choice.pp; ++stage)
      tracks_.push_back(fmt::format("rank {} language[pp={}]", 4 + 4 * stage, stage));
    tracks_.push_back("bridge");
    tracks_.push_back("gradients");
    free_at_.assign(tracks_.size(), 0);
  }

  Json build() {
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
    std::vector<std::string> texts;
    Json spans = Json::array();
    const auto index_of = [&](const std::string& text) {
      const auto index = std::find(texts.begin(), texts.end(), text) - texts.begin();
      if (index == std::ssize(texts)) texts.push_back(text);
      return index;
    };
    for (const PlanSpan& span : spans_) {
      const auto name = index_of(span.name), kind = index_of(span.kind);
      spans.push_back(Json::array({span.track, name, kind, span.begin_s, span.end_s}));
    }
    return {{"tracks", tracks_}, {"texts", texts}, {"spans", std::move(spans)}};
  }

  double end_s() const { return std::max_element(spans_.begin(), spans_.end(), ends_before)->end_s; }

 private:
  static bool ends_before(const PlanSpan& a, const PlanSpan& b) { return a.end_s < b.end_s; }

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
      span.begin_s = std::max(span.begin_s, spans_[static_cast<std::size_t>(before)].end_s);
    span.end_s = free_at_[track] = span.begin_s + seconds;
    spans_.push_back(std::move(span));
    return static_cast<int>(spans_.size()) - 1;
  }

  const Choice choice_;
  const int microbatches_;
  std::vector<std::string> tracks_{};
  std::vector<PlanSpan> spans_{};
  std::vector<double> free_at_{};
  std::map<std::pair<int, int>, int> forward_{}, backward_{};
};

Json times_of(const Choice& choice, double iteration_s) {
  const double tp = choice.tp > 1 ? 0.08 * iteration_s : 0, images = (choice.encoder_ranks < 4 ? 1 : 0.5) * iteration_s;
  return {{{"name", "images"}, {"parts", {{"compute", images}, {"waiting", iteration_s - images}}}},
          {{"name", "language"},
           {"parts", {{"compute", 0.6 * iteration_s}, {"tp", tp}, {"waiting", 0.4 * iteration_s - tp}}}}};
}

Json memory_of(const Choice& choice) {
  Json stages = {{{"module", "images"},
                  {"stage", 0},
                  {"rank", 0},
                  {"bytes", {{"parameters", 1.3e9}, {"moments", 5.2e9 / choice.encoder_ranks}, {"activations", 6e9}}}}};
  for (int stage = 0; stage < choice.pp; ++stage) {
    const double share = 1.0 / choice.tp / choice.pp;
    stages.push_back({{"module", "language"},
                      {"stage", stage},
                      {"rank", 4 + 4 * stage},
                      {"bytes",
                       {{"parameters", 40e9 * share},
                        {"gradients", 20e9 * share},
                        {"moments", 30e9 * share},
                        {"activations", (choice.recompute ? 8e9 : 34e9) / choice.tp * (choice.pp - stage) / choice.pp},
                        {"logits", stage == choice.pp - 1 ? 3e9 / choice.tp : 0}}}});
  }
  for (Json& stage : stages) {
    double needed = 0;
    for (const Json& bytes : stage["bytes"]) needed += bytes.get<double>();
    stage["needed_bytes"] = needed;
  }
  return stages;
}

Json layout_of(const Choice& choice) {
  Pipeline pipeline(choice, 8);
  Json timeline = pipeline.build(), memory = memory_of(choice);
  const double iteration_s = pipeline.end_s();
  double needed_bytes = 0;
  for (const Json& stage : memory) needed_bytes = std::max(needed_bytes, stage["needed_bytes"].get<double>());
  return {{"name", fmt::format("images dp {}, language tp {} pp {}", choice.encoder_ranks, choice.tp, choice.pp)},
          {"settings",
           {{"topology.modules.images.dp", std::to_string(choice.encoder_ranks)},
            {"topology.modules.language.tp", std::to_string(choice.tp)},
            {"topology.modules.language.pp", std::to_string(choice.pp)},
            {"model.recompute", choice.recompute ? "[full]" : "[]"}}},
          {"settings_text", choice.recompute ? "micro batch 1, recompute full" : "micro batch 1"},
          {"iteration_s", iteration_s},
          {"spread_s", 0.03 * iteration_s},
          {"tokens_per_s_per_gpu", 65536 / iteration_s / 16},
          {"tflops_per_gpu", 1200 / iteration_s / 16},
          {"bubble", 1 - 8 * 1.2 / choice.tp / choice.pp / iteration_s},
          {"exposed_communication_s", 0.1 * iteration_s},
          {"needed_bytes", needed_bytes},
          {"device_bytes", 1.1 * needed_bytes},
          {"fits", needed_bytes < 72e9},
          {"bound_by", choice.encoder_ranks < 4 ? "images backward" : "language backward"},
          {"times", times_of(choice, iteration_s)},
          {"memory", std::move(memory)},
          {"timeline", std::move(timeline)}};
}

}  // namespace

Json example_plan() {
  std::vector<Json> layouts;
  for (const int tp : {1, 2, 4})
    for (const int pp : {1, 2, 4})
      for (const int encoder_ranks : {2, 4, 8})
        for (const bool recompute : {false, true}) layouts.push_back(layout_of({tp, pp, encoder_ranks, recompute}));
  std::stable_sort(layouts.begin(), layouts.end(), [](const Json& a, const Json& b) {
    return std::pair(!a["fits"].get<bool>(), a["iteration_s"].get<double>()) <
           std::pair(!b["fits"].get<bool>(), b["iteration_s"].get<double>());
  });
  constexpr std::size_t kBaseline = 20;
  for (std::size_t i = 3; i < layouts.size(); ++i)  // as a search does, which keeps the best ones'
    if (i != kBaseline) layouts[i]["timeline"] = nullptr;
  Json page = {{"recipe", "recipes/example.yaml"},
               {"model", "nemotron-vlm-20l"},
               {"hardware", "h100"},
               {"hardware_source", "datasheet"},
               {"ranks", 16},
               {"global_batch", 128},
               {"memory_bytes", 72e9},
               {"memory_is_shared", false},
               {"baseline", kBaseline},
               {"best", 0},
               {"notes", {"The figures of h100 come from its datasheet; nothing was measured on one."}},
               {"layouts", std::move(layouts)}};
  mark_front(page["layouts"]);
  return page;
}

}  // namespace braid::testing
