// How a parameter is split, for random specs and every rank coordinate. The oracle lists, dimension by dimension, which
// global indices a shard has in its own order; boxes and runs of rows must describe the same shard.
#include "plan/param_spec.h"
#include <gmock/gmock.h>
#include "base/error.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Integers = std::vector<std::int64_t>;

struct Sizes {
  int tp, ep, expt_tp;
};

std::vector<ShardCoordinates> all_places(const Sizes& sizes) {
  std::vector<ShardCoordinates> places;
  for (int tp = 0; tp < sizes.tp; ++tp)
    for (int ep = 0; ep < sizes.ep; ++ep)
      for (int expt_tp = 0; expt_tp < sizes.expt_tp; ++expt_tp)
        places.push_back({tp, sizes.tp, ep, sizes.ep, expt_tp, sizes.expt_tp});
  return places;
}

// One to four dimensions, split along any or none of them, as a whole or in blocks; every length is divisible.
ParamSpec random_spec(const Sizes& sizes, std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  ParamSpec spec;
  spec.name = "random";
  for (int dims = 1 + below(4); dims > 0; --dims) spec.shape.push_back(1 + below(5));
  const int dims = static_cast<int>(spec.shape.size());
  spec.expert = dims > 1 && below(2);
  if (spec.expert) spec.shape[0] *= sizes.ep;
  const int first_splittable = spec.expert ? 1 : 0;
  spec.tp_dim = below(4) == 0 ? -1 : first_splittable + below(dims - first_splittable);
  if (spec.tp_dim < 0) return spec;
  const int parts = spec.expert ? sizes.expt_tp : sizes.tp;
  std::int64_t& length = spec.shape[static_cast<std::size_t>(spec.tp_dim)];
  length *= parts;
  if (below(2)) {
    length = 0;
    for (int blocks = 1 + below(4); blocks > 0; --blocks) {
      spec.tp_blocks.push_back(parts * below(4));
      length += spec.tp_blocks.back();
    }
  }
  return spec;
}

// Which indices of dimension `dim` a rank coordinate holds, in its own order.
Integers indices_of(const ParamSpec& spec, std::size_t dim, const ShardCoordinates& place) {
  int part = 0, parts = 1;
  Integers blocks = {spec.shape[dim]};
  if (spec.expert && dim == 0) {
    part = place.ep, parts = place.ep_size;
  } else if (static_cast<int>(dim) == spec.tp_dim) {
    part = spec.expert ? place.expt_tp : place.tp;
    parts = spec.expert ? place.expt_tp_size : place.tp_size;
    if (!spec.tp_blocks.empty()) blocks = spec.tp_blocks;
  }
  Integers indices;
  std::int64_t begin = 0;
  for (const std::int64_t block : blocks) {
    for (std::int64_t i = 0; i < block; ++i)
      if (i / (block / parts) == part) indices.push_back(begin + i);
    begin += block;
  }
  return indices;
}

std::int64_t product(const Integers& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

// The index, in row-major order of `shape`, of begin + the i-th index in a box of `size`.
std::int64_t position(std::int64_t i, const Integers& size, const Integers& begin, const Integers& shape) {
  std::int64_t result = 0, stride = 1;
  for (std::size_t dim = size.size(); dim-- > 0;) {
    result += (begin[dim] + i % size[dim]) * stride;
    i /= size[dim];
    stride *= shape[dim];
  }
  return result;
}

constexpr std::int64_t kNothing = -1;

// A shard whose elements are their indices in the whole.
struct Shard {
  explicit Shard(const Integers& shape) : elements(static_cast<std::size_t>(product(shape)), kNothing) {}
  void set(std::int64_t local, std::int64_t global) {
    ASSERT_TRUE(local >= 0 && local < static_cast<std::int64_t>(elements.size())) << local;
    std::int64_t& element = elements[static_cast<std::size_t>(local)];
    EXPECT_EQ(element, kNothing) << "element " << local << " is written twice";
    element = global;
  }
  Integers elements;
};

Shard naive_shard(const ParamSpec& spec, const ShardCoordinates& place) {
  std::vector<Integers> indices;
  Integers shape;
  for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
    indices.push_back(indices_of(spec, dim, place));
    shape.push_back(static_cast<std::int64_t>(indices.back().size()));
  }
  Shard shard(shape);
  for (std::int64_t i = 0; i < product(shape); ++i) {
    std::int64_t rest = i, global = 0, stride = 1;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      global += indices[dim][static_cast<std::size_t>(rest % shape[dim])] * stride;
      rest /= shape[dim];
      stride *= spec.shape[dim];
    }
    shard.set(i, global);
  }
  return shard;
}

Shard shard_of_boxes(const ParamSpec& spec, const ShardCoordinates& place) {
  const Integers shape = local_shape(spec, place);
  Shard shard(shape);
  for (const Box& box : shard_boxes(spec, place))
    for (std::int64_t i = 0; i < product(box.size); ++i)
      shard.set(position(i, box.size, box.local_begin, shape), position(i, box.size, box.global_begin, spec.shape));
  return shard;
}

Shard shard_of_runs(const ParamSpec& spec, const ShardCoordinates& place) {
  const Integers shape = local_shape(spec, place);
  const bool is_vector = shape.size() == 1;
  const std::int64_t global_columns = is_vector ? 1 : spec.shape.back(), local_columns = is_vector ? 1 : shape.back();
  Shard shard(shape);
  for (const Box& box : shard_boxes(spec, place))
    for (const RowRun& run : row_runs(box, spec.shape, shape))
      for (std::int64_t row = 0; row < run.rows; ++row)
        for (std::int64_t column = 0; column < run.columns; ++column)
          shard.set((run.local_row + row) * local_columns + run.local_column + column,
                    (run.global_row + row) * global_columns + run.global_column + column);
  return shard;
}

std::string in_words(const ParamSpec& spec, const Sizes& sizes) {
  return fmt::format("shape [{}] tp_dim {} blocks [{}] expert {} over tp {} ep {} expt_tp {}",
                     fmt::join(spec.shape, ", "), spec.tp_dim, fmt::join(spec.tp_blocks, ", "), spec.expert, sizes.tp,
                     sizes.ep, sizes.expt_tp);
}

struct RandomSpecs : ::testing::Test {
  void for_each(const std::function<void(const ParamSpec&, const Sizes&)>& check) {
    std::mt19937 random(1);
    for (int i = 0; i < 300; ++i) {
      const auto size = [&] { return 1 << random() % 3; };
      const Sizes sizes = {size(), size(), size()};
      const ParamSpec spec = random_spec(sizes, random);
      SCOPED_TRACE(in_words(spec, sizes));
      check(spec, sizes);
      if (HasFailure()) return;
    }
  }
};

TEST_F(RandomSpecs, BoxesAndRunsDescribeTheShard) {
  for_each([](const ParamSpec& spec, const Sizes& sizes) {
    for (const ShardCoordinates& place : all_places(sizes)) {
      const Shard expected = naive_shard(spec, place);
      EXPECT_EQ(shard_of_boxes(spec, place).elements, expected.elements);
      EXPECT_EQ(shard_of_runs(spec, place).elements, expected.elements);
    }
  });
}

TEST_F(RandomSpecs, ShardsTileTheWholeOncePerReplica) {
  for_each([](const ParamSpec& spec, const Sizes& sizes) {
    const int over_tp = spec.tp_dim < 0 ? 1 : spec.expert ? sizes.expt_tp : sizes.tp;
    const int shards = over_tp * (spec.expert ? sizes.ep : 1);
    std::vector<int> times(static_cast<std::size_t>(num_elements(spec)), 0);
    const std::vector<ShardCoordinates> places = all_places(sizes);
    for (const ShardCoordinates& place : places)
      for (const std::int64_t global : shard_of_boxes(spec, place).elements)
        ++times.at(static_cast<std::size_t>(global));
    EXPECT_EQ(times, std::vector<int>(times.size(), static_cast<int>(places.size()) / shards));
  });
}

TEST(ParamSpec, AFusedWeightOnOneRankIsOneBox) {
  const ParamSpec spec = {.name = "in_proj", .shape = {10, 3}, .tp_dim = 0, .tp_blocks = {4, 4, 2}};
  EXPECT_EQ(shard_boxes(spec, {}).size(), 1u);
  EXPECT_EQ(shard_boxes(spec, {.tp = 1, .tp_size = 2}).size(), 3u);
}

TEST(ParamSpec, RefusesByNameWhatDoesNotDivide) {
  const ShardCoordinates place = {.tp_size = 2, .ep_size = 2, .expt_tp_size = 2};
  const std::vector<ParamSpec> specs = {
      {.name = "column", .shape = {5, 4}, .tp_dim = 0},
      {.name = "row", .shape = {4, 5}, .tp_dim = 1},
      {.name = "fused", .shape = {6, 4}, .tp_dim = 0, .tp_blocks = {3, 3}},
      {.name = "experts", .shape = {3, 4, 4}, .tp_dim = 1, .expert = true},
      {.name = "expert_width", .shape = {4, 4, 5}, .tp_dim = 2, .expert = true},
      {.name = "blocks_too_short", .shape = {6, 4}, .tp_dim = 0, .tp_blocks = {2, 2}},
  };
  for (const ParamSpec& spec : specs) {
    EXPECT_THAT([&] { shard_boxes(spec, place); }, ThrowsMessage<std::logic_error>(HasSubstr(spec.name)));
    EXPECT_THAT([&] { local_shape(spec, place); }, ThrowsMessage<std::logic_error>(HasSubstr(spec.name)));
  }
  EXPECT_THAT([&] { local_shape(specs.back(), {}); }, ThrowsMessage<std::logic_error>(HasSubstr("blocks_too_short")));
}

}  // namespace
}  // namespace braid
