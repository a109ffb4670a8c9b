#include "cli/plan_sizes.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

// Beyond this, drawing each replica's samples and playing each replica takes too long.
constexpr int kMaxDrawnReplicas = 4096;

// More steps take long and hardly change the mean and the spread.
constexpr int kMaxSteps = 1000;

// Empty: sizes are drawn.
std::string why_full(const Recipe& recipe, const PlanSizesCall& call) {
  int replicas = 0;
  for (const ModuleConfig& module : recipe.topology.modules) replicas += module.dp;
  if (call.full) return "--full";
  if (!is_mock(recipe.data) && call.stats_path.empty()) return "no --stats of the data set were given";
  return replicas > kMaxDrawnReplicas ? "there are too many replicas to draw samples for each" : "";
}

void check(const PlanSizesCall& call) {
  if (call.steps && *call.steps > kMaxSteps)
    throw ConfigError(
        {fmt::format("--steps {} is too many to draw", *call.steps), "command line",
         fmt::format("use at most {}, or leave it out for {}", kMaxSteps, counted(call.default_steps, "step"))});
  std::vector<std::string> unused;
  if (!call.stats_path.empty()) unused.emplace_back("--stats");
  if (call.steps) unused.emplace_back("--steps");
  if (!call.full || unused.empty()) return;
  const std::string options = fmt::format("{}", fmt::join(unused, " and "));
  throw ConfigError({fmt::format("--full draws no steps, so it cannot be combined with {}", options), "command line",
                     fmt::format("leave out --full to draw steps, or leave out {} for full sequences", options)});
}

}  // namespace

PlanSizes plan_sizes(const Recipe& recipe, const PlanSizesCall& call) {
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

}  // namespace braid
