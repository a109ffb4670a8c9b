// The summary printed at the end of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "log/iteration_log.h"
#include "log/memory_use.h"
#include "log/module_phases.h"

namespace braid {

// Samples that could not be used as they are, each counted once.
struct UnusableSamples {
  std::int64_t damaged = 0, too_long = 0, without_targets = 0;  // left out
  std::int64_t cut = 0;                                         // longer than a sequence
};

struct RunSummary {
  std::string ended_by{};            // "all iterations done", "SIGTERM"
  std::int64_t iterations_done = 0;  // by this process; less than last_iteration when resumed
  std::int64_t last_iteration = 0;
  int skipped_iterations = 0, nan_iterations = 0;
  UnusableSamples samples{};
  std::optional<double> first_loss{}, last_loss{};
  double seconds = 0, tokens = 0;
  std::optional<MemoryUse> memory{};
  std::vector<ModulePhases> phases{};  // sums over the run's iterations
};

// Returns a table of the run, one of each module's time by phase, and one of its communication.
std::string to_text(const RunSummary& summary, const RunFacts& facts);

}  // namespace braid
