#include "log/run_summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"

namespace braid {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string loss_text(const std::optional<double>& loss) { return loss ? fmt::format("{:.4f}", *loss) : "none"; }

std::string rate_text(double per_second, int ranks, const char* unit) {
  return fmt::format("{} {} ({} per rank)", plain_number(per_second), unit, plain_number(per_second / ranks));
}

void add_speed(Rows& rows, const RunSummary& summary, const RunFacts& facts) {
  if (summary.iterations_done == 0 || summary.seconds <= 0) return;
  const auto done = static_cast<double>(summary.iterations_done);
  rows.push_back({"time per iteration", fmt::format("{:.1f} ms", 1e3 * summary.seconds / done)});
  if (summary.tokens > 0)
    rows.push_back({"throughput", rate_text(summary.tokens / summary.seconds, facts.ranks, "tokens/s")});
  if (facts.flops_per_iteration > 0)
    rows.push_back(
        {"compute", rate_text(1e-12 * facts.flops_per_iteration * done / summary.seconds, facts.ranks, "TFLOP/s")});
}

void add_samples(Rows& rows, const UnusableSamples& samples) {
  const std::pair<const char*, std::int64_t> counts[] = {{"damaged samples", samples.damaged},
                                                         {"too long samples", samples.too_long},
                                                         {"cut samples", samples.cut},
                                                         {"without targets", samples.without_targets}};
  for (const auto& [name, count] : counts)
    if (count > 0) rows.push_back({name, std::to_string(count)});
}

std::string memory_text(const MemoryUse& memory) {
  const std::string host = fmt::format("{:.0f} MB host", memory.max_host_mb);
  return memory.max_reserved_mb > 0 ? fmt::format("{:.0f} MB GPU ({:.0f} MB in tensors), {}", memory.max_reserved_mb,
                                                  memory.max_allocated_mb, host)
                                    : host;
}

// One row per phase, because with one column per phase the table would be wider than most terminals.
std::string phase_table(const std::vector<ModulePhases>& phases) {
  std::vector<std::string> header = {"share of time"};
  for (const ModulePhases& module : phases) header.push_back(module.module);
  Rows rows;
  for (std::size_t i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (std::all_of(phases.begin(), phases.end(), [&](const ModulePhases& m) { return m.mean.ms(phase) == 0; }))
      continue;
    std::vector<std::string>& row = rows.emplace_back(1, name_of(phase));
    for (const ModulePhases& module : phases) row.push_back(fmt::format("{:.0f} %", 100 * module.mean.share(phase)));
  }
  return format_table(header, rows);
}

// One row per module and kind, with means per iteration and rank.
std::string comm_table(const std::vector<ModulePhases>& phases, double iterations) {
  Rows rows;
  for (const ModulePhases& module : phases)
    for (std::size_t i = 0; i < kCommKinds; ++i) {
      const CommTotals& totals = module.communication[i];
      if (totals.in_flight_ms == 0) continue;
      rows.push_back(
          {module.module, name_of(static_cast<CommKind>(i)), fmt::format("{:.2f}", 1e-6 * totals.bytes / iterations),
           plain_number(1e-6 * totals.bytes / totals.in_flight_ms, 3),
           fmt::format("{:.1f}", totals.in_flight_ms / iterations),
           fmt::format("{:.1f}", totals.exposed_ms / iterations), fmt::format("{:.0f} %", 100 * totals.hidden())});
    }
  if (rows.empty()) return "";
  return "\n" + format_table({"communication", "", "MB", "GB/s", "ms", "exposed", "hidden"}, rows);
}

}  // namespace

std::string to_text(const RunSummary& summary, const RunFacts& facts) {
  Rows rows = {
      {"iterations",
       fmt::format("{} (now at {} of {})", summary.iterations_done, summary.last_iteration, facts.iterations)},
      {"lm loss", fmt::format("{} -> {}", loss_text(summary.first_loss), loss_text(summary.last_loss))},
  };
  add_speed(rows, summary, facts);
  rows.push_back({"skipped, nan", fmt::format("{}, {}", summary.skipped_iterations, summary.nan_iterations)});
  add_samples(rows, summary.samples);
  if (summary.memory) rows.push_back({"peak memory of a rank", memory_text(*summary.memory)});
  std::string text = "\n" + format_table({"run ended", summary.ended_by}, rows);
  if (!summary.phases.empty()) text += "\n" + phase_table(summary.phases);
  text += comm_table(summary.phases, static_cast<double>(summary.iterations_done));
  return text;
}

}  // namespace braid
