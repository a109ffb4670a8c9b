// Summarizes how each module spends its time, so that the user sees which module waits for which.
//
// A row is a module; its times are means over the ranks of its grid. Modules that share their ranks share one row,
// because a rank's time is measured once and must not be counted once per module.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "comm/comm_times.h"
#include "log/step_clock.h"

namespace braid {

class Topology;

// The purposes of a rank's communication, which are the columns of the log's communication lines.
enum class CommKind { Bridge, Pipeline, Gradients, Parameters, Tensor, Context, Expert, Batches, Other };
inline constexpr std::size_t kCommKinds = 9;

const char* name_of(CommKind kind);  // "bridge"; for groups inside layers, the group's name: "tp"

// The purpose of all operations outside of training steps, whatever their group.
inline constexpr const char* kForEvaluation = "evaluation";

CommKind kind_of(const CommKey& key);

using CommReport = std::array<CommTotals, kCommKinds>;  // per iteration, by CommKind
CommReport report_of(const CommLedger& ledger, int iterations);

struct ModulePhases {
  std::string module;     // "images", or "images + language" on the same ranks
  std::string waits_for;  // the module that a bridge wait is for: "language"; empty if there is no other
  PhaseReport mean{};
  CommReport communication{};  // also the mean
};

class PhaseTable {
 public:
  explicit PhaseTable(const Topology& topology);

  // A rank's contribution to the sum over all ranks; the length is the same on every rank.
  std::vector<double> to_values(int global_rank, const PhaseReport& report, const CommReport& communication) const;

  std::vector<ModulePhases> means(const std::vector<double>& sum) const;

 private:
  struct Row {
    std::string module, waits_for;
    int first_rank, ranks;
  };
  std::vector<Row> rows_;
};

// " time (ms) | images   | bridge wait (language):    80.2 (65 %) | forward:    12.3 (10 %) | ...", one for each row,
// with aligned columns, followed by " comm (ms) | images | bridge: 12.3/ 72.4 (hidden 83 %) | ...": exposed time, time
// in flight, and its hidden share. Phases and kinds without time on any rank are omitted.
std::string to_lines(const std::vector<ModulePhases>& rows);

}  // namespace braid
