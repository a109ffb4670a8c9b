// Two runs side by side: the first iteration in which their figures differ, and how well they agree. No libtorch here.
//
// Figures are what training computes: losses, norms, rates, counts of samples. Times are compared apart. A log prints a
// mean of losses over an interval and few digits, event files have float32, a metrics file has the exact value of every
// iteration. So losses are compared over the same iterations, and values that print or round alike are equal.
#pragma once

#include "report/report.h"

namespace braid {

struct Tolerance {
  double relative = 0, absolute = 0;  // values differ if they do by more than both together, and the rounding of files
};

struct ComparedFigure {
  std::string name;
  Curve a{}, b{};                      // at the same iterations
  std::set<std::int64_t> different{};  // iterations
  // At these iterations one run has a mean over an interval of which the other has not logged every iteration.
  std::int64_t without_counterpart = 0;
  double max_absolute = 0, max_relative = 0, mean_relative = 0;  // of values that are finite in both
  std::int64_t at_max_relative = 0;                              // iteration
  std::optional<double> correlation{};
};

struct ComparedRun {
  std::string name{};
  std::int64_t points = 0, interval = 0, first = 0, last = 0;  // iterations that it logged, of the first common figure
  std::vector<std::string> only_here{};                        // names of figures
  std::vector<std::int64_t> iterations_only_here{};            // that the other one should have logged, too
  std::optional<double> iteration_ms{};  // median; without the first interval of each start, which contains its load
  std::int64_t skipped = 0, nan = 0;
  std::vector<std::string> sources{}, warnings{};
};

struct RunComparison {
  std::array<ComparedRun, 2> runs{};
  std::vector<ComparedFigure> figures{};  // the loss first
  bool is_equal = true;                   // of what was compared
};

// `only`: names of the figures to compare; empty: all that both have. ConfigError if a name is wrong, or if the runs
// have nothing in common.
RunComparison compare_runs(const RunRecord& a, const RunRecord& b, const Tolerance& tolerance,
                           const std::vector<std::string>& only = {});

nlohmann::ordered_json comparison_json(const RunComparison& comparison);
std::string comparison_page(const RunComparison& comparison);  // HTML
std::string comparison_text(const RunComparison& comparison);

// --- sample traces, of Braid or Megatron's fork (data/batches/sample_trace.h)

// Files are paired by name; the rank in it counts only where a folder has several of the same reader.
struct TraceComparison {
  struct Difference {
    std::string file{};
    std::int64_t step = 0;
    std::vector<std::string> fields{};
  };
  std::vector<std::string> only_in_a{}, only_in_b{};  // files
  std::int64_t files = 0, compared = 0;               // compared: pairs of records of the same step
  std::int64_t steps_only_in_a = 0, steps_only_in_b = 0, cut_lines = 0;
  std::vector<std::string> absent_fields{};   // that one of the folders has in no record of a role: not compared
  std::vector<Difference> first_different{};  // of each file, the first
  std::int64_t different = 0;                 // records
  bool is_equal() const { return different == 0 && only_in_b.empty(); }
};

// `b` is a part of `a`: a resumed rest, or the same run again. Each file of `b` must exist in `a`, and each record of
// `b` up to the last step of `a` must equal that of `a`. ConfigError if a folder has no trace, if a file has a step
// twice or a line that is no record, or if there is nothing to compare.
// `only`: names of the fields to compare; empty: all.
TraceComparison compare_traces(const std::string& a, const std::string& b, const std::vector<std::string>& only = {});

nlohmann::ordered_json comparison_json(const TraceComparison& comparison);
std::string comparison_text(const TraceComparison& comparison);

// --- named activations, as safetensors (mimo/activation_dump.h)

struct ComparedActivation {
  std::string name{};
  std::int64_t iteration = 0, rows = 0, width = 0;
  double cosine = 0, absmax_a = 0, absmax_b = 0;    // in double: fp32 sums give cosines above 1
  double max_absolute = 0, relative = 0;            // the largest difference; the norm of the differences, against A's
  std::int64_t not_finite_a = 0, not_finite_b = 0;  // elements, left out of the figures
  bool is_equal = true;
};

struct ActivationComparison {
  std::vector<ComparedActivation> activations{};
  std::vector<std::string> only_in_a{}, only_in_b{};
  bool is_equal = true;
};

// Each is a folder of log.activation_dir, or one file of whole tensors, which counts as iteration 1. Elements differ if
// they do by more than the tolerance of the largest one. ConfigError if a file is damaged, rows are missing or shapes
// differ, or there is nothing to compare.
ActivationComparison compare_activations(const std::string& a, const std::string& b, const Tolerance& tolerance);

nlohmann::ordered_json comparison_json(const ActivationComparison& comparison);
std::string comparison_text(const ActivationComparison& comparison);

}  // namespace braid
