#include "plan/param_spec.h"

#include "base/error.h"

namespace braid {
namespace {

// A range of one dimension, in the whole and in the shard.
struct Span {
  std::int64_t global_begin, local_begin, size;
};

std::vector<Span> spans_of(const ParamSpec& spec, std::size_t dim, const ShardPlace& place) {
  const std::int64_t length = spec.shape[dim];
  const auto share = [&](std::int64_t block, int parts) {
    BRAID_CHECK_EQ(block % parts, 0, "{}: dimension {} has {} to split over {}", spec.name, dim, block, parts);
    return block / parts;
  };
  if (spec.expert && dim == 0) {
    const std::int64_t size = share(length, place.ep_size);
    return {{place.ep * size, 0, size}};
  }
  if (static_cast<int>(dim) != spec.tp_dim) return {{0, 0, length}};
  const int parts = spec.expert ? place.expt_tp_size : place.tp_size;
  const int part = spec.expert ? place.expt_tp : place.tp;
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
  if (parts == 1) return {{0, 0, length}};
  return spans;
}

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

}  // namespace

std::int64_t num_elements(const ParamSpec& spec) { return product(spec.shape); }

std::vector<std::int64_t> local_shape(const ParamSpec& spec, const ShardPlace& place) {
  std::vector<std::int64_t> shape;
  for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
    const Span last = spans_of(spec, dim, place).back();
    shape.push_back(last.local_begin + last.size);
  }
  return shape;
}

std::vector<Box> shard_boxes(const ParamSpec& spec, const ShardPlace& place) {
  std::vector<Box> boxes(1);
  for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
    std::vector<Box> longer;
    for (const Span& span : spans_of(spec, dim, place))
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

std::vector<RowRun> row_runs(const Box& box, const std::vector<std::int64_t>& global_shape,
                             const std::vector<std::int64_t>& local_shape) {
  const std::size_t dims = box.size.size();
  if (dims == 1) return {{box.global_begin[0], box.local_begin[0], box.size[0], 0, 0, 1}};
  const std::size_t last = dims - 1, run = dims - 2;  // a run goes along the last dimension but one
  const std::int64_t length = box.size[run];
  const std::int64_t count = product({box.size.begin(), box.size.begin() + static_cast<std::ptrdiff_t>(run)});
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
