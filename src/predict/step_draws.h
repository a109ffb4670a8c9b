// The sizes of training steps that predictions use. Mock samples have those that they will have in the run. Sequences
// of a data set are drawn from its statistics: `braid data inspect --stats FILE` stores a sample of them, each with its
// lengths, labels and media together, so that drawn sequences have the correlations of the data. No libtorch here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include "data/batches/sample_sizes.h"
#include "data/samples/lane_set.h"
#include "models/providers.h"
#include "plan/topology.h"
#include "run/step_sizes.h"

namespace braid {

// Times of one reader thread on the host that took the statistics.
struct ReadingTimes {
  double sequence_s = 0;  // to read, tokenize and pack the text of a sequence
  double patch_s = 0;     // to decode and resize a patch of its pictures
};

struct DataStats {
  std::int64_t sequence_length = 0;
  std::vector<std::string> encoders{};   // names of those with media
  std::vector<SampleSizes> sequences{};  // padding is not among the pieces; media in the order of `encoders`
  std::optional<ReadingTimes> reading{};
};

// Takes the first sequences of lanes that are spread evenly over the data set, so that all of its shards and a blend's
// shares are represented. Returns fewer than `count` if the data set has fewer samples.
DataStats sample_sequences(const LaneSet& set, std::int64_t count);

// Reads samples for half a second. `stats` must describe the same data set.
ReadingTimes measure_reading(const LaneSet& set, const DataStats& stats);

// {"sequence_length": 8192, "encoders": ["images"], "sequences": [...]}, each sequence as
// {"pieces": [[tokens, labels, first label, end of labels], ...], "media": [[[rows, columns], ...], ...]}; a sequence
// without media has only its pieces. If it was measured, "reading": {"sequence_s": 0.004, "patch_s": 2e-5} is added.
nlohmann::ordered_json to_json(const DataStats& stats);

// Throws a ConfigError that names the place of the mistake.
DataStats read_data_stats(const std::string& path);

// Reasons why a recipe cannot train on sequences of these sizes, which may stem from another recipe.
std::vector<Problem> problems_of(const DataStats& stats, const Provider& provider, const Topology& topology,
                                 std::int64_t sequence_length);

// Returns the sizes of the n-th step of a recipe.
using DrawStep = std::function<StepSizes(const Recipe& recipe, const Topology& topology, int step)>;

// The sizes of step `step` (from 0) of a run, exact for mock samples. Samples of a data set are drawn from its
// statistics or, without these, from the recipe's keys for mock samples. Their order is the one that loader.balance
// produces. Throws a ConfigError if the statistics, or the keys of mock samples, do not fit the recipe.
StepSizes draw_step(const Recipe& recipe, const Topology& topology, const DataStats* stats, std::uint64_t step);

// Steps of identical samples allow a quick comparison of layouts, because all replicas and microbatches are equal.
struct TypicalSample {
  std::int64_t tokens = 0, labels = 0, sequences = 1;
  double squares = 0;                       // see StepSizes::Text
  std::vector<StepSizes::Extents> media{};  // by module of the recipe
  std::vector<std::int64_t> value_bytes{};  // by module, as in StepSizes
};

// The recipe with one rank per module and one sample per step.
Recipe smallest(Recipe recipe);

// The mean text, and the mean size and number of media, of full_step() or of this many drawn steps.
TypicalSample typical_sample(const Recipe& recipe, const DrawStep& draw = nullptr, int steps = 1);

StepSizes equal_step(const TypicalSample& sample, const Recipe& recipe, const Topology& topology);

}  // namespace braid
