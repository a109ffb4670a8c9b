// braid plan simulate and search: how long a training step of a recipe takes on a machine, and why; and the layouts
// that are fastest on a number of nodes. Also the options that the commands of braid plan share.
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "cli/command.h"
#include "cli/plan_options.h"
#include "cli/start.h"
#include "plan/player.h"
#include "plan/show.h"
#include "predict/plan_page.h"
#include "predict/search.h"
#include "predict/simulate.h"
#include "predict/step_draws.h"
#include "run/output_files.h"

namespace braid {
namespace {

// Beyond this, drawing each replica's samples and playing each replica takes too long.
constexpr int kMaxDrawnReplicas = 4096;

// More steps take long and hardly change the mean and the spread.
constexpr int kMaxSteps = 1000;

// Empty: sizes are drawn.
std::string why_full(const Recipe& recipe, const PlanCall& call) {
  const auto replicas = sum_of<int>(recipe.topology.modules, &ModuleConfig::dp);
  if (call.full) return "--full";
  if (!is_mock(recipe.data) && call.stats_path.empty()) return "no --stats of the data set were given";
  return replicas > kMaxDrawnReplicas ? "there are too many replicas to draw samples for each" : "";
}

void check(const PlanCall& call) {
  if (call.steps && *call.steps > kMaxSteps)
    throw ConfigError(
        {fmt::format("--steps {} is too many to draw", *call.steps), "command line",
         fmt::format("use at most {}, or leave it out for {}", kMaxSteps, counted(call.default_steps, "step"))});
  if (!call.full || (call.stats_path.empty() && !call.steps)) return;
  const std::string options = call.stats_path.empty() ? "--steps" : call.steps ? "--stats and --steps" : "--stats";
  throw ConfigError({fmt::format("--full draws no steps, so it cannot be combined with {}", options), "command line",
                     fmt::format("leave out --full to draw steps, or leave out {} for full sequences", options)});
}

using Json = nlohmann::ordered_json;

void check_files(const std::vector<OutputFile>& files, const PlanCall& call, const Recipe& recipe) {
  check_outputs(files, {.path = call.recipe_path, .data = recipe.data.set, .others = {call.hardware, call.stats_path}});
}

// --- braid plan search -----------------------------------------------------------------------------------------------
struct SearchCommand {
  PlanCall plan{.hardware = "h100", .default_steps = 2};
  std::string headroom = "10%", write_path, html_path;
  int top = 10;
  bool any_data_order = false;
};

// "10%", "10 %" or "0.1".
double parse_share(const std::string& given) {
  std::string text = given;
  const bool percent = text.ends_with('%');
  if (percent) text.pop_back();
  while (text.ends_with(' ')) text.pop_back();
  const std::optional<double> number = parse_double(text);
  const double share = number.value_or(-1) / (percent ? 100 : 1);
  if (share >= 0 && share < 1) return share;
  throw ConfigError({fmt::format("--memory-headroom {} is not a share of the memory", given), "command line",
                     "give a percentage below 100 with its sign, e.g. 10%"});
}

std::string gigabytes(std::int64_t bytes) { return fmt::format("{:.1f}", 1e-9 * static_cast<double>(bytes)); }

std::vector<std::string> row_of(const std::string& number, const Candidate& candidate, const SearchResult& result) {
  const int idle = result.gpus - candidate.simulation.ranks;
  const RankTimes times = language_times(candidate);
  return {number,
          fmt::format("{:.3f}", candidate.simulation.iteration_s),
          fmt::format("{:.2f}x", result.given.simulation.iteration_s / candidate.simulation.iteration_s),
          fmt::format("{:.0f}", candidate.simulation.tokens_per_s_per_gpu),
          gigabytes(candidate.memory) + (candidate.on_front ? " *" : ""),
          gigabytes(candidate.with_slack),
          fmt::format("{:.3f}", times.compute),
          fmt::format("{:.3f}", times.communication),
          fmt::format("{:.3f}", times.waiting),
          candidate.simulation.bound_by,
          grids_text(candidate.recipe) + (idle > 0 ? fmt::format(" ({} idle)", idle) : ""),
          settings_text(candidate.recipe)};
}

bool is_better(const SearchResult& result) {
  return !result.best.empty() && result.best.front().simulation.iteration_s < result.given.simulation.iteration_s;
}

void print_verdict(const SearchResult& result, const HardwareProfile& hardware) {
  if (result.best.empty())
    fmt::print("No layout of {} fits in {} GB.\n\n", counted(result.gpus, device_word(hardware)),
               gigabytes(result.memory_limit));
  if (result.given.simulation.ranks > result.gpus) {
    fmt::print("The recipe as given needs {}; its time is shown for comparison.\n\n",
               counted(result.given.simulation.ranks, device_word(hardware)));
    return;
  }
  if (!result.best.empty() && !is_better(result))
    fmt::print("No layout in this space is faster than the recipe as given.\n\n");
  if (!result.given_fits)
    fmt::print("The recipe as given needs {} GB, which is more than {} GB.\n\n", gigabytes(result.given.memory),
               gigabytes(result.memory_limit));
}

void print_result(const SearchResult& result, const Recipe& recipe, const HardwareProfile& hardware,
                  const PlanSizes& sizes) {
  const SearchCounts& counts = result.counts;
  fmt::print("hardware: {}\nsizes: {}\n{}, global batch {}, at most {} GB needed per {} of {:.1f} GB\n",
             described(hardware), sizes.words, counted(result.gpus, device_word(hardware)), recipe.train.global_batch,
             gigabytes(result.memory_limit), is_host(hardware) ? "host" : "GPU", hardware.memory_gb);
  fmt::print(
      "{} layouts considered ({} more splits break rules): {} too large, {} too slow by a lower bound, {} simulated "
      "with {} settings\n\n",
      counts.layouts, counts.against_rules, counts.too_large, counts.too_slow, counts.simulated, counts.simulations);
  print_verdict(result, hardware);
  const std::vector<std::string> head = {"",          "s",          "speed",   "tokens/s/" + device_word(hardware),
                                         "GB needed", "with slack", "compute", "communicate",
                                         "wait",      "bound by",   "grids",   "settings"};
  Rows rows = {row_of("given", result.given, result)}, front;
  for (const Candidate& candidate : result.best) rows.push_back(row_of(std::to_string(rows.size()), candidate, result));
  for (const Candidate& candidate : result.front) front.push_back(row_of("", candidate, result));
  fmt::print("{}", format_table(head, rows));
  if (!front.empty())
    fmt::print("\nNothing that was simulated is both faster and smaller (*):\n{}", format_table(head, front));
}

Json candidate_json(const Candidate& candidate, const SearchResult& result) {
  Json modules;
  for (const ModuleConfig& module : candidate.recipe.topology.modules)
    modules[module.name] = {
        {"ranks", grid_size(module)}, {"tp", module.tp}, {"cp", module.cp}, {"ep", module.ep}, {"pp", module.pp},
        {"vpp", module.vpp},          {"dp", module.dp}};
  const Recipe& recipe = candidate.recipe;
  const Simulation& simulation = candidate.simulation;
  const RankTimes times = language_times(candidate);
  Json json = {{"iteration_s", simulation.iteration_s},
               {"speed", result.given.simulation.iteration_s / simulation.iteration_s},
               {"tokens_per_s_per_gpu", simulation.tokens_per_s_per_gpu},
               {"tflops_per_gpu", simulation.tflops_per_gpu},
               {"bubble", simulation.bubble},
               {"exposed_communication_s", simulation.exposed_communication_s},
               {"bound_by", simulation.bound_by},
               {"memory_bytes", candidate.memory},
               {"device_bytes", candidate.with_slack},
               {"pareto", candidate.on_front},
               {"compute_s", times.compute},
               {"communication_s", times.communication},
               {"waiting_s", times.waiting},
               {"ranks", simulation.ranks},
               {"colocated", recipe.topology.colocated},
               {"modules", std::move(modules)}};
  const Json settings = settings_json(recipe);
  for (const auto& [key, value] : settings.items()) json[key.substr(key.find('.') + 1)] = value;
  return json;
}

std::string result_json(const SearchResult& result, const Recipe& recipe, const HardwareProfile& hardware,
                        const PlanSizes& sizes) {
  const auto of_candidate = [&](const Candidate& candidate) { return candidate_json(candidate, result); };
  const SearchCounts& counts = result.counts;
  Json json = {{"hardware", hardware.name},
               {"hardware_source", name_of(hardware.source)},
               {"sizes", sizes.words},
               {"gpus", result.gpus},
               {"global_batch", recipe.train.global_batch},
               {"memory_limit_bytes", result.memory_limit},
               {"better_than_given", is_better(result)},
               {"counts",
                {{"layouts", counts.layouts},
                 {"against_rules", counts.against_rules},
                 {"too_large", counts.too_large},
                 {"too_slow", counts.too_slow},
                 {"simulated", counts.simulated},
                 {"simulations", counts.simulations}}},
               {"given", of_candidate(result.given)}};
  json["given"]["fits"] = result.given_fits;
  json["best"] = vector_of<Json>(result.best, of_candidate);
  json["pareto"] = vector_of<Json>(result.front, of_candidate);
  return json.dump();
}

void plan_search(const SearchCommand& command, const std::vector<std::string>& flags) {
  const PlanCall& call = command.plan;
  const Recipe recipe = read_recipe_call(call.recipe_path, flags).recipe;
  check_files({{"--write", command.write_path, {".yaml", ".yml"}}, {"--html", command.html_path, {".html", ".htm"}}},
              call, recipe);
  const HardwareProfile hardware = load_hardware(call.hardware);
  const PlanSizes sizes = plan_sizes(recipe, call);
  if (call.nodes) check_nodes({*call.nodes}, hardware);
  const int per_node = hardware.ranks_per_node, ranks = ranks_of(layout_of(recipe));
  const int nodes = call.nodes.value_or(std::min((ranks + per_node - 1) / per_node, kMaxWorldSize / per_node));
  WorkStatus status;
  const SearchResult result =
      search_layouts(recipe, hardware,
                     {.nodes = nodes,
                      .memory_headroom = parse_share(command.headroom),
                      .top = command.top,
                      .same_data_order = !command.any_data_order,
                      .steps = sizes.options,
                      .tell = [&](const std::string& doing, double share) { status.show(doing, share); }});
  status.clear();
  if (call.json)
    fmt::print("{}\n", result_json(result, recipe, hardware, sizes));
  else
    print_result(result, recipe, hardware, sizes);
  if (!command.html_path.empty())
    write_output(command.html_path,
                 plan_html(page_of({call.recipe_path, recipe, hardware, sizes.words}, result, sizes.options)));
  if (command.write_path.empty()) return;
  if (result.best.empty())
    throw ConfigError({"no layout fits in memory, so there is no recipe to write", "--write",
                       "use more nodes, or a smaller --memory-headroom"});
  write_output(command.write_path, to_yaml(result.best.front().recipe));
}

// --- braid plan simulate ---------------------------------------------------------------------------------------------
struct SimulateCommand {
  PlanCall plan{.hardware = "h100"};
  std::string svg_path, trace_path, html_path;
  double compute_efficiency = 1, link_efficiency = 1;
  std::optional<std::int64_t> seed;
};

// What was asked, and the answer.
struct SimulationAnswer {
  const Recipe& recipe;
  const HardwareProfile& hardware;
  const PlanSizes& sizes;
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
  Rows rows;
  for (const ModuleTimes& module : simulation.modules) {
    const double all = simulation.iteration_s;
    rows.push_back({module.name, std::to_string(module.ranks), share(module.compute, all),
                    share(module.communication(), all), share(module.waiting, all)});
  }
  return format_table({"module", "ranks", "compute", "communication", "waiting"}, rows);
}

std::string communication_table(const Simulation& simulation) {
  Rows rows;
  for (const ModuleTimes& module : simulation.modules)
    for (std::size_t kind = 0; kind < kCommKinds; ++kind)
      if (module.exposed[kind] > 1e-4 * simulation.iteration_s)
        rows.push_back({module.name, name_of(static_cast<CommKind>(kind)),
                        fmt::format("{:>8.1f} ms", 1e3 * module.exposed[kind])});
  return rows.empty() ? "" : "\n" + format_table({"exposed communication", "kind", "time"}, rows);
}

Json module_json(const ModuleTimes& module, double iteration_s) {
  Json exposed = Json::object();
  for (std::size_t kind = 0; kind < kCommKinds; ++kind)
    exposed[name_of(static_cast<CommKind>(kind))] = module.exposed[kind];
  return {{"name", module.name},
          {"ranks", module.ranks},
          {"compute_s", module.compute},
          {"waiting_s", module.waiting},
          {"exposed_communication_s", std::move(exposed)},
          {"utilisation", module.compute / iteration_s}};
}

std::string to_json(const SimulationAnswer& answer) {
  const auto& [recipe, hardware, sizes, simulation, memory, gain] = answer;
  Json json = to_json(simulation);
  json.update({{"steps", sizes.options.steps},
               {"sizes", sizes.words},
               {"ranks", simulation.ranks},
               {"nodes", simulation.nodes},
               {"played_ranks", simulation.played_ranks},
               {"global_batch", recipe.train.global_batch},
               {"hardware", hardware.name},
               {"hardware_source", name_of(hardware.source)}});
  json["device_memory"] = to_json(memory);
  if (gain)
    json["balance"] = {{"without_s", gain->without_s},
                       {"with_s", gain->with_s},
                       {"gain", gain->share()},
                       {"replicas", gain->replicas}};
  for (const ModuleTimes& module : simulation.modules)
    json["modules"].push_back(module_json(module, simulation.iteration_s));
  return json.dump();
}

void print_answer(const SimulationAnswer& answer, const std::string& scaled) {
  const auto& [recipe, hardware, sizes, simulation, memory, gain] = answer;
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
  fmt::print("memory         {}\n", described(memory, hardware));
  if (simulation.reading_s > 0)
    fmt::print("reading        {} of the slowest reader, ahead of the step\n", time_text(simulation.reading_s));
  if (gain)
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
  return device_memory(predict_memory(recipe, topology, {full_step(recipe, topology)}, question), topology, question);
}

void plan_simulate(const SimulateCommand& command, const std::vector<std::string>& flags) {
  const PlanCall& call = command.plan;
  Recipe recipe = read_recipe_call(call.recipe_path, flags).recipe;
  check_files({{"--svg", command.svg_path, {".svg"}},
               {"--trace", command.trace_path, {".json"}},
               {"--html", command.html_path, {".html", ".htm"}}},
              call, recipe);
  const HardwareProfile hardware =
      slower(load_hardware(call.hardware), {.compute = command.compute_efficiency, .links = command.link_efficiency});
  const std::string scaled = scale_recipe(recipe, call, hardware);
  if (command.seed) recipe.train.seed = *command.seed;
  const PlanSizes sizes = plan_sizes(recipe, call);
  const auto [simulation, step] = simulate_and_keep(recipe, hardware, sizes.options);
  if (!command.svg_path.empty())
    write_output(command.svg_path, draw_svg(step.schedule, step.world.topology, in_milliseconds(step.play),
                                            stage_costs(step.world.topology, frozen_sets(recipe))));
  if (!command.trace_path.empty()) write_output(command.trace_path, trace_of(step));
  if (!command.html_path.empty())
    write_output(command.html_path,
                 plan_html(page_of({call.recipe_path, recipe, hardware, sizes.words}, {simulation, step})));
  const SimulationAnswer answer = {recipe,
                                   hardware,
                                   sizes,
                                   simulation,
                                   memory_of(recipe, hardware),
                                   balance_gain(recipe, hardware, sizes.options, simulation)};
  if (call.json) return fmt::print("{}\n", to_json(answer));
  print_answer(answer, scaled);
}

}  // namespace

Option plan_option(const std::string& name, PlanCall& call, const std::string& otherwise) {
  if (name == "recipe") return {name, &call.recipe_path, "recipe file, e.g. recipes/tiny-vlm.yaml", kRequired};
  if (name == "--hardware")
    return {name, &call.hardware,
            fmt::format("{}, or a file that braid plan calibrate wrote; default: {}", joined(hardware_names(), ", "),
                        call.hardware.empty() ? "none" : call.hardware)};
  if (name == "--nodes")
    return {name, &call.nodes,
            "on this many nodes: with more or fewer replicas of the language model, and the global batch in "
            "proportion; a CPU profile has one node",
            kPositive};
  if (name == "--encoder-nodes")
    return {name, &call.encoder_nodes, "with --nodes: this many of them for the encoders; default: as in the recipe",
            kPositive};
  if (name == "--stats")
    return {name, &call.stats_path,
            "sizes of the data set's samples, of braid data inspect --stats; each step draws from them"};
  if (name == "--steps")
    return {name, &call.steps, "how many steps to draw, up to 1000; default: " + otherwise, kPositive};
  BRAID_CHECK_EQ(name, "--full", "the options of braid plan");
  return {name, &call.full,
          "draw nothing: full sequences, with as many and as large media as mock samples may have; not with --stats or "
          "--steps"};
}

std::string scale_recipe(Recipe& recipe, const PlanCall& call, const HardwareProfile& hardware) {
  if (!call.nodes && call.encoder_nodes)
    throw ConfigError(
        {"--encoder-nodes was given without --nodes", "command line", "also say how many nodes there are"});
  if (!call.nodes) return "";
  ScaledRecipe scaled = scale_to_nodes(recipe, {*call.nodes, call.encoder_nodes}, hardware);
  recipe = std::move(scaled.recipe);
  return std::move(scaled.how);
}

std::string described(const DeviceMemory& memory, const HardwareProfile& hardware) {
  const bool shared = is_host(hardware);
  const double needed = 1e-9 * static_cast<double>(memory.needed), has = 1e-9 * static_cast<double>(memory.capacity);
  if (memory.fits())
    return fmt::format("{:.2f} of {:.2f} GB needed {}", needed, has, shared ? "by all ranks" : "on the fullest GPU");
  return fmt::format("does not fit: {} {:.2f} GB, but {} has {:.2f} GB",
                     shared ? "all ranks need" : "the fullest GPU needs", needed, shared ? "the host" : "it", has);
}

PlanSizes plan_sizes(const Recipe& recipe, const PlanCall& call) {
  check(call);
  std::shared_ptr<const DataStats> stats;
  if (!call.stats_path.empty()) stats = std::make_shared<DataStats>(read_data_stats(call.stats_path));
  if (const std::string why = why_full(recipe, call); !why.empty())
    return {{.steps = 1},
            fmt::format("full sequences with as many and as large media as mock samples may have, since {}{}", why,
                        call.steps || stats ? ", so no steps are drawn" : "")};
  const int steps = call.steps.value_or(call.default_steps);
  return {{.steps = steps,
           .draw = [stats](const Recipe& r, const Topology& topology,
                           int step) { return draw_step(r, topology, stats.get(), static_cast<std::uint64_t>(step)); },
           .reading = stats ? stats->reading : std::nullopt},
          fmt::format("drawn from {}, {}", stats ? call.stats_path : "those of mock samples", counted(steps, "step"))};
}

Command plan_search_command() {
  const auto o = std::make_shared<SearchCommand>();
  return {
      .name = "search",
      .help = "Find the fastest layouts of a recipe on a number of nodes",
      .options = {plan_option("recipe", o->plan),
                  {"--nodes", &o->plan.nodes,
                   "how many nodes there are; default: as many as the recipe uses; a CPU profile has one node",
                   kPositive},
                  plan_option("--hardware", o->plan),
                  {"--memory-headroom", &o->headroom,
                   "share of the memory of a GPU, or of the host, that stays free; default: 10%"},
                  {"--top", &o->top, "how many layouts to print; default: 10", kPositive},
                  plan_option("--stats", o->plan),
                  plan_option("--steps", o->plan, "2, or 1 with full sequences"),
                  plan_option("--full", o->plan),
                  {"--any-data-order", &o->any_data_order,
                   "also layouts that read a data set in another order, because their dp does not divide its lanes"},
                  {"--json", &o->plan.json, "print JSON, for programs"},
                  {"--write", &o->write_path, "write the fastest layout to this file, a recipe that trains"},
                  {"--html", &o->html_path, "write the layouts to this file, a page to look at in a browser"}},
      .extras = Extras::RecipeKeys,
      .footer =
          "The global batch stays as it is, and with it the losses.\n"
          "compute, communicate, wait: seconds of an iteration, on the average rank of the language model and of "
          "encoders that share its ranks. Communication that runs during products is not counted.\n"
          "GB needed: of the fullest GPU, or of the host; this is what must fit. With slack: with freed memory that "
          "the allocator keeps, an estimate; it gives that back before it runs out of memory.\n\n",
      .run = [o](Call& call) { plan_search(*o, call.arguments); }};
}

Command plan_simulate_command() {
  const auto o = std::make_shared<SimulateCommand>();
  return {.name = "simulate",
          .help = "Predict how long a training step takes on a machine, and why",
          .options = {plan_option("recipe", o->plan),
                      plan_option("--hardware", o->plan),
                      plan_option("--nodes", o->plan),
                      plan_option("--encoder-nodes", o->plan),
                      {"--compute-efficiency", &o->compute_efficiency,
                       "share of the operators' speed that is reached, by another program or in practice; default: 1",
                       Rules{.check = kEfficiency}},
                      {"--link-efficiency", &o->link_efficiency, "the same for the links' speed; default: 1",
                       Rules{.check = kEfficiency}},
                      plan_option("--stats", o->plan),
                      plan_option("--steps", o->plan, "8, or 1 with full sequences"),
                      {"--seed", &o->seed, "of the draws; default: train.seed",
                       Rules{.check = WholeRange{0, kLargestSeed}}},
                      plan_option("--full", o->plan),
                      {"--json", &o->plan.json, "print JSON, for programs"},
                      {"--svg", &o->svg_path, "draw the last step to this file, to scale"},
                      {"--trace", &o->trace_path, "write the last step to this file, for Perfetto"},
                      {"--html", &o->html_path, "write the result to this file, a page to look at in a browser"}},
          .extras = Extras::RecipeKeys,
          .run = [o](Call& call) { plan_simulate(*o, call.arguments); }};
}

}  // namespace braid
