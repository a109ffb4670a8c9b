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

template <class Value>
Json object_of(const std::vector<std::pair<std::string, Value>>& pairs) {
  Json object = Json::object();
  for (const auto& [key, value] : pairs) object[key] = value;
  return object;
}

Json to_json(const PlanTimes& times) { return {{"name", times.name}, {"parts", object_of(times.parts)}}; }

// Writes each span as numbers in a fixed order, to keep pages small: track, name, kind, begin, end. Names and kinds are
// indices into a list of texts.
Json to_json(const PlanTimeline& timeline) {
  if (timeline.spans.empty()) return nullptr;
  std::vector<std::string> texts;
  const auto index_of = [&](const std::string& text) {
    const auto found = std::ranges::find(texts, text);
    const auto index = found - texts.begin();
    if (found == texts.end()) texts.push_back(text);
    return index;
  };
  Json spans = Json::array();
  for (const auto& [track, name, kind, begin_s, end_s] : timeline.spans) {
    BRAID_CHECK(track >= 0 && track < std::ssize(timeline.tracks), "a span is on track {} of {}", track,
                timeline.tracks.size());
    spans.push_back(Json::array({track, index_of(name), index_of(kind), begin_s, end_s}));
  }
  return {{"tracks", timeline.tracks}, {"texts", texts}, {"spans", std::move(spans)}};
}

Json to_json(const PlanStageMemory& stage) {
  return {{"module", stage.module},
          {"stage", stage.stage},
          {"rank", stage.rank},
          {"bytes", object_of(stage.bytes)},
          {"needed_bytes", stage.needed_bytes}};
}

Json to_json(const PlanLayout& layout);

template <class Item>
Json list_of(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(to_json(item));
  return list;
}

Json to_json(const PlanLayout& layout) {
  return {{"name", layout.name},
          {"settings", object_of(layout.settings)},
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
          {"memory", list_of(layout.memory)},
          {"timeline", to_json(layout.timeline)}};
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
          {"layouts", list_of(page.layouts)}};
}

std::string plan_html(const PlanPage& page) {
  BRAID_CHECK(page.best >= 0 && page.best < std::ssize(page.layouts), "best is layout {} of {}", page.best,
              page.layouts.size());
  const std::string data = to_json(page).dump(-1, ' ', false, Json::error_handler_t::replace);
  return script_page("Plan for " + page.recipe, data, fmt::format("{}{}", kTimelineJs, kPlanJs));
}

}  // namespace braid
