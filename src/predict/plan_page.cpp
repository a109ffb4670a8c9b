#include "predict/plan_page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "pages/page.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const PlanTimes& times) {
  Json parts = Json::object();
  for (const auto& [name, seconds] : times.parts) parts[name] = seconds;
  return {{"name", times.name}, {"parts", std::move(parts)}};
}

Json to_json(const WhatIfAxis& axis) { return {{"name", axis.name}, {"stops", axis.stops}}; }

// A page has many of these numbers, and its sliders need no more digits.
std::vector<double> six_digits(std::vector<double> values) {
  for (double& value : values) value = std::stod(fmt::format("{:.6g}", value));
  return values;
}

// Writes each span as numbers in a fixed order, to keep pages small: track, name, kind, begin, end. Names and kinds are
// indices into a list of texts.
class TimelineJson {
 public:
  explicit TimelineJson(const PlanTimeline& timeline) {
    Json spans = Json::array();
    for (const PlanSpan& span : timeline.spans)
      spans.push_back(Json::array({span.track, index_of(span.name), index_of(span.kind), span.begin_s, span.end_s}));
    json_ = {{"tracks", timeline.tracks}, {"texts", texts_}, {"spans", std::move(spans)}};
  }
  Json take() { return std::move(json_); }

 private:
  std::size_t index_of(const std::string& text) {
    const auto found = std::find(texts_.begin(), texts_.end(), text);
    if (found != texts_.end()) return static_cast<std::size_t>(found - texts_.begin());
    texts_.push_back(text);
    return texts_.size() - 1;
  }

  std::vector<std::string> texts_{};
  Json json_{};
};

Json to_json(const PlanStageMemory& stage) {
  Json bytes = Json::object();
  for (const auto& [kind, count] : stage.bytes) bytes[kind] = count;
  return {{"module", stage.module},
          {"stage", stage.stage},
          {"rank", stage.rank},
          {"bytes", std::move(bytes)},
          {"needed_bytes", stage.needed_bytes}};
}

template <class Item>
Json list_of(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(to_json(item));
  return list;
}

Json to_json(const PlanLayout& layout) {
  Json settings = Json::object();
  for (const auto& [key, value] : layout.settings) settings[key] = value;
  return {{"name", layout.name},
          {"settings", std::move(settings)},
          {"settings_text", layout.settings_text},
          {"iteration_s", layout.iteration_s},
          {"spread_s", layout.spread_s},
          {"tokens_per_s_per_gpu", layout.tokens_per_s_per_gpu},
          {"tflops_per_gpu", layout.tflops_per_gpu},
          {"bubble", layout.bubble},
          {"exposed_communication_s", layout.exposed_communication_s},
          {"needed_bytes", layout.needed_bytes},
          {"device_bytes", layout.device_bytes},
          {"fits", layout.fits},
          {"on_front", layout.on_front},
          {"bound_by", layout.bound_by},
          {"reason", layout.reason},
          {"times", list_of(layout.times)},
          {"what_if", six_digits(layout.what_if)},
          {"memory", list_of(layout.memory)},
          {"timeline", layout.timeline.spans.empty() ? Json(nullptr) : TimelineJson(layout.timeline).take()}};
}

void check(const PlanLayout& layout, std::size_t combinations) {
  const auto& [tracks, spans] = layout.timeline;
  for (std::size_t i = 0; i < spans.size(); ++i)
    BRAID_CHECK(spans[i].track >= 0 && spans[i].track < std::ssize(tracks), "span {} is on track {} of {}", i,
                spans[i].track, tracks.size());
  BRAID_CHECK_EQ(layout.what_if.size(), combinations, "answers of the sliders");
}

}  // namespace

void mark_front(std::vector<PlanLayout>& layouts) {
  std::vector<PlanLayout*> fitting;
  for (PlanLayout& layout : layouts) {
    layout.on_front = false;
    if (layout.fits) fitting.push_back(&layout);
  }
  std::stable_sort(fitting.begin(), fitting.end(), [](const PlanLayout* a, const PlanLayout* b) {
    return std::pair(a->needed_bytes, a->iteration_s) < std::pair(b->needed_bytes, b->iteration_s);
  });
  double fastest = std::numeric_limits<double>::infinity();
  for (PlanLayout* layout : fitting) {
    layout->on_front = layout->iteration_s < fastest;
    fastest = std::min(fastest, layout->iteration_s);
  }
}

nlohmann::ordered_json to_json(const PlanPage& page) {
  std::size_t combinations = page.what_if.empty() ? 0 : 1;
  for (const WhatIfAxis& axis : page.what_if) combinations *= axis.stops.size();
  Json layouts = Json::array();
  for (const PlanLayout& layout : page.layouts) {
    check(layout, combinations);
    layouts.push_back(to_json(layout));
  }
  return {{"recipe", page.recipe},
          {"model", page.model},
          {"hardware", page.hardware},
          {"hardware_source", page.hardware_source},
          {"ranks", page.ranks},
          {"global_batch", page.global_batch},
          {"memory_bytes", page.memory_bytes},
          {"memory_is_shared", page.memory_is_shared},
          {"baseline", page.baseline},
          {"best", page.best},
          {"notes", page.notes},
          {"what_if", list_of(page.what_if)},
          {"layouts", std::move(layouts)}};
}

std::string plan_html(const PlanPage& page) {
  BRAID_CHECK(page.best >= 0 && page.best < std::ssize(page.layouts), "best is layout {} of {}", page.best,
              page.layouts.size());
  const std::string data = to_json(page).dump(-1, ' ', false, Json::error_handler_t::replace);
  return script_page("Plan for " + page.recipe, data, fmt::format("{}{}", kTimelineJs, kPlanJs));
}

}  // namespace braid
