#include "log/module_phases.h"

#include <algorithm>

#include "base/error.h"
#include "plan/topology.h"

namespace braid {
namespace {

// Waiting for the other modules and for data comes first: it matters most to the reader.
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

std::vector<double> PhaseTable::to_values(int global_rank, const PhaseReport& report) const {
  std::vector<double> values;
  for (const Row& row : rows_) {
    const bool mine = global_rank >= row.first_rank && global_rank < row.first_rank + row.ranks;
    for (const double ms : report.phase_ms) values.push_back(mine ? ms : 0);
  }
  return values;
}

std::vector<ModulePhases> PhaseTable::means(const std::vector<double>& sum) const {
  BRAID_CHECK_EQ(sum.size(), rows_.size() * kPhases, "the times of each row");
  std::vector<ModulePhases> means;
  auto value = sum.begin();
  for (const Row& row : rows_) {
    ModulePhases& mean = means.emplace_back(ModulePhases{row.module, row.waits_for});
    for (double& ms : mean.mean.phase_ms) ms = *value++ / row.ranks;
  }
  return means;
}

std::string to_lines(const std::vector<ModulePhases>& rows) {
  std::size_t name_width = 0;
  for (const ModulePhases& row : rows) name_width = std::max(name_width, row.module.size());
  std::vector<std::string> lines;
  for (const ModulePhases& row : rows) lines.push_back(fmt::format(" time (ms) | {:<{}} |", row.module, name_width));
  for (const Phase phase : kColumns) {
    if (std::all_of(rows.begin(), rows.end(), [&](const ModulePhases& row) { return row.mean.ms(phase) == 0; }))
      continue;
    std::size_t label_width = 0;
    for (const ModulePhases& row : rows) label_width = std::max(label_width, label_of(row, phase).size() + 1);
    for (std::size_t i = 0; i < rows.size(); ++i)
      lines[i] += fmt::format(" {:<{}} {:7.1f} ({:2.0f} %) |", label_of(rows[i], phase) + ":", label_width,
                              rows[i].mean.ms(phase), 100 * rows[i].mean.share(phase));
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace braid
