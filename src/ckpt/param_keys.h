// Under which keys a parameter stands in a distributed checkpoint, as Megatron has them: with its module's prefix, the
// blocks of some fused weights apart, and in models whose layers are all alike every parameter stacked over the layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/param_spec.h"

namespace braid {

// How the parameters of one set are named.
struct KeyRule {
  std::string prefix{};
  int stacked_layers = 0;  // above 0: "decoder.layers.N.x" is slice N of a tensor "decoder.layers.x" of so many
};

// The layers that `specs` have, for a rule that stacks them.
int count_layers(const std::vector<ParamSpec>& specs);

// A box of a stored tensor that is a box of a rank's shard.
struct KeyedBox {
  std::string key;
  std::vector<std::int64_t> shape, begin;       // of the stored tensor, and where in it
  std::vector<std::int64_t> local_begin, size;  // in the shard; of a stacked parameter one dimension less
};

std::vector<KeyedBox> keyed_boxes(const ParamSpec& spec, const ShardPlace& place, const KeyRule& rule);

// The same for elements [begin, end) of the flat shard; `local_begin` and `size` are in boxes of that range.
struct KeyedRange {
  std::int64_t flat_begin = 0;           // where in the range the box begins
  std::vector<std::int64_t> flat_shape;  // of so many elements, in this shape
  KeyedBox box;                          // within them
};
std::vector<KeyedRange> keyed_ranges(const ParamSpec& spec, const ShardPlace& place, const KeyRule& rule,
                                     std::int64_t begin, std::int64_t end);

// The objects that Megatron's linear layers keep beside their weights, and ask for when they load: empty ones here.
// Those of a rank's shard; all ranks of tp have the same.
std::vector<std::string> extra_state_keys(const ParamSpec& spec, const ShardPlace& place, const KeyRule& rule);

// Whole parameters, as keys with their shapes.
struct KeyedShape {
  std::string key;
  std::vector<std::int64_t> shape;
};
std::vector<KeyedShape> keyed_shapes(const ParamSpec& spec, const KeyRule& rule);

}  // namespace braid
