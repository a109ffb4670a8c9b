// Python's random.Random(seed).shuffle, with which Energon shuffles shards before it splits them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace braid {

// What position each element of the shuffled list had before.
std::vector<std::size_t> python_shuffle(std::size_t size, std::uint32_t seed);

}  // namespace braid
