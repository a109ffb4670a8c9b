// A rectangular block of global ranks with named dimensions, enumerated as Megatron's HyperCommGrid: the
// first named dimension varies fastest, rank = rank_offset + sum_i coord_i * prod_{j<i} size_j.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace braid {

struct Dim {
  std::string name;
  int size = 1;
};

class Grid {
 public:
  Grid(int rank_offset, std::vector<Dim> dims);

  int rank_offset() const { return rank_offset_; }
  int size() const { return size_; }
  int end() const { return rank_offset_ + size_; }
  std::string span() const;  // "2-5", or "2" for one rank
  bool contains(int global_rank) const { return global_rank >= rank_offset_ && global_rank < end(); }
  const std::vector<Dim>& dims() const { return dims_; }
  int size_of(const std::string& dim) const;

  // Coordinates in the order of dims(), and back.
  std::vector<int> coords(int global_rank) const;
  int coord(int global_rank, const std::string& dim) const;
  int rank_at(const std::vector<int>& coords) const;
  std::string coordinates_of(int global_rank) const;  // "tp=1 cp=0 dp=0 pp=0"

  // Every group over `dims`: ranks that agree in all other dimensions, each group ascending, groups in
  // ascending order of their first rank. The order in which `dims` are listed does not matter.
  std::vector<std::vector<int>> groups(const std::vector<std::string>& dims) const;

  // HyperCommGrid's key for a set of dims: reversed declaration order joined by '-', e.g. {tp, dp} ->
  // "dp-tp".
  std::string key(const std::vector<std::string>& dims) const;

 private:
  std::size_t index_of(const std::string& dim) const;
  std::vector<bool> mark(const std::vector<std::string>& dims) const;  // per own dim: is it one of these?

  int rank_offset_;
  int size_;
  std::vector<Dim> dims_;
};

}  // namespace braid
