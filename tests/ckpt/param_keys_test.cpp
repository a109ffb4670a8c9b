// The keys, and the positions in them, under which a shard of a parameter is stored.
#include <gmock/gmock.h>
#include "run/resume/stored_state.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Integers = std::vector<std::int64_t>;

const ParamSpec kFused = {.name = "decoder.layers.3.mixer.in_proj.weight",
                          .shape = {20, 3},
                          .tp_dim = 0,
                          .tp_blocks = {8, 8, 4},
                          .block_names = {"z", "x", "dt"}};

TEST(ParamKeys, NamedBlocksAreTensorsOfTheirOwn) {
  for (const int tp : {1, 2}) {
    const std::vector<KeyedBox> boxes = keyed_boxes(kFused, {.tp = tp - 1, .tp_size = tp}, {.prefix = "model."});
    ASSERT_EQ(boxes.size(), 3u);
    EXPECT_EQ(boxes[1].key, "model.decoder.layers.3.mixer.in_proj.weight.x");
    EXPECT_EQ(boxes[1].shape, (Integers{8, 3}));
    EXPECT_EQ(boxes[1].begin, (Integers{tp == 1 ? 0 : 4, 0}));
    EXPECT_EQ(boxes[1].local_begin, (Integers{8 / tp, 0}));
    EXPECT_EQ(boxes[1].size, (Integers{8 / tp, 3}));
    EXPECT_EQ(boxes[2].key, "model.decoder.layers.3.mixer.in_proj.weight.dt");
  }
}

TEST(ParamKeys, LayersThatAreAlikeAreStacked) {
  const ParamSpec spec = {.name = "decoder.layers.2.mlp.linear_fc1.bias", .shape = {6}, .tp_dim = 0};
  const std::vector<KeyedBox> boxes = keyed_boxes(spec, {.tp = 1, .tp_size = 2}, {.stacked_layers = 4});
  ASSERT_EQ(boxes.size(), 1u);
  EXPECT_EQ(boxes[0].key, "decoder.layers.mlp.linear_fc1.bias");
  EXPECT_EQ(boxes[0].shape, (Integers{4, 6}));
  EXPECT_EQ(boxes[0].begin, (Integers{2, 3}));
  EXPECT_EQ(boxes[0].size, (Integers{3}));
  EXPECT_EQ(count_layers({spec, {.name = "decoder.final_layernorm.weight"}}), 3);
}

TEST(ParamKeys, LinearLayersHaveAnExtraState) {
  const auto keys = [](const ParamSpec& spec, int layers = 0) {
    return extra_state_keys(spec, {.ep = 1, .ep_size = 2}, {.prefix = "m.", .stacked_layers = layers});
  };
  EXPECT_THAT(keys({.name = "decoder.layers.1.mlp.linear_fc1.weight", .shape = {4, 4}, .tp_dim = 0}, 3),
              ElementsAre("m.decoder.layers.mlp.linear_fc1._extra_state/shard_1_3"));
  EXPECT_THAT(keys({.name = "output_layer.weight", .shape = {4, 4}, .tp_dim = 0}),
              ElementsAre("m.output_layer._extra_state/shard_0_1"));
  EXPECT_THAT(
      keys({.name = "experts.linear_fc2.weight", .shape = {4, 4, 4}, .tp_dim = 2, .expert = true}),
      ElementsAre("m.experts.linear_fc2._extra_state/shard_2_4", "m.experts.linear_fc2._extra_state/shard_3_4"));
  EXPECT_THAT(keys({.name = "word_embeddings.weight", .shape = {4, 4}, .tp_dim = 0}), IsEmpty());
  EXPECT_THAT(keys({.name = "router.weight", .shape = {4, 4}}), IsEmpty());
  EXPECT_THAT(keys({.name = "conv1d.weight", .shape = {4, 1, 4}, .tp_dim = 0}), IsEmpty());
}

// Numbers every element of a box of the stored tensors in the order of the flat range.
void add_elements(const KeyedRange& range, std::map<std::int64_t, std::pair<std::string, Integers>>& elements) {
  const KeyedBox& box = range.box;
  std::int64_t count = 1;
  for (const std::int64_t size : box.size) count *= size;
  const std::size_t stacked = box.begin.size() - box.size.size();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, flat = 0, stride = 1;
    Integers stored = box.begin;
    for (std::size_t dim = box.size.size(); dim-- > 0; rest /= box.size[dim]) {
      stored[stacked + dim] += rest % box.size[dim];
      flat += (box.local_begin[dim] + rest % box.size[dim]) * stride;
      stride *= range.flat_shape[dim];
    }
    EXPECT_TRUE(elements.try_emplace(range.flat_begin + flat, box.key, stored).second) << "twice";
  }
}

// For every division of a flat shard into ranges, each element is stored once, at the same index of the same tensor.
TEST(ParamKeys, RangesOfAShardAreBoxesOfTheSameTensors) {
  std::mt19937 random(5);
  const std::vector<ParamSpec> specs = {
      kFused,
      {.name = "decoder.layers.1.experts.weight", .shape = {4, 6, 5}, .tp_dim = 1, .expert = true},
      {.name = "vector", .shape = {12}, .tp_dim = 0},
      {.name = "replicated", .shape = {3, 2, 2}}};
  const ShardCoordinates place = {.tp = 1, .tp_size = 2, .ep = 1, .ep_size = 2, .expt_tp = 1, .expt_tp_size = 2};
  for (const ParamSpec& spec : specs)
    for (const int layers : {0, 5}) {
      std::int64_t total = 1;
      for (const std::int64_t size : local_shape(spec, place)) total *= size;
      const auto elements_of = [&](const std::set<std::int64_t>& cuts) {
        std::map<std::int64_t, std::pair<std::string, Integers>> elements;
        for (auto begin = cuts.begin(); std::next(begin) != cuts.end(); ++begin)
          for (KeyedRange range : keyed_ranges(spec, place, {.stacked_layers = layers}, *begin, *std::next(begin))) {
            range.flat_begin += *begin;
            add_elements(range, elements);
          }
        return elements;
      };
      const auto whole = elements_of({0, total});
      EXPECT_EQ(std::ssize(whole), total);
      for (int trial = 0; trial < 20; ++trial) {
        std::set<std::int64_t> cuts = {0, total};
        for (int cut = 0; cut < 4; ++cut) cuts.insert(static_cast<std::int64_t>(random()) % total);
        EXPECT_EQ(elements_of(cuts), whole) << spec.name;
      }
    }
}

}  // namespace
}  // namespace braid
