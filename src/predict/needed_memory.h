// The memory that a run needs of its devices: the number that `braid plan memory`, a search and pages show, and that is
// compared with what a machine has. No libtorch here.
#pragma once

#include "predict/memory.h"

namespace braid {

// By global rank. Without slack: an allocator that runs out of memory first gives back what it keeps.
std::vector<std::int64_t> needed_by_rank(const MemoryPrediction& prediction, const Topology& topology);

// Bytes of the fullest GPU or, on CPUs, of the host, whose memory all ranks share.
std::int64_t needed_of_device(const MemoryPrediction& prediction, const Topology& topology,
                              const MemoryQuestion& question);

}  // namespace braid
