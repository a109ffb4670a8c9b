#include "predict/plan_page.h"
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include "pages/page.h"

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

Json timeline_of(const PlayedStep& step) {
  const Topology& topology = step.world.topology;
  Json names = Json::array(), spans = Json::array();
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
    names.push_back(fmt::format("{} {}", name, fmt::join(modules, ", ")));
    names.push_back(name + " gathers and reductions");
  }
  std::vector<std::tuple<double, double, int, std::size_t>> shown;  // begin, end, rank, op
  for (const auto& [rank, track] : tracks)
    for (std::size_t i = 0; i < step.schedule.ranks[rank].size(); ++i)
      if (const OpSpan& span = step.play.ranks[rank][i]; is_shown(step.schedule.ranks[rank][i], span))
        shown.emplace_back(span.begin, span.end, rank, i);
  std::ranges::sort(shown);
  std::vector<std::string> texts;
  const auto index_of = [&](const std::string& text) {
    const auto index = std::ranges::find(texts, text) - texts.begin();
    if (index == std::ssize(texts)) texts.push_back(text);
    return index;
  };
  for (const auto& [begin, end, rank, i] : shown) {
    const Op& op = step.schedule.ranks[rank][i];
    const auto name = index_of(name_of(op, topology)), kind = index_of(kind_of(op, topology));
    spans.push_back(Json::array({tracks.at(rank) + (op.starts_collective() ? 1 : 0), name, kind, begin, end}));
  }
  return {{"tracks", std::move(names)}, {"texts", texts}, {"spans", std::move(spans)}};
}

// --- layouts

// One row for each module, or one for modules that share their ranks.
Json times_of(const Recipe& recipe, const Simulation& simulation) {
  const bool share = recipe.topology.colocated;
  Json rows = Json::array();
  const auto add = [&](const std::string& part, double seconds) {
    if (seconds > 0) rows.back()["parts"][part] = seconds;
  };
  for (const ModuleTimes& module : simulation.modules) {
    const std::string prefix = share ? module.name + " " : "";
    if (!share)
      rows.push_back({{"name", fmt::format("{}, {}", module.name, counted(module.ranks, "rank"))}});
    else if (rows.empty())
      rows.push_back({{"name", counted(simulation.ranks, "rank")}});
    add(prefix + "compute", module.compute);
    for (std::size_t kind = 0; kind < kCommKinds; ++kind)
      add(prefix + braid::name_of(static_cast<CommKind>(kind)), module.exposed[kind]);
    if (!share) add("waiting", module.waiting);
  }
  if (share) add("waiting", simulation.modules.front().waiting);
  return rows;
}

Json json_of(const StageRankMemory& fullest, const Topology& topology) {
  const auto& [stage, rank] = fullest;
  Json bytes = Json::object();
  const auto add = [&](const std::string& name, std::int64_t count) {
    if (count > 0) bytes[name] = count;
  };
  const MemoryBytes by_kind = rank.all_modules();
  for (std::size_t kind = 0; kind < by_kind.size(); ++kind) add(memory_kind_text(kind), by_kind[kind]);
  add("NCCL (estimate)", rank.nccl);
  add("context (estimate)", rank.context);
  return {{"module", topology.module(stage.module).name},
          {"stage", stage.index},
          {"rank", rank.global_rank},
          {"bytes", std::move(bytes)},
          {"needed_bytes", rank.needed()}};
}

Json layout_json(const Recipe& recipe, const Simulation& simulation, const HardwareProfile& hardware) {
  const Topology topology(recipe.topology, workload_of(recipe));
  const MemoryQuestion question = memory_question(hardware);
  const MemoryPrediction prediction = predict_memory(recipe, topology, {full_step(recipe, topology)}, question);
  const DeviceMemory device = device_memory(prediction, topology, question);
  Json layout = {{"name", grids_text(recipe)},
                 {"settings", settings_json(recipe)},
                 {"settings_text", settings_text(recipe)},
                 {"needed_bytes", device.needed},
                 {"device_bytes", device.with_slack},
                 {"fits", device.fits()},
                 {"times", times_of(recipe, simulation)},
                 {"timeline", nullptr}};
  for (const StageRankMemory& stage : prediction.stages) layout["memory"].push_back(json_of(stage, topology));
  layout.update(to_json(simulation));
  return layout;
}

Json page_about(const PageRecipe& about) {
  return {{"recipe", about.name},
          {"model", about.recipe.model.provider},
          {"hardware", about.hardware.name},
          {"hardware_source", name_of(about.hardware.source)},
          {"global_batch", about.recipe.train.global_batch},
          {"memory_bytes", 1e9 * about.hardware.memory_gb},
          {"memory_is_shared", is_host(about.hardware)},
          {"baseline", 0},
          {"best", 0},
          {"notes", {described(about.hardware), "samples: " + about.sizes}}};
}

}  // namespace

Json to_json(const Simulation& simulation) {
  return {{"iteration_s", simulation.iteration_s},
          {"spread_s", simulation.spread_s},
          {"fastest_s", simulation.fastest_s},
          {"slowest_s", simulation.slowest_s},
          {"tokens_per_s_per_gpu", simulation.tokens_per_s_per_gpu},
          {"tflops_per_gpu", simulation.tflops_per_gpu},
          {"bubble", simulation.bubble},
          {"exposed_communication_s", simulation.exposed_communication_s},
          {"bound_by", simulation.bound_by},
          {"reading_s", simulation.reading_s}};
}

Json to_json(const DeviceMemory& memory) {
  return {{"needed_bytes", memory.needed},
          {"device_bytes", memory.with_slack},
          {"capacity_bytes", memory.capacity},
          {"fits", memory.fits()}};
}

Json settings_json(const Recipe& recipe) {
  const auto& [model, train, optimizer] = std::tie(recipe.model, recipe.train, recipe.optimizer);
  return {{"train.micro_batch", train.micro_batch},
          {"train.prefetch", train.prefetch},
          {"model.recompute", model.recompute},
          {"model.sequence_parallel", model.sequence_parallel},
          {"model.tp_overlap_pieces", model.overlap.tp_pieces},
          {"model.expert_overlap_pieces", model.overlap.expert_pieces},
          {"optimizer.overlap_grad_reduce", optimizer.overlap_grad_reduce},
          {"optimizer.overlap_param_gather", optimizer.overlap_param_gather}};
}

void mark_front(Json& layouts) {
  auto by_memory = vector_of<Json*>(layouts, [](Json& layout) { return &layout; });
  std::ranges::stable_sort(by_memory, {}, [](const Json* layout) {
    return std::pair(layout->at("needed_bytes").get<double>(), layout->at("iteration_s").get<double>());
  });
  double fastest = std::numeric_limits<double>::infinity();
  for (Json* layout : by_memory) {
    const bool fits = layout->at("fits");
    const double seconds = layout->at("iteration_s");
    (*layout)["on_front"] = fits && seconds < fastest;
    if (fits) fastest = std::min(fastest, seconds);
  }
}

Json page_of(const PageRecipe& about, const SimulationAndStep& simulated) {
  Json page = page_about(about);
  page["ranks"] = simulated.simulation.ranks;
  Json& layout = page["layouts"].emplace_back(layout_json(about.recipe, simulated.simulation, about.hardware));
  layout["timeline"] = timeline_of(simulated.step);
  mark_front(page["layouts"]);
  return page;
}

Json page_of(const PageRecipe& about, const SearchResult& result, const SimulateOptions& steps) {
  Json page = page_about(about);
  page["ranks"] = result.gpus;
  page["memory_bytes"] = result.memory_limit;
  page["baseline"] = result.best.size();  // after the best ones, whose numbers match the table
  auto candidates = vector_of<const Candidate*>(result.best, [](const Candidate& candidate) { return &candidate; });
  candidates.push_back(&result.given);
  const auto is_shown = [&](const Candidate& candidate) {
    return std::ranges::any_of(candidates, [&](const Candidate* other) {
      return layout_of(other->recipe) == layout_of(candidate.recipe) && other->memory == candidate.memory;
    });
  };
  for (const Candidate& candidate : result.front)
    if (!is_shown(candidate)) candidates.push_back(&candidate);
  Json& layouts = page["layouts"];
  for (const Candidate* candidate : candidates) {
    Json& layout = layouts.emplace_back(layout_json(candidate->recipe, candidate->simulation, about.hardware));
    layout["fits"] = candidate->memory <= result.memory_limit;
    if (layouts.size() <= kTimelines || candidate == &result.given)
      layout["timeline"] =
          timeline_of(simulate_and_keep(candidate->recipe, about.hardware, {.steps = 1, .draw = steps.draw}).step);
  }
  mark_front(layouts);
  return page;
}

Play in_milliseconds(Play play) {
  for (auto& spans : play.ranks)
    for (OpSpan& span : spans) span = {1e3 * span.begin, 1e3 * span.end};
  play.end *= 1e3;
  return play;
}

std::string trace_of(const PlayedStep& step) {
  const auto& [world, schedule, play] = step;
  std::string text;
  const auto add = [&](const char* kind, const std::string& name, int rank, int track, const Json& fields) {
    Json event = {{"ph", kind}, {"name", name}, {"pid", rank}, {"tid", track}};
    event.update(fields);
    text += (text.empty() ? "[\n" : ",\n") + event.dump();
  };
  const auto microseconds = [](double seconds) { return std::llround(1e6 * seconds); };
  for (int rank = 0; rank < world.topology.world_size(); ++rank) {
    std::vector<std::string> coordinates;
    for (int m = 0; m < std::ssize(world.modules); ++m)
      if (world.topology.module(m).dense.contains(rank))
        coordinates.push_back(fmt::format("{}[{}]", world.modules[m].name,
                                          world.modules[m].dense.coordinates_of(world.full_rank(m, rank))));
    const std::string name = fmt::format("rank {}: {}", rank, fmt::join(coordinates, " + "));
    add("M", "process_name", rank, 0, {{"args", {{"name", name}}}});
    add("M", "process_sort_index", rank, 0, {{"args", {{"sort_index", rank}}}});
    add("M", "thread_name", rank, 0, {{"args", {{"name", "main"}}}});
    add("M", "thread_name", rank, 1, {{"args", {{"name", "gathers and reductions"}}}});
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Op& op = schedule.ranks[rank][i];
      const OpSpan& span = play.ranks[rank][i];
      if (!is_shown(op, span)) continue;
      const std::int64_t begin = microseconds(span.begin);
      Json fields = {{"ts", begin}, {"dur", microseconds(span.end) - begin}};
      if (op.computes() || op.kind == Op::Load) fields["args"] = {{"microbatch", op.microbatch}};
      add("X", describe(op, world.topology), rank, op.starts_collective() ? 1 : 0, fields);
    }
  }
  return text + "\n]\n";
}

std::string plan_html(const Json& page) {
  BRAID_CHECK(page.at("best") < page.at("layouts").size(), "best is layout {} of {}", page.at("best").dump(),
              page.at("layouts").size());
  for (const Json& layout : page.at("layouts")) {
    const Json& timeline = layout.at("timeline");
    if (timeline.is_null()) continue;
    for (const Json& span : timeline.at("spans"))
      BRAID_CHECK(span.at(0) < timeline.at("tracks").size(), "a span is on track {} of {}", span.at(0).dump(),
                  timeline.at("tracks").size());
  }
  return script_page("Plan for " + page.at("recipe").get<std::string>(),
                     page.dump(-1, ' ', false, Json::error_handler_t::replace),
                     fmt::format("{}{}", kTimelineJs, kPlanJs));
}

}  // namespace braid
