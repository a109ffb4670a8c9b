// Where the time of each module goes, so that a person sees which side waits for the other.
//
// A row is a module; its times are means over the ranks of its grid. Modules that share their ranks share one row: a
// rank's time is measured once, and in a row for each of them it would look as if it had been spent several times.
#pragma once

#include <string>
#include <vector>

#include "log/phase_timers.h"

namespace braid {

class Topology;

struct ModulePhases {
  std::string module;     // "images", or "images + language" on the same ranks
  std::string waits_for;  // whom a bridge wait is for: "language"; empty when there is nobody else
  PhaseReport mean{};
};

class PhaseTable {
 public:
  explicit PhaseTable(const Topology& topology);

  // What a rank adds to the sum over all ranks: of the same length on each.
  std::vector<double> to_values(int global_rank, const PhaseReport& report) const;

  std::vector<ModulePhases> means(const std::vector<double>& sum) const;

 private:
  struct Row {
    std::string module, waits_for;
    int first_rank, ranks;
  };
  std::vector<Row> rows_;
};

// " time (ms) | images   | bridge wait (language):    80.2 (65 %) | forward:    12.3 (10 %) | ...", one for each row,
// the columns below each other. Phases in which nobody was are left out.
std::string to_lines(const std::vector<ModulePhases>& rows);

}  // namespace braid
