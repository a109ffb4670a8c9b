// braid plan simulate: how long a training step of a recipe takes on a machine, and why.
#include <nlohmann/json.hpp>

#include <cmath>
#include <memory>
#include <optional>

#include "base/strings.h"
#include "cli/plan_options.h"
#include "cli/recipe_call.h"
#include "plan/frozen.h"
#include "plan/show.h"
#include "predict/plan_page.h"
#include "predict/simulate.h"
#include "run/output_files.h"

namespace braid {
namespace {

struct SimulateCommand {
  std::string recipe_path, svg_path, trace_path, html_path;
  MachineCall machine{.hardware = "h100"};
  double compute_efficiency = 1, link_efficiency = 1;
  PlanSizesCall sizes;
  std::optional<std::int64_t> seed;
  bool json = false;
};

struct SimulationAnswer {
  const Simulation& simulation;
  DeviceMemory memory{};
  std::optional<BalanceGain> gain{};
};

// Steps of small models take milliseconds.
std::string time_text(double seconds) {
  return seconds > 0 && seconds < 0.1 ? fmt::format("{:.3f} ms", 1e3 * seconds) : fmt::format("{:.3f} s", seconds);
}

std::string share(double part, double whole) { return fmt::format("{:>5.1f} %", 100 * part / whole); }

std::string module_table(const Simulation& simulation) {
  std::vector<std::vector<std::string>> rows;
  for (const ModuleTimes& module : simulation.modules) {
    const double all = simulation.iteration_s;
    rows.push_back({module.name, std::to_string(module.ranks), share(module.compute, all),
                    share(module.communication(), all), share(module.waiting, all)});
  }
  return format_table({"module", "ranks", "compute", "communication", "waiting"}, rows);
}

std::string communication_table(const Simulation& simulation) {
  std::vector<std::vector<std::string>> rows;
  for (const ModuleTimes& module : simulation.modules)
    for (std::size_t kind = 0; kind < kCommKinds; ++kind)
      if (module.exposed[kind] > 1e-4 * simulation.iteration_s)
        rows.push_back({module.name, name_of(static_cast<CommKind>(kind)),
                        fmt::format("{:>8.1f} ms", 1e3 * module.exposed[kind])});
  return rows.empty() ? "" : "\n" + format_table({"exposed communication", "kind", "time"}, rows);
}

nlohmann::ordered_json module_json(const ModuleTimes& module, double iteration_s) {
  nlohmann::ordered_json exposed = nlohmann::ordered_json::object();
  for (std::size_t kind = 0; kind < kCommKinds; ++kind)
    exposed[name_of(static_cast<CommKind>(kind))] = module.exposed[kind];
  return {{"name", module.name},
          {"ranks", module.ranks},
          {"compute_s", module.compute},
          {"waiting_s", module.waiting},
          {"exposed_communication_s", std::move(exposed)},
          {"utilisation", module.compute / iteration_s}};
}

nlohmann::ordered_json balance_json(const BalanceGain& gain) {
  return {{"without_s", gain.without_s}, {"with_s", gain.with_s}, {"gain", gain.share()}, {"replicas", gain.replicas}};
}

std::string to_json(const SimulationAnswer& answer, const Recipe& recipe, const HardwareProfile& hardware,
                    const PlanSizes& sizes) {
  const Simulation& simulation = answer.simulation;
  nlohmann::ordered_json json = {{"iteration_s", simulation.iteration_s},
                                 {"spread_s", simulation.spread_s},
                                 {"fastest_s", simulation.fastest_s},
                                 {"slowest_s", simulation.slowest_s},
                                 {"tokens_per_s_per_gpu", simulation.tokens_per_s_per_gpu},
                                 {"tflops_per_gpu", simulation.tflops_per_gpu},
                                 {"bubble", simulation.bubble},
                                 {"exposed_communication_s", simulation.exposed_communication_s},
                                 {"bound_by", simulation.bound_by},
                                 {"reading_s", simulation.reading_s},
                                 {"steps", sizes.options.steps},
                                 {"sizes", sizes.words},
                                 {"ranks", simulation.ranks},
                                 {"nodes", simulation.nodes},
                                 {"played_ranks", simulation.played_ranks},
                                 {"global_batch", recipe.train.global_batch},
                                 {"hardware", hardware.name},
                                 {"hardware_source", hardware.source}};
  json["device_memory"] = to_json(answer.memory);
  if (answer.gain) json["balance"] = balance_json(*answer.gain);
  for (const ModuleTimes& module : simulation.modules)
    json["modules"].push_back(module_json(module, simulation.iteration_s));
  return json.dump();
}

std::string drawing(const PlayedStep& step, const Recipe& recipe) {
  return draw_svg(step.schedule, step.world.topology, in_milliseconds(step.play),
                  stage_costs(step.world.topology, frozen_sets(recipe)));
}

void check_files(const SimulateCommand& command, const Recipe& recipe) {
  check_outputs({{"--svg", command.svg_path, {".svg"}},
                 {"--trace", command.trace_path, {".json"}},
                 {"--html", command.html_path, {".html", ".htm"}}},
                {.path = command.recipe_path,
                 .data = recipe.data.set,
                 .others = {command.machine.hardware, command.sizes.stats_path}});
}

void write_files(const SimulateCommand& command, const Recipe& recipe, const HardwareProfile& hardware,
                 const PlanSizes& sizes, const SimulationAndStep& simulated) {
  if (!command.svg_path.empty()) write_output(command.svg_path, drawing(simulated.step, recipe));
  if (!command.trace_path.empty()) {
    make_folder_of(command.trace_path);
    write_trace(simulated.step, command.trace_path);
  }
  if (!command.html_path.empty())
    write_output(command.html_path,
                 plan_html(page_of({command.recipe_path, recipe, hardware, sizes.words}, simulated)));
}

void print_answer(const SimulationAnswer& answer, const HardwareProfile& hardware, const PlanSizes& sizes,
                  const std::string& scaled) {
  const Simulation& simulation = answer.simulation;
  fmt::print("hardware: {}\nsizes: {}\n", described(hardware), sizes.words);
  if (!scaled.empty()) fmt::print("scaled: {}\n", scaled);
  fmt::print("{} on {}, played as {}\n\n", counted(simulation.ranks, "rank"), counted(simulation.nodes, "node"),
             counted(simulation.played_ranks, "rank"));
  fmt::print("iteration      {}{}\n", time_text(simulation.iteration_s),
             sizes.options.steps == 1 ? ""
                                      : fmt::format(", +- {} ({} to {})", time_text(simulation.spread_s),
                                                    time_text(simulation.fastest_s), time_text(simulation.slowest_s)));
  const std::string device = device_word(hardware);
  fmt::print("throughput     {:.0f} tokens/s/{}, {} TFLOP/s/{}\n", simulation.tokens_per_s_per_gpu, device,
             plain_number(simulation.tflops_per_gpu), device);
  fmt::print("bubble         {:.1f} %\n", 100 * simulation.bubble);
  fmt::print("communication  {} exposed, of {}\n", time_text(simulation.exposed_communication_s),
             simulation.limiting_module);
  fmt::print("bound by       {}\n", simulation.bound_by);
  fmt::print("memory         {}\n", described(answer.memory, hardware));
  if (simulation.reading_s > 0)
    fmt::print("reading        {} of the slowest reader, ahead of the step\n", time_text(simulation.reading_s));
  if (const auto& gain = answer.gain)
    fmt::print("balance        {:.1f} %: {} with loader.balance: cost (balance_replicas: {}), {} without\n",
               std::round(1e3 * gain->share()) / 10 + 0.0, time_text(gain->with_s), gain->replicas,
               time_text(gain->without_s));
  fmt::print("\n{}{}", module_table(simulation), communication_table(simulation));
}

constexpr RealRange kEfficiency = {0.01, 10};

// Of full sequences, as in a search and on pages: steps that are not drawn may be larger than those that are.
DeviceMemory memory_of(const Recipe& recipe, const HardwareProfile& hardware) {
  const Topology topology(recipe.topology, workload_of(recipe));
  const MemoryQuestion question = memory_question(hardware);
  return device_memory(predict_memory(recipe, topology, full_step(recipe, topology), question), topology, question);
}

void plan_simulate(const SimulateCommand& command, const std::vector<std::string>& flags) {
  Recipe recipe = read_recipe_call(command.recipe_path, flags).recipe;
  check_files(command, recipe);
  const HardwareProfile hardware = slower(load_hardware(command.machine.hardware),
                                          {.compute = command.compute_efficiency, .links = command.link_efficiency});
  const std::string scaled = scale_recipe(recipe, command.machine, hardware);
  if (command.seed) recipe.train.seed = *command.seed;
  const PlanSizes sizes = plan_sizes(recipe, command.sizes);
  const SimulationAndStep simulated = simulate_and_keep(recipe, hardware, sizes.options);
  write_files(command, recipe, hardware, sizes, simulated);
  const SimulationAnswer answer = {simulated.simulation, memory_of(recipe, hardware),
                                   balance_gain(recipe, hardware, sizes.options, simulated.simulation)};
  if (command.json) return fmt::print("{}\n", to_json(answer, recipe, hardware, sizes));
  print_answer(answer, hardware, sizes, scaled);
}

}  // namespace

Command plan_simulate_command() {
  const auto o = std::make_shared<SimulateCommand>();
  return {.name = "simulate",
          .help = "Predict how long a training step takes on a machine, and why",
          .options = {recipe_option(o->recipe_path),
                      hardware_option(o->machine),
                      nodes_option(o->machine),
                      encoder_nodes_option(o->machine),
                      {"--compute-efficiency", &o->compute_efficiency,
                       "share of the operators' speed that is reached, by another program or in practice; default: 1",
                       Rules{.check = kEfficiency}},
                      {"--link-efficiency", &o->link_efficiency, "the same for the links' speed; default: 1",
                       Rules{.check = kEfficiency}},
                      stats_option(o->sizes),
                      steps_option(o->sizes, "8, or 1 with full sequences"),
                      {"--seed", &o->seed, "of the draws; default: train.seed",
                       Rules{.check = WholeRange{0, kLargestSeed}}},
                      full_option(o->sizes),
                      {"--json", &o->json, "print JSON, for programs"},
                      {"--svg", &o->svg_path, "draw the last step to this file, to scale"},
                      {"--trace", &o->trace_path, "write the last step to this file, for Perfetto"},
                      {"--html", &o->html_path, "write the result to this file, a page to look at in a browser"}},
          .extras = Extras::RecipeKeys,
          .run = [o](Call& call) { plan_simulate(*o, call.arguments); }};
}

}  // namespace braid
