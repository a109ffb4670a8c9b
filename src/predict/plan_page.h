// How plans are shown: their numbers as JSON, the page of a recipe's layouts, and a step as a trace. `braid plan
// search` shows many layouts, `braid plan simulate` one. No libtorch here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include "predict/memory.h"
#include "predict/search.h"

namespace braid {

nlohmann::ordered_json to_json(const Simulation& simulation);  // "iteration_s", "bubble", ..., without its modules
nlohmann::ordered_json to_json(const DeviceMemory& memory);
// The recipe's keys that a search chooses besides the grids, with their values.
nlohmann::ordered_json settings_json(const Recipe& recipe);

struct PageRecipe {
  std::string name{};  // of the file
  const Recipe& recipe;
  const HardwareProfile& hardware;
  std::string sizes{};  // of samples, in words
};

// The data of a page, which pages/plan.js shows:
//   {"recipe", "model", "hardware", "hardware_source", "ranks", "global_batch", "notes": [...],
//    "memory_bytes": the capacity of a GPU or of the host, "memory_is_shared": by all ranks of a host,
//    "baseline": the index of the unchanged recipe in layouts, "best": the index of the layout that is shown first,
//    "layouts": [{"name", "settings", "settings_text", what to_json() writes of the simulation,
//                 "needed_bytes" and "device_bytes": of the fullest GPU or of the host, without and with slack,
//                 "fits", "on_front": no other layout that fits is faster with less memory,
//                 "times": [{"name": "language, 256 ranks", "parts": {"compute": seconds, "waiting": ...}}],
//                 "memory": [{"module", "stage", "rank": the fullest, "bytes": {"moments": ...}, "needed_bytes"}],
//                 "timeline": {"tracks", "texts", "spans": [[track, name, kind, begin, end], ...]} or null}]}
// Names and kinds of spans are indices into texts, to keep pages small.
//
// The page of one layout, with its timeline.
nlohmann::ordered_json page_of(const PageRecipe& about, const SimulationAndStep& simulated);
// The page of the best layouts, the given recipe and the front, in this order; the best ones and the recipe get
// timelines. `steps` are the options they were simulated with.
nlohmann::ordered_json page_of(const PageRecipe& about, const SearchResult& result, const SimulateOptions& steps);

// Marks the layouts that fit and that no other layout beats in both time and memory.
void mark_front(nlohmann::ordered_json& layouts);

std::string plan_html(const nlohmann::ordered_json& page);

// The same step with times in milliseconds.
Play in_milliseconds(Play play);

// A simulated step as a timeline for Perfetto: one row for each played rank, with its gathers and reductions below.
std::string trace_of(const PlayedStep& step);

}  // namespace braid
