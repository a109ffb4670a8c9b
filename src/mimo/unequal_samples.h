// Ends a run whose ranks would pair the text of one sample with the media of another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/group.h"

namespace braid {

struct SampleHolder {
  std::string module;
  int rank = 0;                        // global rank of the leader that read the sequence
  std::vector<std::string> samples{};  // SequenceIdentity::samples; empty on other ranks
};

// Collective over `world`. Throws the same DataError on every rank. It names the two holders of sequence `sequence` of
// the run, the first sample in which they differ, and the lane and shard that each of them has.
[[noreturn]] void refuse_unequal_samples(const Group& world, std::int64_t sequence, SampleHolder language,
                                         SampleHolder encoder);

}  // namespace braid
