#include "ckpt/slabs.h"

#include <algorithm>

#include "plan/param_spec.h"

namespace braid {
namespace {

void cut(const Slab& box, std::size_t dim, std::int64_t most, std::vector<Slab>& slabs) {
  const std::int64_t all = num_elements(box.size);
  if (all <= most || dim == box.size.size()) {
    slabs.push_back(box);
    return;
  }
  const std::int64_t rows = box.size[dim], row = all / rows;
  const std::int64_t at_once = std::max<std::int64_t>(most / row, 1);
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    Slab part = box;
    part.begin[dim] = begin;
    part.size[dim] = std::min(at_once, rows - begin);
    cut(part, dim + 1, most, slabs);
  }
}

}  // namespace

std::vector<Slab> slabs_of(const std::vector<std::int64_t>& shape, std::int64_t most_elements) {
  std::vector<Slab> slabs;
  cut({std::vector<std::int64_t>(shape.size(), 0), shape}, 0, std::max<std::int64_t>(most_elements, 1), slabs);
  return slabs;
}

}  // namespace braid
