// The keys of a parameter in a distributed checkpoint, as in Megatron: with its module's prefix, with the blocks of
// some fused weights stored separately, and, in models whose layers are all alike, with every parameter stacked over
// the layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/param_spec.h"

namespace braid {

// How the parameters of one set are named.
struct KeyRule {
  std::string prefix{};
  int stacked_layers =
      0;  // above 0: "decoder.layers.N.x" is slice N of a tensor "decoder.layers.x" with this many slices
};

// The number of layers in `specs`, for a rule that stacks them.
int count_layers(const std::vector<ParamSpec>& specs);

// A box of a stored tensor that is also a box of a rank's shard.
struct KeyedBox {
  std::string key;
  std::vector<std::int64_t> shape, begin;       // of the stored tensor, and the box's begin in it
  std::vector<std::int64_t> local_begin, size;  // in the shard; of a stacked parameter one dimension less
};

std::vector<KeyedBox> keyed_boxes(const ParamSpec& spec, const ShardCoordinates& coordinates, const KeyRule& rule);

// The same for elements [begin, end) of the flat shard; `local_begin` and `size` refer to boxes of that range.
struct KeyedRange {
  std::int64_t flat_begin = 0;           // the box's begin in the range
  std::vector<std::int64_t> flat_shape;  // the shape of these elements
  KeyedBox box;                          // within them
};
std::vector<KeyedRange> keyed_ranges(const ParamSpec& spec, const ShardCoordinates& coordinates, const KeyRule& rule,
                                     std::int64_t begin, std::int64_t end);

// The objects that Megatron's linear layers store beside their weights and require when they load: empty ones here. For
// a rank's shard; the same on all tp ranks.
std::vector<std::string> extra_state_keys(const ParamSpec& spec, const ShardCoordinates& coordinates,
                                          const KeyRule& rule);

// Whole parameters, as keys with their shapes.
struct KeyedShape {
  std::string key;
  std::vector<std::int64_t> shape;
};
std::vector<KeyedShape> keyed_shapes(const ParamSpec& spec, const KeyRule& rule);

}  // namespace braid
