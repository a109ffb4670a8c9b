#include "ckpt/param_keys.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace braid {
namespace {

constexpr std::string_view kLayers = "decoder.layers.";

struct LayerName {
  int layer;
  std::string_view rest;  // "mlp.linear_fc1.weight"
};

std::optional<LayerName> layer_name(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  LayerName found{};
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), found.layer);
  BRAID_CHECK(error == std::errc() && end != name.data() + name.size() && *end == '.', "{}{} has no layer", kLayers,
              name);
  found.rest = name.substr(static_cast<std::size_t>(end - name.data()) + 1);
  return found;
}

}  // namespace

int count_layers(const std::vector<ParamSpec>& specs) {
  int layers = 0;
  for (const ParamSpec& spec : specs)
    if (const auto name = layer_name(spec.name)) layers = std::max(layers, name->layer + 1);
  return layers;
}

std::vector<KeyedBox> keyed_boxes(const ParamSpec& spec, const ShardCoordinates& coordinates, const KeyRule& rule) {
  const auto name = rule.stacked_layers > 0 ? layer_name(spec.name) : std::nullopt;
  const std::string key = rule.prefix + (name ? fmt::format("{}{}", kLayers, name->rest) : spec.name);
  std::vector<KeyedBox> keyed;
  std::int64_t block_begin = 0;
  for (Box& box : shard_boxes(spec, coordinates)) {
    keyed.push_back({key, spec.shape, std::move(box.global_begin), std::move(box.local_begin), std::move(box.size)});
    KeyedBox& last = keyed.back();
    if (!spec.block_names.empty()) {
      const std::size_t block = keyed.size() - 1, dim = static_cast<std::size_t>(spec.tp_dim);
      last.key += "." + spec.block_names[block];
      last.shape[dim] = spec.tp_blocks[block];
      last.begin[dim] -= block_begin;
      block_begin += spec.tp_blocks[block];
    }
    if (!name) continue;
    last.shape.insert(last.shape.begin(), rule.stacked_layers);
    last.begin.insert(last.begin.begin(), name->layer);
  }
  return keyed;
}

std::vector<KeyedRange> keyed_ranges(const ParamSpec& spec, const ShardCoordinates& coordinates, const KeyRule& rule,
                                     std::int64_t begin, std::int64_t end) {
  const std::vector<std::int64_t> shape = local_shape(spec, coordinates);
  const std::vector<KeyedBox> whole = keyed_boxes(spec, coordinates, rule);
  std::vector<KeyedRange> ranges;
  std::int64_t flat_begin = 0;
  for (const Box& slab : boxes_of_range(shape, begin, end)) {
    for (KeyedBox box : whole) {
      const std::size_t stacked = box.begin.size() - box.size.size();
      bool empty = false;
      for (std::size_t dim = 0; dim < slab.size.size(); ++dim) {
        const std::int64_t first = std::max(box.local_begin[dim], slab.local_begin[dim]);
        const std::int64_t last =
            std::min(box.local_begin[dim] + box.size[dim], slab.local_begin[dim] + slab.size[dim]);
        empty = empty || first >= last;
        box.begin[stacked + dim] += first - box.local_begin[dim];
        box.local_begin[dim] = first - slab.local_begin[dim];
        box.size[dim] = last - first;
      }
      if (!empty) ranges.push_back({flat_begin, slab.size, std::move(box)});
    }
    flat_begin += num_elements(slab.size);
  }
  return ranges;
}

std::vector<std::string> extra_state_keys(const ParamSpec& spec, const ShardCoordinates& coordinates,
                                          const KeyRule& rule) {
  constexpr std::string_view kWeight = ".weight";
  const bool is_matrix = spec.shape.size() == (spec.expert ? 3u : 2u);
  const bool is_table = spec.name.ends_with("word_embeddings.weight");
  if (!spec.name.ends_with(kWeight) || spec.tp_dim < 0 || !is_matrix || is_table) return {};
  const auto name = rule.stacked_layers > 0 ? layer_name(spec.name) : std::nullopt;
  std::string key = rule.prefix + (name ? fmt::format("{}{}", kLayers, name->rest) : spec.name);
  key.replace(key.size() - kWeight.size(), kWeight.size(), "._extra_state/shard_");
  if (name) return {fmt::format("{}{}_{}", key, name->layer, rule.stacked_layers)};
  if (!spec.expert) return {key + "0_1"};
  const Box experts = shard_boxes(spec, coordinates).front();
  std::vector<std::string> keys;
  for (std::int64_t i = 0; i < experts.size[0]; ++i)
    keys.push_back(fmt::format("{}{}_{}", key, experts.global_begin[0] + i, spec.shape[0]));
  return keys;
}

std::vector<KeyedShape> keyed_shapes(const ParamSpec& spec, const KeyRule& rule) {
  std::vector<KeyedShape> shapes;
  for (KeyedBox& box : keyed_boxes(spec, {}, rule)) shapes.push_back({std::move(box.key), std::move(box.shape)});
  return shapes;
}

}  // namespace braid
