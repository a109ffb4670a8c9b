#include "plan/param_spec.h"
#include "base/error.h"
#include "plan/topology.h"

namespace braid {
namespace {

// A range of one dimension, in the global tensor and in the shard.
struct Span {
  std::int64_t global_begin, local_begin, size;
};

std::vector<Span> spans_of(const ParamSpec& spec, std::size_t dim, const ShardCoordinates& coordinates) {
  const std::int64_t length = spec.shape[dim];
  const auto share = [&](std::int64_t block, int parts) {
    BRAID_CHECK_EQ(block % parts, 0, "{}: dimension {}, a block of {} split over {}", spec.name, dim, block, parts);
    return block / parts;
  };
  if (spec.expert && dim == 0) {
    const std::int64_t size = share(length, coordinates.ep_size);
    return {{coordinates.ep * size, 0, size}};
  }
  if (static_cast<int>(dim) != spec.tp_dim) return {{0, 0, length}};
  const int parts = spec.expert ? coordinates.expt_tp_size : coordinates.tp_size;
  const int part = spec.expert ? coordinates.expt_tp : coordinates.tp;
  const std::vector<std::int64_t> one_block = {length};
  std::vector<Span> spans;
  std::int64_t block_begin = 0, local_begin = 0;
  for (const std::int64_t block : spec.tp_blocks.empty() ? one_block : spec.tp_blocks) {
    const std::int64_t size = share(block, parts);
    spans.push_back({block_begin + part * size, local_begin, size});
    block_begin += block;
    local_begin += size;
  }
  BRAID_CHECK_EQ(block_begin, length, "{}: the blocks of dimension {}", spec.name, dim);
  if (parts == 1 && spec.block_names.empty()) return {{0, 0, length}};
  return spans;
}

}  // namespace

ShardCoordinates shard_coordinates(const Module& module, int global_rank) {
  return {.tp = module.dense.coord(global_rank, "tp"),
          .tp_size = module.dense.size_of("tp"),
          .ep = module.expert.coord(global_rank, "ep"),
          .ep_size = module.expert.size_of("ep"),
          .expt_tp = module.expert.coord(global_rank, "expt_tp"),
          .expt_tp_size = module.expert.size_of("expt_tp")};
}

std::vector<std::int64_t> local_shape(const ParamSpec& spec, const ShardCoordinates& coordinates) {
  std::vector<std::int64_t> shape;
  for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
    const Span last = spans_of(spec, dim, coordinates).back();
    shape.push_back(last.local_begin + last.size);
  }
  return shape;
}

std::vector<Box> shard_boxes(const ParamSpec& spec, const ShardCoordinates& coordinates) {
  std::vector<Box> boxes(1);
  for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
    std::vector<Box> longer;
    for (const Span& span : spans_of(spec, dim, coordinates))
      for (Box box : boxes) {
        box.global_begin.push_back(span.global_begin);
        box.local_begin.push_back(span.local_begin);
        box.size.push_back(span.size);
        longer.push_back(std::move(box));
      }
    boxes = std::move(longer);
  }
  return boxes;
}

std::vector<Box> boxes_of_range(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t end) {
  std::vector<Box> boxes;
  const auto add = [&](std::vector<std::int64_t> corner, std::vector<std::int64_t> size) {
    boxes.push_back({corner, corner, std::move(size)});
  };
  while (begin < end) {
    // The largest box that begins here: as many whole slices of the outermost dimension that `begin` is aligned to.
    std::size_t dim = shape.size();
    std::int64_t slice = 1;
    while (dim > 1 && begin % (slice * shape[dim - 1]) == 0 && end - begin >= slice * shape[dim - 1])
      slice *= shape[--dim];
    std::vector<std::int64_t> corner(shape.size()), size(shape.size(), 1);
    std::int64_t rest = begin;
    for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) corner[d] = rest % shape[d];
    for (std::size_t d = dim; d < shape.size(); ++d) size[d] = shape[d];
    std::int64_t count = 1;
    if (dim > 0) count = size[dim - 1] = std::min((end - begin) / slice, shape[dim - 1] - corner[dim - 1]);
    add(std::move(corner), std::move(size));
    begin += count * slice;
  }
  return boxes;
}

std::vector<RowRun> row_runs(const Box& box, const std::vector<std::int64_t>& global_shape,
                             const std::vector<std::int64_t>& local_shape) {
  const std::size_t dims = box.size.size();
  if (dims == 1) return {{box.global_begin[0], box.local_begin[0], box.size[0], 0, 0, 1}};
  const std::size_t last = dims - 1, run = dims - 2;  // a run goes along the second to last dimension
  const std::int64_t length = box.size[run];
  const std::int64_t count = num_elements(std::span(box.size).first(run));
  std::vector<RowRun> runs;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, global_row = box.global_begin[run], local_row = box.local_begin[run];
    std::int64_t global_stride = global_shape[run], local_stride = local_shape[run];
    for (std::size_t dim = run; dim-- > 0;) {
      const std::int64_t index = rest % box.size[dim];
      rest /= box.size[dim];
      global_row += (box.global_begin[dim] + index) * global_stride;
      local_row += (box.local_begin[dim] + index) * local_stride;
      global_stride *= global_shape[dim];
      local_stride *= local_shape[dim];
    }
    runs.push_back({global_row, local_row, length, box.global_begin[last], box.local_begin[last], box.size[last]});
  }
  return runs;
}

}  // namespace braid
