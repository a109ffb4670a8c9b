// braid plan search: the layouts of a recipe that are fastest on a number of nodes, by simulation.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

#include "base/strings.h"
#include "cli/plan_options.h"
#include "cli/recipe_call.h"
#include "predict/layout.h"
#include "predict/plan_page.h"
#include "predict/search.h"
#include "run/output_files.h"

namespace braid {
namespace {

struct SearchCommand {
  std::string recipe_path, headroom = "10%", write_path, html_path;
  MachineCall machine{.hardware = "h100"};
  PlanSizesCall sizes{.default_steps = 2};
  int top = 10;
  bool json = false, any_data_order = false;
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

int nodes_of(const Recipe& recipe, int ranks_per_node) {
  const int ranks = ranks_of(layout_of(recipe));
  return std::min((ranks + ranks_per_node - 1) / ranks_per_node, kMaxWorldSize / ranks_per_node);
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

using Head = std::vector<std::string>;
Head head_of(const HardwareProfile& hardware) {
  return {"",          "s",          "speed",   "tokens/s/" + device_word(hardware),
          "GB needed", "with slack", "compute", "communicate",
          "wait",      "bound by",   "grids",   "settings"};
}

void print_table(const SearchResult& result, const Head& head) {
  std::vector<std::vector<std::string>> rows = {row_of("given", result.given, result)};
  for (std::size_t i = 0; i < result.best.size(); ++i)
    rows.push_back(row_of(std::to_string(i + 1), result.best[i], result));
  fmt::print("{}", format_table(head, rows));
}

void print_front(const SearchResult& result, const Head& head) {
  if (result.front.empty()) return;
  std::vector<std::vector<std::string>> rows;
  for (const Candidate& candidate : result.front) rows.push_back(row_of("", candidate, result));
  fmt::print("\nNothing that was simulated is both faster and smaller (*):\n{}", format_table(head, rows));
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
  print_table(result, head_of(hardware));
  print_front(result, head_of(hardware));
}

nlohmann::ordered_json candidate_json(const Candidate& candidate, const SearchResult& result) {
  nlohmann::ordered_json modules;
  for (const ModuleConfig& module : candidate.recipe.topology.modules)
    modules[module.name] = {
        {"ranks", grid_size(module)}, {"tp", module.tp}, {"cp", module.cp}, {"ep", module.ep}, {"pp", module.pp},
        {"vpp", module.vpp},          {"dp", module.dp}};
  const Recipe& recipe = candidate.recipe;
  const Simulation& simulation = candidate.simulation;
  const RankTimes times = language_times(candidate);
  return {{"iteration_s", simulation.iteration_s},
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
          {"modules", std::move(modules)},
          {"micro_batch", recipe.train.micro_batch},
          {"prefetch", recipe.train.prefetch},
          {"recompute", recipe.model.recompute},
          {"sequence_parallel", recipe.model.sequence_parallel},
          {"tp_overlap_pieces", recipe.model.overlap.tp_pieces},
          {"expert_overlap_pieces", recipe.model.overlap.expert_pieces},
          {"overlap_grad_reduce", recipe.optimizer.overlap_grad_reduce},
          {"overlap_param_gather", recipe.optimizer.overlap_param_gather}};
}

std::string result_json(const SearchResult& result, const Recipe& recipe, const HardwareProfile& hardware,
                        const PlanSizes& sizes) {
  const auto list = [&](const std::vector<Candidate>& candidates) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Candidate& candidate : candidates) all.push_back(candidate_json(candidate, result));
    return all;
  };
  const SearchCounts& counts = result.counts;
  nlohmann::ordered_json json = {{"hardware", hardware.name},
                                 {"hardware_source", hardware.source},
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
                                 {"given", candidate_json(result.given, result)}};
  json["given"]["fits"] = result.given_fits;
  json["best"] = list(result.best);
  json["pareto"] = list(result.front);
  return json.dump();
}

// The fastest that fits.
void write_best(const SearchResult& result, const std::string& path) {
  if (result.best.empty())
    throw ConfigError({"no layout fits in memory, so there is no recipe to write", "--write",
                       "use more nodes, or a smaller --memory-headroom"});
  write_output(path, to_yaml(result.best.front().recipe));
}

void plan_search(const SearchCommand& command, const std::vector<std::string>& flags) {
  const Recipe recipe = read_recipe_call(command.recipe_path, flags).recipe;
  check_outputs({{"--write", command.write_path, {".yaml", ".yml"}}, {"--html", command.html_path, {".html", ".htm"}}},
                {.path = command.recipe_path,
                 .data = recipe.data.set,
                 .others = {command.machine.hardware, command.sizes.stats_path}});
  const HardwareProfile hardware = load_hardware(command.machine.hardware);
  const PlanSizes sizes = plan_sizes(recipe, command.sizes);
  if (command.machine.nodes) check_nodes({*command.machine.nodes}, hardware);
  const int nodes = command.machine.nodes.value_or(nodes_of(recipe, hardware.ranks_per_node));
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
  if (command.json)
    fmt::print("{}\n", result_json(result, recipe, hardware, sizes));
  else
    print_result(result, recipe, hardware, sizes);
  if (!command.html_path.empty())
    write_output(command.html_path,
                 plan_html(page_of({command.recipe_path, recipe, hardware, sizes.words}, result, sizes.options)));
  if (!command.write_path.empty()) write_best(result, command.write_path);
}

}  // namespace

Command plan_search_command() {
  const auto o = std::make_shared<SearchCommand>();
  return {
      .name = "search",
      .help = "Find the fastest layouts of a recipe on a number of nodes",
      .options = {recipe_option(o->recipe_path),
                  {"--nodes", &o->machine.nodes,
                   "how many nodes there are; default: as many as the recipe uses; a CPU profile has one node",
                   kPositive},
                  hardware_option(o->machine),
                  {"--memory-headroom", &o->headroom,
                   "share of the memory of a GPU, or of the host, that stays free; default: 10%"},
                  {"--top", &o->top, "how many layouts to print; default: 10", kPositive},
                  stats_option(o->sizes),
                  steps_option(o->sizes, "2, or 1 with full sequences"),
                  full_option(o->sizes),
                  {"--any-data-order", &o->any_data_order,
                   "also layouts that read a data set in another order, because their dp does not divide its lanes"},
                  {"--json", &o->json, "print JSON, for programs"},
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

}  // namespace braid
