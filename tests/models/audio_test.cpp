// The audio encoder: every layout computes the same as one process, packed clips do not attend to each other, and
// invalid configs are reported. tests/oracles/families_test.py compares with a module written in torch.
#include <gmock/gmock.h>
#include "models/encoder.h"
#include "models/forward_check.h"
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
using testing::topology_of;
using testing::waves;

AudioConfig small_encoder() {
  return {.mels = 5, .hidden = 16, .layers = 3, .heads = 4, .ffn = 24, .stack = 3, .init_std = 0.4};
}

ItemBatch clips(const std::vector<std::int64_t>& lengths) {
  std::int64_t frames = 0;
  for (const std::int64_t length : lengths) frames += length;
  return {
      .values = waves({frames, 5}, 0.37), .feature_grads = waves({frames / 6, 48}, 0.9), .items = extents_of(lengths)};
}

const ItemBatch kClips = clips({12, 6, 30});

ForwardResult run(const ItemBatch& batch, const Layout& layout = {}) {
  return testing::in_layout(layout, [&](const ForwardOptions& options, const Topology& topology, World& world) {
    return forward_encoder(small_encoder(), testing::draw_everything, batch, options, topology, world);
  });
}

class AudioLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(AudioLayouts, EqualOneProcess) { expect_same(run(kClips, GetParam()), run(kClips)); }

INSTANTIATE_TEST_SUITE_P(Threads, AudioLayouts,
                         ::testing::Values(Layout{.tp = 2}, Layout{.tp = 4}, Layout{.pp = 2}, Layout{.pp = 3},
                                           Layout{.tp = 2, .pp = 2}, Layout{.dp = 2}, Layout{.recompute = true},
                                           Layout{.tp = 2, .pp = 2, .dp = 2, .recompute = true}),
                         ::testing::PrintToStringParamName());

TEST(Audio, HoldsAsProcesses) {
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .pp = 2}})
    testing::on_processes(layout.ranks(), [&](World& world) {
      const ForwardResult got = forward_encoder(small_encoder(), testing::draw_everything, kClips,
                                                {.dtype = at::kDouble, .grads = true}, topology_of(layout), world);
      if (world.rank() == 0) expect_same(got, run(kClips));
    });
}

// Positions restart, no frame attends to another clip, and six frames form one row of three encoded ones.
TEST(Audio, APackedClipIsWhatItIsAlone) {
  const at::Tensor together = run(kClips).output;
  EXPECT_EQ(together.sizes(), (std::vector<std::int64_t>{8, 48}));
  std::int64_t begin = 0;
  for (const std::int64_t length : {12, 6, 30}) {
    const ItemBatch alone = {
        .values = kClips.values.slice(0, begin, begin + length), .feature_grads = {}, .items = {{length}}};
    EXPECT_LE(relative_error(together.slice(0, begin / 6, (begin + length) / 6), run(alone).output),
              testing::kSameSums);
    begin += length;
  }
}

// Without positions, attention would treat a clip as a set of pairs of frames.
TEST(Audio, TheOrderOfFramesMatters) {
  ItemBatch batch = clips({12});
  const at::Tensor first = run(batch).output[0];
  batch.values = at::cat({batch.values.slice(0, 0, 6), batch.values.slice(0, 8, 12), batch.values.slice(0, 6, 8)});
  EXPECT_GT(relative_error(run(batch).output[0], first), 1e-3);
}

// A replica may have no clip, and still takes part in every collective.
TEST(Audio, NoClips) { expect_same(run(clips({12}), {.tp = 2, .pp = 2, .dp = 2}), run(clips({12}))); }

TEST(Audio, AFrozenModelHasNoGradients) {
  testing::on_layout({.tp = 2}, [](const testing::Rank& rank) {
    Parameters parameters(declare_parameters(small_encoder()), 0, rank.coordinates(), at::kDouble, at::kCPU);
    testing::draw_everything(parameters);
    testing::freeze(parameters);
    const Extents& lengths = kClips.items;
    for (const bool recompute : {false, true}) {
      const Encoder encoder(small_encoder(), parameters, rank.parallel, 0, 1, {recompute});
      const at::Tensor x = encoder.run_layers(encoder.embed(kClips.values, lengths), lengths);
      EXPECT_FALSE(encoder.features(x, lengths).requires_grad());
    }
    return true;
  });
}

TEST(Audio, ClipsThatMakeNoWholeTokensAreNamed) {
  ItemBatch batch = clips({12, 10});
  EXPECT_THAT(testing::error_of<DataError>([&] { run(batch); }),
              AllOf(HasSubstr("clip 1 of 2 has 10 frames"), HasSubstr("6 per token"), HasSubstr("12")));
}

std::vector<std::string> problems(const AudioConfig& config, const LayoutSizes& layout = {}) {
  return testing::sentences(validate(config, layout, "sound"));
}

TEST(Audio, WhatMakesNoSenseIsSaid) {
  EXPECT_THAT(problems(small_encoder(), {.tp = 4, .pp = 3}), IsEmpty());
  AudioConfig config = small_encoder();
  config.mels = config.stack = 0;
  EXPECT_THAT(problems(config), ElementsAre(HasSubstr("sound.mels: mels=0"), HasSubstr("sound.stack: stack=0")));
  config = small_encoder();
  config.hidden = config.heads = 3;
  EXPECT_THAT(problems(config), ElementsAre(HasSubstr("sound.hidden: hidden=3")));
}

TEST(Audio, WhatDoesNotSplitIsSaid) {
  EXPECT_THAT(problems(small_encoder(), {.cp = 2, .pp = 4}),
              ElementsAre("sound.layers: the audio encoder does not support cp=2",
                          "sound.layers: 3 layers cannot fill pp=4 stages"));
  EXPECT_THAT(problems(small_encoder(), {.tp = 8}), ElementsAre("sound.heads: heads=4 is not divisible by tp=8"));
}

}  // namespace
}  // namespace braid
