// Splits a stored tensor into slabs that fit into memory.
#pragma once

#include <cstdint>
#include <vector>

namespace braid {

struct Slab {
  std::vector<std::int64_t> begin, size;
};

// Boxes of at most `most_elements`, in memory order: rows of the first dimension and, only if one row is too large,
// rows of the next. A tensor without elements is one slab.
std::vector<Slab> slabs_of(const std::vector<std::int64_t>& shape, std::int64_t most_elements);

}  // namespace braid
