#include "predict/fill_plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/strings.h"
#include "predict/memory.h"

namespace braid {
namespace {

constexpr std::size_t kTimelines = 3;  // timelines of the best layouts, in addition to the recipe's

// --- the timeline: one rank of each stage

class Timeline {
 public:
  explicit Timeline(const PlayedStep& step) : step_(step), topology_(step.world.topology) {
    for (const Stage& stage : all_stages(topology_))
      if (const int rank = ranks_of(topology_, stage).first; tracks_.try_emplace(rank, 2 * tracks_.size()).second)
        add_tracks(rank);
  }

  PlanTimeline build() {
    std::vector<std::tuple<double, double, int, std::size_t>> shown;  // begin, end, rank, op
    for (const auto& [rank, track] : tracks_)
      for (std::size_t i = 0; i < step_.schedule.ranks[rank].size(); ++i)
        if (const OpSpan& span = step_.play.ranks[rank][i]; is_shown(step_.schedule.ranks[rank][i], span))
          shown.emplace_back(span.begin, span.end, rank, i);
    std::ranges::sort(shown);
    for (const auto& [begin, end, rank, i] : shown) {
      const Op& op = step_.schedule.ranks[rank][i];
      const int track = tracks_.at(rank) + (op.starts_collective() ? 1 : 0);
      timeline_.spans.push_back({track, name_of(op), kind_of(op), begin, end});
    }
    return std::move(timeline_);
  }

 private:
  void add_tracks(int rank) {
    std::vector<std::string> modules;
    for (const Module* module : topology_.modules_of(rank))
      modules.push_back(module->dense.size_of("pp") == 1
                            ? module->name
                            : fmt::format("{}[pp={}]", module->name, module->dense.coord(rank, "pp")));
    const int m = stages_of(topology_, rank).front().module;
    const std::string name = fmt::format("rank {}", step_.world.full_rank(m, rank));
    timeline_.tracks.push_back(fmt::format("{} {}", name, fmt::join(modules, ", ")));
    timeline_.tracks.push_back(name + " gathers and reductions");
  }

  // The op only starts a gather or reduction, but the span covers all of it.
  std::string name_of(const Op& op) const {
    const std::string name = describe(op, topology_), start = "the start of the ";
    return op.starts_collective() && name.starts_with(start) ? name.substr(start.size()) : name;
  }
  std::string kind_of(const Op& op) const {
    if (op.kind == Op::Forward) return topology_.module(op.stage.module).name + " forward";
    if (op.kind == Op::Backward) return topology_.module(op.stage.module).name + " backward";
    if (op.kind == Op::StartGather) return "parameters";
    if (op.kind == Op::StartReduce || op.kind == Op::EndReduce) return "gradients";
    return op.kind == Op::Update ? "optimizer" : "load";
  }

  const PlayedStep& step_;
  const Topology& topology_;
  std::map<int, int> tracks_;  // by rank: what it does itself; the next one has its gathers and reductions
  PlanTimeline timeline_;
};

// --- where the time goes

using Parts = std::vector<std::pair<std::string, double>>;

void add_busy(const ModuleTimes& module, const std::string& prefix, Parts& parts) {
  parts.emplace_back(prefix + "compute", module.compute);
  for (std::size_t kind = 0; kind < kCommKinds; ++kind)
    parts.emplace_back(prefix + name_of(static_cast<CommKind>(kind)), module.exposed[kind]);
}

PlanTimes complete(PlanTimes times, double waiting) {
  times.parts.emplace_back("waiting", waiting);
  std::erase_if(times.parts, [](const auto& part) { return part.second <= 0; });
  return times;
}

std::vector<PlanTimes> times_of(const Recipe& recipe, const Simulation& simulation) {
  const auto ranks = [](int count) { return counted(count, "rank"); };
  std::vector<PlanTimes> rows;
  if (recipe.topology.colocated) {
    PlanTimes all = {.name = ranks(simulation.ranks)};
    for (const ModuleTimes& module : simulation.modules) add_busy(module, module.name + " ", all.parts);
    return {complete(std::move(all), simulation.modules.front().waiting)};
  }
  for (const ModuleTimes& module : simulation.modules) {
    PlanTimes row = {.name = fmt::format("{}, {}", module.name, ranks(module.ranks))};
    add_busy(module, "", row.parts);
    rows.push_back(complete(std::move(row), module.waiting));
  }
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

std::vector<std::pair<std::string, std::string>> recipe_keys(const Recipe& recipe) {
  const auto& [model, train, optimizer] = std::tie(recipe.model, recipe.train, recipe.optimizer);
  return {{"train.micro_batch", fmt::to_string(train.micro_batch)},
          {"train.prefetch", fmt::to_string(train.prefetch)},
          {"model.recompute", model.recompute.empty() ? "none" : fmt::format("{}", fmt::join(model.recompute, ", "))},
          {"model.sequence_parallel", fmt::to_string(model.sequence_parallel)},
          {"model.tp_overlap_pieces", fmt::to_string(model.overlap.tp_pieces)},
          {"model.expert_overlap_pieces", fmt::to_string(model.overlap.expert_pieces)},
          {"optimizer.overlap_grad_reduce", fmt::to_string(optimizer.overlap_grad_reduce)},
          {"optimizer.overlap_param_gather", fmt::to_string(optimizer.overlap_param_gather)}};
}

PlanLayout plan_layout(const Recipe& recipe, const Simulation& simulation, const HardwareProfile& hardware) {
  PlanLayout layout = {.name = grids_text(recipe),
                       .settings = recipe_keys(recipe),
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

PlanLayout plan_layout(const Candidate& candidate, const HardwareProfile& hardware, std::int64_t limit) {
  PlanLayout layout = plan_layout(candidate.recipe, candidate.simulation, hardware);
  layout.fits = candidate.memory <= limit;
  layout.reason = candidate.why;
  return layout;
}

PlanPage page_about(const PageRecipe& about) {
  PlanPage page = {.recipe = about.name,
                   .model = about.recipe.model.provider,
                   .hardware = about.hardware.name,
                   .hardware_source = about.hardware.source,
                   .global_batch = about.recipe.train.global_batch,
                   .memory_bytes = 1e9 * about.hardware.memory_gb,
                   .memory_is_shared = is_host(about.hardware),
                   .notes = {described(about.hardware), "samples: " + about.sizes}};
  return page;
}

}  // namespace

PlanPage page_of(const PageRecipe& about, const SimulationAndStep& simulated) {
  const Simulation& simulation = simulated.simulation;
  PlanPage page = page_about(about);
  page.ranks = simulation.ranks;
  page.baseline = 0;
  page.layouts.push_back(plan_layout(about.recipe, simulation, about.hardware));
  page.layouts.front().fits = page.layouts.front().needed_bytes <= page.memory_bytes;
  page.layouts.front().timeline = Timeline(simulated.step).build();
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
    page.layouts.push_back(plan_layout(*candidate, about.hardware, result.memory_limit));
    if (page.layouts.size() <= kTimelines || candidate == &result.given)
      page.layouts.back().timeline =
          Timeline(simulate_and_keep(candidate->recipe, about.hardware, {.steps = 1, .draw = steps.draw}).step).build();
  }
  mark_front(page.layouts);
  return page;
}

}  // namespace braid
