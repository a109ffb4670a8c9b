// The sizes of a data set's training sequences, for predictions: `braid data inspect --stats FILE` stores a sample of
// them, and a simulated step draws from it. Each sequence keeps its lengths, labels and media together, so that drawn
// sequences have the correlations of the data. No libtorch here.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

#include "data/batches/sample_sizes.h"
#include "data/samples/lane_set.h"
#include "models/providers.h"
#include "plan/topology.h"

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

}  // namespace braid
