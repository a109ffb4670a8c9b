// CLIP: every layout computes the same as one process, packed images do not attend to each other, and invalid configs
// are reported. tests/oracles/families_test.py compares with transformers.
#include <gmock/gmock.h>
#include "models/encoder.h"
#include "models/forward_check.h"
#include "models/small_models.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_same;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Layout;
using testing::relative_error;
using testing::small_clip;
using testing::topology_of;
using testing::waves;

// Images of 3 x 3 patches of 2 x 4 x 4 pixels.
ItemBatch image_batch(std::int64_t count) {
  return {.values = waves({9 * count, 32}, 0.37),
          .feature_grads = waves({9 * count, 16}, 0.9),
          .items = Extents(static_cast<std::size_t>(count), {3, 3})};
}

ForwardResult run(const ClipConfig& config, const ItemBatch& batch, const Layout& layout = {}) {
  return testing::in_layout(layout, [&](const ForwardOptions& options, const Topology& topology, World& world) {
    return forward_encoder(config, testing::draw_everything, batch, options, topology, world);
  });
}

class ClipLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(ClipLayouts, EqualOneProcess) {
  expect_same(run(small_clip(), image_batch(3), GetParam()), run(small_clip(), image_batch(3)));
}

INSTANTIATE_TEST_SUITE_P(Threads, ClipLayouts,
                         ::testing::Values(Layout{.tp = 2}, Layout{.tp = 4}, Layout{.pp = 2}, Layout{.pp = 3},
                                           Layout{.tp = 2, .pp = 2}, Layout{.dp = 2}, Layout{.recompute = true},
                                           Layout{.tp = 2, .pp = 2, .dp = 2, .recompute = true}),
                         ::testing::PrintToStringParamName());

TEST(Clip, HoldsAsProcesses) {
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .pp = 2}})
    testing::on_processes(layout.ranks(), [&](World& world) {
      const ForwardResult got = forward_encoder(small_clip(), testing::draw_everything, image_batch(3),
                                                {.dtype = at::kDouble, .grads = true}, topology_of(layout), world);
      if (world.rank() == 0) expect_same(got, run(small_clip(), image_batch(3)));
    });
}

TEST(Clip, APackedImageIsWhatItIsAlone) {
  const at::Tensor together = run(small_clip(), image_batch(3)).output;
  for (std::int64_t i = 0; i < 3; ++i) {
    ItemBatch one = image_batch(1);
    one.values = image_batch(3).values.slice(0, 9 * i, 9 * (i + 1));
    EXPECT_LE(relative_error(together.slice(0, 9 * i, 9 * (i + 1)), run(small_clip(), one).output), testing::kSameSums);
  }
}

// A replica may have no image, and still takes part in every collective.
TEST(Clip, NoImages) {
  expect_same(run(small_clip(), image_batch(1), {.tp = 2, .pp = 2, .dp = 2}), run(small_clip(), image_batch(1)));
}

// Layers after the feature layer do not exist.
TEST(Clip, OnlyLayersUpToTheFeaturesAreDeclared) {
  ClipConfig config = small_clip(), whole = small_clip();
  whole.layers = 3;
  whole.feature_layer = -1;
  EXPECT_EQ(layers_of(config).layers, 3);
  expect_same(run(config, image_batch(2)), run(whole, image_batch(2)));
  config.feature_layer = 3;
  expect_same(run(config, image_batch(2)), run(whole, image_batch(2)));
}

TEST(Clip, ActivationsDiffer) {
  ClipConfig config = small_clip();
  const at::Tensor quick = run(config, image_batch(1)).output;
  config.gelu = GeluForm::Erf;
  EXPECT_GT(relative_error(run(config, image_batch(1)).output, quick), 1e-4);
}

TEST(Clip, AFrozenModelHasNoGradients) {
  testing::on_layout({.tp = 2}, [](const testing::Rank& rank) {
    Parameters parameters(declare_parameters(small_clip()), 0, rank.coordinates(), at::kDouble, at::kCPU);
    testing::draw_everything(parameters);
    testing::freeze(parameters);
    const ItemBatch batch = image_batch(2);
    const Extents& images = batch.items;
    for (const bool recompute : {false, true}) {
      const Encoder clip(small_clip(), parameters, rank.parallel, 0, 1, {recompute});
      const at::Tensor x = clip.run_layers(clip.embed(batch.values, images), images);
      EXPECT_FALSE(clip.features(x, images).requires_grad());
    }
    return true;
  });
}

TEST(Clip, ImagesOfAnotherSizeAreNamed) {
  ItemBatch batch = image_batch(3);
  batch.items[1] = {3, 4};
  EXPECT_THAT(testing::error_of<DataError>([&] { run(small_clip(), batch); }),
              AllOf(HasSubstr("image 1 of 3 has 3 x 4 patches"), HasSubstr("3 x 3"), HasSubstr("12 x 12 pixels")));
}

std::vector<std::string> problems(const ClipConfig& config, const LayoutSizes& layout = {}) {
  return testing::sentences(validate(config, layout, "images"));
}

TEST(Clip, WhatMakesNoSenseIsSaid) {
  EXPECT_THAT(problems(small_clip(), {.tp = 4, .pp = 3}), IsEmpty());
  ClipConfig config = small_clip();
  for (const int layer : {0, 5, -5}) {
    config.feature_layer = layer;
    EXPECT_THAT(problems(config),
                ElementsAre(fmt::format("images.feature_layer: feature_layer={} is not one of the 4 layers", layer)));
  }
  config = small_clip();
  config.heads = 0;
  EXPECT_THAT(problems(config), ElementsAre(HasSubstr("images.heads: heads=0")));
}

TEST(Clip, WhatDoesNotSplitIsSaid) {
  EXPECT_THAT(
      problems(small_clip(), {.cp = 2, .pp = 4}),
      ElementsAre("images.layers: CLIP does not support cp=2", "images.layers: 3 layers cannot fill pp=4 stages"));
  EXPECT_THAT(problems(small_clip(), {.tp = 8}), ElementsAre("images.heads: heads=4 is not divisible by tp=8"));
}

}  // namespace
}  // namespace braid
