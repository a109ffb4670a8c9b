#include "plan/grid.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"

namespace braid {
namespace {

// The offsets that the marked dims add to a rank. Ascending, because the stride of a dim exceeds the sum of all offsets
// of the faster dims.
std::vector<int> offsets(const std::vector<Dim>& dims, const std::vector<bool>& marked) {
  std::vector<int> offsets = {0};
  int stride = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::size_t faster = offsets.size();
    for (int coord = 1; marked[i] && coord < dims[i].size; ++coord)
      for (std::size_t j = 0; j < faster; ++j) offsets.push_back(coord * stride + offsets[j]);
    stride *= dims[i].size;
  }
  return offsets;
}

}  // namespace

Grid::Grid(int rank_offset, std::vector<Dim> dims) : rank_offset_(rank_offset), size_(1), dims_(std::move(dims)) {
  BRAID_CHECK(rank_offset >= 0, "a grid cannot begin at rank {}", rank_offset);
  for (const Dim& dim : dims_) {
    BRAID_CHECK(dim.size >= 1, "dimension {} has size {}", dim.name, dim.size);
    BRAID_CHECK(dim.size <= (std::numeric_limits<int>::max() - rank_offset) / size_, "{} ranks times {}={} is too many",
                size_, dim.name, dim.size);
    size_ *= dim.size;
  }
}

std::vector<int> Grid::coords(int global_rank) const {
  BRAID_CHECK(contains(global_rank), "rank {} is outside of the grid's ranks {}-{}", global_rank, rank_offset_,
              end() - 1);
  std::vector<int> coords;
  coords.reserve(dims_.size());
  int rest = global_rank - rank_offset_;
  for (const Dim& dim : dims_) {
    coords.push_back(rest % dim.size);
    rest /= dim.size;
  }
  return coords;
}

std::string Grid::span() const {
  return size_ == 1 ? fmt::format("{}", rank_offset_) : fmt::format("{}-{}", rank_offset_, end() - 1);
}

int Grid::size_of(const std::string& dim) const { return dims_[index_of(dim)].size; }

int Grid::coord(int global_rank, const std::string& dim) const { return coords(global_rank)[index_of(dim)]; }

int Grid::rank_at(const std::vector<int>& coords) const {
  BRAID_CHECK_EQ(coords.size(), dims_.size(), "one coordinate per dimension");
  int rank = rank_offset_, stride = 1;
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    BRAID_CHECK(coords[i] >= 0 && coords[i] < dims_[i].size, "coordinate {} of dimension {} with size {}", coords[i],
                dims_[i].name, dims_[i].size);
    rank += coords[i] * stride;
    stride *= dims_[i].size;
  }
  return rank;
}

std::string Grid::coordinates_of(int global_rank) const {
  const std::vector<int> at = coords(global_rank);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < dims_.size(); ++i) parts.push_back(fmt::format("{}={}", dims_[i].name, at[i]));
  return fmt::format("{}", fmt::join(parts, " "));
}

std::vector<std::vector<int>> Grid::groups(const std::vector<std::string>& dims) const {
  const std::vector<bool> inside = mark(dims);
  std::vector<bool> outside = inside;
  outside.flip();
  const std::vector<int> members = offsets(dims_, inside);
  std::vector<std::vector<int>> groups;
  for (int first : offsets(dims_, outside)) {
    std::vector<int>& group = groups.emplace_back(members);
    for (int& rank : group) rank += rank_offset_ + first;
  }
  return groups;
}

std::string Grid::key(const std::vector<std::string>& dims) const {
  const std::vector<bool> inside = mark(dims);
  std::string key;
  for (std::size_t i = dims_.size(); i-- > 0;) {
    if (!inside[i]) continue;
    if (!key.empty()) key += '-';
    key += dims_[i].name;
  }
  return key;
}

std::size_t Grid::index_of(const std::string& dim) const {
  std::size_t i = 0;
  while (i < dims_.size() && dims_[i].name != dim) ++i;
  BRAID_CHECK(i < dims_.size(), "the grid has no dimension '{}'", dim);
  return i;
}

std::vector<bool> Grid::mark(const std::vector<std::string>& dims) const {
  std::vector<bool> marked(dims_.size(), false);
  for (const std::string& dim : dims) marked[index_of(dim)] = true;
  return marked;
}

}  // namespace braid
