// Ends a run whose ranks would pair the text of one sample with the media of another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/group.h"

namespace braid {

struct SampleHolder {
  std::string module;
  int rank = 0;                        // global: the leader that read the sequence
  std::vector<std::string> samples{};  // SequenceIdentity::samples, on that rank; empty on others
};

// Collective over `world`. Throws the same DataError on every rank: the first sample in which the two holders of
// sequence `sequence` of the run differ, its lane and shard as each of them has it, and both ranks.
[[noreturn]] void refuse_unequal_samples(const Group& world, std::int64_t sequence, SampleHolder language,
                                         SampleHolder encoder);

}  // namespace braid
