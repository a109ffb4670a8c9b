// How fast a data set can be read: the work of a reader that needs both the text and the pictures of its sequences.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/samples/lane_set.h"

namespace braid {

struct LoadTotals {
  std::int64_t samples = 0, sequences = 0, tokens = 0, pictures = 0, patches = 0, stored_bytes = 0;
  double seconds = 0;
};

struct LoadLimits {
  double seconds = 10;
  bool one_pass = false;  // ends when each sample was read once, however long that takes
};

// Reads, tokenizes, packs, decodes, resizes and cuts with the threads of `pool`. DataError if there is nothing to read.
LoadTotals measure_loading(const LaneSet& set, const LoadLimits& limits, BadSamples& bad, WorkerPool& pool);

struct LoadPhase {
  std::string name;
  double seconds = 0;
  bool of_pictures = false;  // else of text
};
struct LoadPhases {
  std::vector<LoadPhase> phases{};
  std::int64_t tokens = 0, patches = 0;  // of the samples that were read
};
// The phases of that work, one after the other on this thread, for up to `seconds`.
LoadPhases measure_phases(const LaneSet& set, double seconds, BadSamples& bad);

}  // namespace braid
