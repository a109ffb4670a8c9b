// A parameter of a model, declared once: its global shape, how it is split, its pipeline stage and its initialisation.
// Initialisation, loading, gradient reduction, checkpoints and memory tables all read this declaration.
#pragma once

namespace braid {

struct Module;

struct InitRule {
  enum Kind {
    Zeros,
    Ones,
    Normal,   // mean 0, standard deviation `scale`
    Uniform,  // between -scale and scale
    DtBias,   // Mamba's time step: softplus(value) is log-uniform between 0.001 and 0.1
    ALog,     // Mamba's decay: the logarithm of a uniform value between 1 and 16
  };
  Kind kind = Zeros;
  double scale = 0;
};

struct ParamSpec {
  std::string name{};                 // unique in its module
  std::vector<std::int64_t> shape{};  // global
  int tp_dim = -1;  // the dimension split over tp (of an expert parameter: over expt_tp); -1: not split
  // A fused weight consists of several blocks along tp_dim, each split over tp separately: rank r holds the r-th slice
  // of every block, concatenated. Lengths of the blocks; empty: one block.
  std::vector<std::int64_t> tp_blocks{};
  std::vector<std::string> block_names{};  // when given, checkpoints store every block as a separate tensor
  bool expert = false;                     // dimension 0 counts experts and is split over ep
  int stage = 0;                           // the pipeline stage that holds it
  InitRule init{};
  bool fp8 = false;       // linear maps multiply by it in fp8
  bool trainable = true;  // false: a buffer without a gradient, kept in fp32 or wider
};

inline std::int64_t num_elements(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}
inline std::int64_t num_elements(const ParamSpec& spec) { return num_elements(spec.shape); }

// A rank's coordinates in the grids of its module that its parameters depend on.
struct ShardCoordinates {
  int tp = 0, tp_size = 1;
  int ep = 0, ep_size = 1;
  int expt_tp = 0, expt_tp_size = 1;
};

ShardCoordinates shard_coordinates(const Module& module, int global_rank);

std::vector<std::int64_t> local_shape(const ParamSpec& spec, const ShardCoordinates& coordinates);

// A box of elements that is contiguous as a block in both the global tensor and the local shard.
struct Box {
  std::vector<std::int64_t> global_begin, local_begin, size;
};

// What a rank holds: one box, or one per block of a fused weight.
std::vector<Box> shard_boxes(const ParamSpec& spec, const ShardCoordinates& coordinates);

// Elements [begin, end) of a tensor of `shape` in row-major order, as boxes: at most two for every dimension but the
// last, and one more. `local_begin` and `global_begin` of a box are both its begin in the tensor.
std::vector<Box> boxes_of_range(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end);

// The same box as runs of rows. A row is a line along the last dimension; rows are numbered over all other dimensions
// (the rows of a vector are its elements, one column each).
struct RowRun {
  std::int64_t global_row, local_row, rows;
  std::int64_t global_column, local_column, columns;
};
std::vector<RowRun> row_runs(const Box& box, const std::vector<std::int64_t>& global_shape,
                             const std::vector<std::int64_t>& local_shape);

}  // namespace braid
