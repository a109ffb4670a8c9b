#include "log/module_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/topology.h"

namespace braid {
namespace {

// The columns for waiting are the first ones, because they matter most to the reader.
constexpr std::array<Phase, kPhases> kColumns = {Phase::BridgeWait, Phase::DataWait,     Phase::Forward,
                                                 Phase::Backward,   Phase::PipelineWait, Phase::Reduce,
                                                 Phase::Optimizer,  Phase::Other};

std::string names_of(const std::vector<Module>& modules, bool encoders_only, const char* separator) {
  std::vector<std::string> names;
  for (const Module& module : modules)
    if (module.is_encoder || !encoders_only) names.push_back(module.name);
  return fmt::format("{}", fmt::join(names, separator));
}

std::string label_of(const ModulePhases& row, Phase phase) {
  return phase == Phase::BridgeWait && !row.waits_for.empty() ? fmt::format("{} ({})", name_of(phase), row.waits_for)
                                                              : name_of(phase);
}

}  // namespace

const char* name_of(CommKind kind) {
  static constexpr std::array<const char*, kCommKinds> names = {"bridge", "pipeline", "gradients", "parameters", "tp",
                                                                "cp",     "ep",       "batches",   "other"};
  return names[static_cast<std::size_t>(kind)];
}

CommKind kind_of(const CommKey& key) {
  if (key.purpose == kForEvaluation) return CommKind::Other;
  const std::string over = key.group.substr(key.group.find('.') + 1);  // "language.dp-cp" -> "dp-cp"
  if (over.starts_with("embedding")) return CommKind::Bridge;          // channels, see plan/channels.h
  if (over.starts_with("activation")) return CommKind::Pipeline;
  if (over == "dp-cp" || over == "expt_dp") return key.op == "all_gather" ? CommKind::Parameters : CommKind::Gradients;
  static const std::map<std::string, CommKind> kinds = {{"tp", CommKind::Tensor},
                                                        {"cp", CommKind::Context},
                                                        {"ep", CommKind::Expert},
                                                        {"expt_tp", CommKind::Expert},
                                                        {"pp-cp-tp", CommKind::Batches}};
  const auto kind = kinds.find(over);
  return kind == kinds.end() ? CommKind::Other : kind->second;
}

CommReport report_of(const CommLedger& ledger, int iterations) {
  std::array<CommUse, kCommKinds> uses;
  for (const auto& [key, use] : ledger) uses[static_cast<std::size_t>(kind_of(key))] += use;
  CommReport report;
  for (std::size_t i = 0; i < kCommKinds; ++i)
    report[i] = {uses[i].bytes / iterations, uses[i].in_flight.ms() / iterations, uses[i].exposed.ms() / iterations};
  return report;
}

PhaseTable::PhaseTable(const Topology& topology) {
  const std::vector<Module>& modules = topology.modules();
  if (topology.colocated()) {
    rows_.push_back({names_of(modules, false, " + "), "", 0, topology.world_size()});
    return;
  }
  for (const Module& module : modules) {
    const std::string waits_for = module.is_encoder ? topology.language().name : names_of(modules, true, " and ");
    rows_.push_back({module.name, waits_for, module.dense.rank_offset(), module.dense.size()});
  }
}

std::vector<double> PhaseTable::to_values(int global_rank, const PhaseReport& report,
                                          const CommReport& communication) const {
  std::vector<double> values;
  for (const Row& row : rows_) {
    const bool mine = global_rank >= row.first_rank && global_rank < row.first_rank + row.ranks;
    const auto add = [&](double value) { values.push_back(mine ? value : 0); };
    for (const double ms : report.phase_ms) add(ms);
    for (const CommTotals& totals : communication) add(totals.bytes), add(totals.in_flight_ms), add(totals.exposed_ms);
  }
  return values;
}

std::vector<ModulePhases> PhaseTable::means(const std::vector<double>& sum) const {
  BRAID_CHECK_EQ(sum.size(), rows_.size() * (kPhases + 3 * kCommKinds), "the values of each row");
  std::vector<ModulePhases> means;
  auto value = sum.begin();
  for (const Row& row : rows_) {
    ModulePhases& mean = means.emplace_back(ModulePhases{row.module, row.waits_for});
    const auto next = [&] { return *value++ / row.ranks; };
    for (double& ms : mean.mean.phase_ms) ms = next();
    for (CommTotals& totals : mean.communication)
      for (double* field : {&totals.bytes, &totals.in_flight_ms, &totals.exposed_ms}) *field = next();
  }
  return means;
}

namespace {

// " time (ms) | images   |", one for each row.
std::vector<std::string> begin_lines(const std::vector<ModulePhases>& rows, const char* what) {
  std::size_t name_width = 0;
  for (const ModulePhases& row : rows) name_width = std::max(name_width, row.module.size());
  std::vector<std::string> lines;
  for (const ModulePhases& row : rows)
    lines.push_back(fmt::format(" {} (ms) | {:<{}} |", what, row.module, name_width));
  return lines;
}

std::vector<std::string> phase_lines(const std::vector<ModulePhases>& rows) {
  std::vector<std::string> lines = begin_lines(rows, "time");
  for (const Phase phase : kColumns) {
    if (std::all_of(rows.begin(), rows.end(), [&](const ModulePhases& row) { return row.mean.ms(phase) == 0; }))
      continue;
    std::size_t label_width = 0;
    for (const ModulePhases& row : rows) label_width = std::max(label_width, label_of(row, phase).size() + 1);
    for (std::size_t i = 0; i < rows.size(); ++i)
      lines[i] += fmt::format(" {:<{}} {:7.1f} ({:2.0f} %) |", label_of(rows[i], phase) + ":", label_width,
                              rows[i].mean.ms(phase), 100 * rows[i].mean.share(phase));
  }
  return lines;
}

std::string comm_cell(const CommTotals& totals) {
  return fmt::format("{:6.1f}/{:7.1f} (hidden {:3.0f} %)", totals.exposed_ms, totals.in_flight_ms,
                     100 * totals.hidden());
}

// Returns no lines if nothing was communicated.
std::vector<std::string> comm_lines(const std::vector<ModulePhases>& rows) {
  std::vector<std::string> lines = begin_lines(rows, "comm");
  bool any = false;
  for (std::size_t kind = 0; kind < kCommKinds; ++kind) {
    const auto is_used = [&](const ModulePhases& row) { return row.communication[kind].in_flight_ms > 0; };
    if (std::none_of(rows.begin(), rows.end(), is_used)) continue;
    any = true;
    for (std::size_t i = 0; i < rows.size(); ++i)
      lines[i] += fmt::format(" {}: {:>{}} |", name_of(static_cast<CommKind>(kind)),
                              is_used(rows[i]) ? comm_cell(rows[i].communication[kind]) : "-", comm_cell({}).size());
  }
  return any ? lines : std::vector<std::string>();
}

}  // namespace

std::string to_lines(const std::vector<ModulePhases>& rows) {
  std::string text;
  for (const std::vector<std::string>& lines : {phase_lines(rows), comm_lines(rows)})
    for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace braid
