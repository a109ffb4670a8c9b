#include "predict/plan_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "base/strings.h"
#include "log/trace.h"
#include "pages/page.h"
#include "predict/memory.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kTimelines = 3;  // timelines of the best layouts, in addition to the recipe's

// Whether drawings of a step show an op: all that takes time but exchanges, which run beside everything.
bool is_shown(const Op& op, const OpSpan& span) { return op.kind != Op::Exchange && span.end > span.begin; }

// --- a timeline: one rank of each stage

// The op only starts a gather or reduction, but the span covers all of it.
std::string name_of(const Op& op, const Topology& topology) {
  const std::string name = describe(op, topology), start = "the start of the ";
  return op.starts_collective() && name.starts_with(start) ? name.substr(start.size()) : name;
}

std::string kind_of(const Op& op, const Topology& topology) {
  if (op.computes()) return topology.module(op.stage.module).name + (op.kind == Op::Forward ? " forward" : " backward");
  if (op.kind == Op::StartGather) return "parameters";
  if (op.kind == Op::StartReduce || op.kind == Op::EndReduce) return "gradients";
  return op.kind == Op::Update ? "optimizer" : "load";
}

PlanTimeline timeline_of(const PlayedStep& step) {
  const Topology& topology = step.world.topology;
  PlanTimeline timeline;
  std::map<int, int> tracks;  // by rank: what it does itself; the next one has its gathers and reductions
  for (const Stage& first : all_stages(topology)) {
    const int rank = ranks_of(topology, first).first;
    if (!tracks.try_emplace(rank, 2 * tracks.size()).second) continue;
    std::vector<std::string> modules;
    for (const Module* module : topology.modules_of(rank))
      modules.push_back(module->dense.size_of("pp") == 1
                            ? module->name
                            : fmt::format("{}[pp={}]", module->name, module->dense.coord(rank, "pp")));
    const int m = stages_of(topology, rank).front().module;
    const std::string name = fmt::format("rank {}", step.world.full_rank(m, rank));
    timeline.tracks.push_back(fmt::format("{} {}", name, fmt::join(modules, ", ")));
    timeline.tracks.push_back(name + " gathers and reductions");
  }
  std::vector<std::tuple<double, double, int, std::size_t>> shown;  // begin, end, rank, op
  for (const auto& [rank, track] : tracks)
    for (std::size_t i = 0; i < step.schedule.ranks[rank].size(); ++i)
      if (const OpSpan& span = step.play.ranks[rank][i]; is_shown(step.schedule.ranks[rank][i], span))
        shown.emplace_back(span.begin, span.end, rank, i);
  std::ranges::sort(shown);
  for (const auto& [begin, end, rank, i] : shown) {
    const Op& op = step.schedule.ranks[rank][i];
    const int track = tracks.at(rank) + (op.starts_collective() ? 1 : 0);
    timeline.spans.push_back({track, name_of(op, topology), kind_of(op, topology), begin, end});
  }
  return timeline;
}

// --- the trace

Trace::TimePoint at(double seconds) {
  return Trace::TimePoint(
      std::chrono::duration_cast<Trace::TimePoint::duration>(std::chrono::duration<double>(seconds)));
}

void trace_rank(const PlayedStep& step, int rank, const std::string& folder) {
  const auto& [world, schedule, play] = step;
  std::vector<std::string> coordinates;
  for (int m = 0; m < std::ssize(world.modules); ++m)
    if (world.topology.module(m).dense.contains(rank))
      coordinates.push_back(fmt::format("{}[{}]", world.modules[m].name,
                                        world.modules[m].dense.coordinates_of(world.full_rank(m, rank))));
  Trace trace(folder, rank, fmt::format("{}", fmt::join(coordinates, " + ")));
  const int communication = trace.add_track("gathers and reductions");
  for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
    const Op& op = schedule.ranks[rank][i];
    const OpSpan& span = play.ranks[rank][i];
    if (!is_shown(op, span)) continue;
    std::vector<Trace::Arg> args;
    if (op.computes() || op.kind == Op::Load) args.emplace_back("microbatch", op.microbatch);
    trace.add_span(describe(op, world.topology), at(span.begin), at(span.end), args,
                   op.starts_collective() ? communication : Trace::kMainTrack);
  }
}

// --- layouts

// One row for each module, or one for modules that share their ranks.
std::vector<PlanTimes> times_of(const Recipe& recipe, const Simulation& simulation) {
  const bool share = recipe.topology.colocated;
  std::vector<PlanTimes> rows;
  if (share) rows.push_back({.name = counted(simulation.ranks, "rank")});
  for (const ModuleTimes& module : simulation.modules) {
    if (!share) rows.push_back({.name = fmt::format("{}, {}", module.name, counted(module.ranks, "rank"))});
    const auto add = [&](const std::string& part, double seconds) {
      rows.back().parts.emplace_back((share ? module.name + " " : "") + part, seconds);
    };
    add("compute", module.compute);
    for (std::size_t kind = 0; kind < kCommKinds; ++kind)
      add(braid::name_of(static_cast<CommKind>(kind)), module.exposed[kind]);
    if (!share) rows.back().parts.emplace_back("waiting", module.waiting);
  }
  if (share) rows.back().parts.emplace_back("waiting", simulation.modules.front().waiting);
  for (PlanTimes& row : rows) std::erase_if(row.parts, [](const auto& part) { return part.second <= 0; });
  return rows;
}

void set_memory(PlanLayout& layout, const Recipe& recipe, const HardwareProfile& hardware) {
  const Topology topology(recipe.topology, workload_of(recipe));
  const MemoryQuestion question = memory_question(hardware);
  const MemoryPrediction prediction = predict_memory(recipe, topology, full_step(recipe, topology), question);
  const DeviceMemory device = device_memory(prediction, topology, question);
  layout.needed_bytes = device.needed;
  layout.device_bytes = device.with_slack;
  for (const auto& [stage, rank] : prediction.stages) {
    PlanStageMemory& memory = layout.memory.emplace_back();
    memory.module = topology.module(stage.module).name;
    memory.stage = stage.index;
    memory.rank = rank.global_rank;
    memory.needed_bytes = rank.needed();
    const auto add = [&](const std::string& name, std::int64_t bytes) {
      if (bytes > 0) memory.bytes.emplace_back(name, bytes);
    };
    const MemoryBytes bytes = rank.all_modules();
    for (std::size_t kind = 0; kind < bytes.size(); ++kind) add(memory_kind_text(kind), bytes[kind]);
    add("NCCL (estimate)", rank.nccl);
    add("context (estimate)", rank.context);
  }
}

PlanLayout plan_layout(const Recipe& recipe, const Simulation& simulation, const HardwareProfile& hardware) {
  const auto& [model, train, optimizer] = std::tie(recipe.model, recipe.train, recipe.optimizer);
  PlanLayout layout = {
      .name = grids_text(recipe),
      .settings = {{"train.micro_batch", fmt::to_string(train.micro_batch)},
                   {"train.prefetch", fmt::to_string(train.prefetch)},
                   {"model.recompute", model.recompute.empty() ? "none" : joined(model.recompute, ", ")},
                   {"model.sequence_parallel", fmt::to_string(model.sequence_parallel)},
                   {"model.tp_overlap_pieces", fmt::to_string(model.overlap.tp_pieces)},
                   {"model.expert_overlap_pieces", fmt::to_string(model.overlap.expert_pieces)},
                   {"optimizer.overlap_grad_reduce", fmt::to_string(optimizer.overlap_grad_reduce)},
                   {"optimizer.overlap_param_gather", fmt::to_string(optimizer.overlap_param_gather)}},
      .settings_text = settings_text(recipe),
      .iteration_s = simulation.iteration_s,
      .spread_s = simulation.spread_s,
      .tokens_per_s_per_gpu = simulation.tokens_per_s_per_gpu,
      .tflops_per_gpu = simulation.tflops_per_gpu,
      .bubble = simulation.bubble,
      .exposed_communication_s = simulation.exposed_communication_s,
      .bound_by = simulation.bound_by,
      .times = times_of(recipe, simulation)};
  set_memory(layout, recipe, hardware);
  return layout;
}

PlanPage page_about(const PageRecipe& about) {
  return {.recipe = about.name,
          .model = about.recipe.model.provider,
          .hardware = about.hardware.name,
          .hardware_source = name_of(about.hardware.source),
          .global_batch = about.recipe.train.global_batch,
          .memory_bytes = 1e9 * about.hardware.memory_gb,
          .memory_is_shared = is_host(about.hardware),
          .notes = {described(about.hardware), "samples: " + about.sizes}};
}

// --- JSON

template <class Value>
Json object_of(const std::vector<std::pair<std::string, Value>>& pairs) {
  Json object = Json::object();
  for (const auto& [key, value] : pairs) object[key] = value;
  return object;
}

Json json_of(const PlanTimes& times) { return {{"name", times.name}, {"parts", object_of(times.parts)}}; }

// Writes each span as numbers in a fixed order, to keep pages small: track, name, kind, begin, end. Names and kinds are
// indices into a list of texts.
Json json_of(const PlanTimeline& timeline) {
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

Json json_of(const PlanStageMemory& stage) {
  return {{"module", stage.module},
          {"stage", stage.stage},
          {"rank", stage.rank},
          {"bytes", object_of(stage.bytes)},
          {"needed_bytes", stage.needed_bytes}};
}

Json json_of(const PlanLayout& layout);

template <class Item>
Json list_of(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(json_of(item));
  return list;
}

Json json_of(const PlanLayout& layout) {
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
          {"times", list_of(layout.times)},
          {"memory", list_of(layout.memory)},
          {"timeline", json_of(layout.timeline)}};
}

}  // namespace

void mark_front(std::vector<PlanLayout>& layouts) {
  std::vector<PlanLayout*> fitting;
  for (PlanLayout& layout : layouts) {
    layout.on_front = false;
    if (layout.fits) fitting.push_back(&layout);
  }
  std::ranges::stable_sort(fitting, {},
                           [](const PlanLayout* each) { return std::pair(each->needed_bytes, each->iteration_s); });
  double fastest = std::numeric_limits<double>::infinity();
  for (PlanLayout* layout : fitting) {
    layout->on_front = layout->iteration_s < fastest;
    fastest = std::min(fastest, layout->iteration_s);
  }
}

PlanPage page_of(const PageRecipe& about, const SimulationAndStep& simulated) {
  PlanPage page = page_about(about);
  page.ranks = simulated.simulation.ranks;
  page.baseline = 0;
  PlanLayout& layout = page.layouts.emplace_back(plan_layout(about.recipe, simulated.simulation, about.hardware));
  layout.fits = layout.needed_bytes <= page.memory_bytes;
  layout.timeline = timeline_of(simulated.step);
  mark_front(page.layouts);
  return page;
}

PlanPage page_of(const PageRecipe& about, const SearchResult& result, const SimulateOptions& steps) {
  PlanPage page = page_about(about);
  page.ranks = result.gpus;
  page.memory_bytes = static_cast<double>(result.memory_limit);
  page.baseline = static_cast<int>(result.best.size());  // after the best ones, whose numbers match the table
  std::vector<const Candidate*> candidates;
  for (const Candidate& candidate : result.best) candidates.push_back(&candidate);
  candidates.push_back(&result.given);
  const auto is_shown = [&](const Candidate& candidate) {
    return std::ranges::any_of(candidates, [&](const Candidate* other) {
      return layout_of(other->recipe) == layout_of(candidate.recipe) && other->memory == candidate.memory;
    });
  };
  for (const Candidate& candidate : result.front)
    if (!is_shown(candidate)) candidates.push_back(&candidate);
  for (const Candidate* candidate : candidates) {
    PlanLayout& layout =
        page.layouts.emplace_back(plan_layout(candidate->recipe, candidate->simulation, about.hardware));
    layout.fits = candidate->memory <= result.memory_limit;
    if (page.layouts.size() <= kTimelines || candidate == &result.given)
      layout.timeline =
          timeline_of(simulate_and_keep(candidate->recipe, about.hardware, {.steps = 1, .draw = steps.draw}).step);
  }
  mark_front(page.layouts);
  return page;
}

Play in_milliseconds(Play play) {
  for (auto& spans : play.ranks)
    for (OpSpan& span : spans) span = {1e3 * span.begin, 1e3 * span.end};
  play.end *= 1e3;
  return play;
}

void write_trace(const PlayedStep& step, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError({fmt::format("cannot write '{}'{}", path, why), "--trace", "give the name of a file"});
  };
  std::string folder = path + ".XXXXXX";
  if (!mkdtemp(folder.data())) refuse("");
  std::error_code error;
  const auto remove = [](const std::string* name) {
    std::error_code ignored;
    std::filesystem::remove_all(*name, ignored);
  };
  const std::unique_ptr<const std::string, decltype(remove)> temporary(&folder, remove);
  for (int rank = 0; rank < step.world.topology.world_size(); ++rank) trace_rank(step, rank, folder);
  merge_traces(folder);
  std::filesystem::rename(merged_trace_path(folder), path, error);
  if (error) refuse(": " + error.message());
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
