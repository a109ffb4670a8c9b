// Models other than tiny-vlm also train the same in every layout: one with a second encoder, and one of another family.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "comm/world.h"
#include "support/ranks.h"
#include "train/training_run.h"

namespace braid {
namespace {

using testing::alone;
using testing::expect_same;
using testing::in_one_process;
using testing::kGlobalBatch;
using testing::kSteps;
using testing::mixed_data;
using testing::small_llava;
using testing::small_omni;
using testing::topology_of;
using testing::train;
using testing::Trained;

using Layout = testing::TrainingLayout;

Layout of(Provider (*provider)(), Layout layout) {
  layout.provider = provider;
  return layout;
}

std::vector<Layout> all_of(Provider (*provider)(), std::vector<Layout> layouts) {
  for (Layout& layout : layouts) layout.provider = provider;
  return layouts;
}

// --- updated parameters

Provider tied_llava() {
  Provider provider = small_llava();
  provider.name = "tied-llava";
  std::get<LlamaConfig>(provider.language).tie_embeddings = true;
  return provider;
}

class Gathers : public ::testing::TestWithParam<Layout> {};

// With a bucket for each parameter, which is NaN until it is awaited, a reader that does not wait for one is seen.
TEST_P(Gathers, AreAwaitedByEveryReader) {
  const auto change = [](TrainingConfig& config) {
    config.optimizer.overlap_grad_reduce = config.optimizer.overlap_param_gather = true;
    config.optimizer.bucket_size = 1;
  };
  expect_same(train(GetParam(), {.change = change}), alone(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(
    Threads, Gathers,
    ::testing::Values(
        Layout{.images = {.dp = 2, .pp = 2}, .language = {.dp = 2, .pp = 2, .vpp = 2}},
        Layout{.images = {.tp = 2, .dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .recompute = true},
        Layout{.images = {.dp = 2}, .language = {.dp = 2}, .colocated = true, .frozen = {"images.encoder"}},
        of(small_omni, {.images = {.dp = 2}, .audio = {.dp = 2}, .language = {.dp = 2, .ep = 2}}),
        of(small_llava, {.images = {.dp = 2}, .language = {.dp = 2, .pp = 2}}),
        of(tied_llava, {.images = {.dp = 2}, .language = {.dp = 2}, .colocated = true})));

// --- tiny-omni: images and sound

class OmniTrainings : public ::testing::TestWithParam<Layout> {};

TEST_P(OmniTrainings, EqualOneProcess) { expect_same(train(GetParam()), alone(GetParam())); }

INSTANTIATE_TEST_SUITE_P(
    Threads, OmniTrainings,
    ::testing::ValuesIn(all_of(
        small_omni,
        {{.micro_batch = 2},
         // fewer, as many and more replicas than the language model has
         {.images = {.dp = 4}, .language = {.dp = 2}, .micro_batch = 2},
         {.audio = {.dp = 4}, .language = {.dp = 2}, .micro_batch = 2},
         {.images = {.dp = 2}, .audio = {.dp = 2}, .language = {.dp = 4}},
         {.images = {.dp = 2},
          .audio = {.dp = 8},
          .language = {.tp = 2, .dp = 2, .ep = 4},
          .sp = true,
          .micro_batch = 4},
         // encoders of different depth and width
         {.images = {.tp = 2}, .audio = {.pp = 2}, .language = {.tp = 2}, .sp = true, .micro_batch = 2},
         {.images = {.pp = 2}, .audio = {.tp = 2}, .language = {.tp = 2, .cp = 2}, .sp = true, .micro_batch = 4},
         {.images = {.dp = 2}, .audio = {.tp = 2, .pp = 2}, .language = {.dp = 2, .ep = 2}},
         {.images = {.pp = 2}, .audio = {.dp = 2}, .language = {.pp = 2}, .micro_batch = 2},
         {.images = {.tp = 2, .dp = 2},
          .audio = {.dp = 4, .pp = 2},
          .language = {.tp = 2, .dp = 2, .ep = 4, .pp = 2},
          .sp = true,
          .micro_batch = 2},
         {.images = {.dp = 2},
          .audio = {.tp = 2},
          .language = {.cp = 2, .dp = 2, .ep = 2},
          .recompute = true,
          .overlap = true,
          .gather_overlap = true},
         // all on the same ranks
         {.colocated = true, .micro_batch = 2},
         {.images = {.dp = 2},
          .audio = {.tp = 2},
          .language = {.tp = 2},
          .colocated = true,
          .sp = true,
          .micro_batch = 2},
         {.images = {.tp = 2}, .audio = {.dp = 2}, .language = {.dp = 2, .ep = 2}, .colocated = true, .micro_batch = 2},
         {.images = {.tp = 2, .dp = 2},
          .audio = {.dp = 2, .pp = 2},
          .language = {.cp = 2, .pp = 2},
          .colocated = true,
          .micro_batch = 4}})));

class FrozenOmni : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(FrozenOmni, StaysAsItWasAndTheRestEqualsOneProcess) {
  const std::vector<std::string>& frozen = GetParam();
  const Trained expected = alone(of(small_omni, {.frozen = frozen}));
  const Trained untouched = train(in_one_process(of(small_omni, {})), {.steps = 0});
  for (const auto& [name, weight] : expected.weights) {
    const std::string set = name.substr(0, name.find('/'));
    const bool is_frozen = std::find(frozen.begin(), frozen.end(), set) != frozen.end();
    EXPECT_EQ(at::equal(weight, untouched.weights.at(name)), is_frozen) << name;
  }
  expect_same(train(of(small_omni, {.images = {.tp = 2},
                                    .audio = {.dp = 2, .pp = 2},
                                    .language = {.tp = 2, .dp = 2},
                                    .sp = true,
                                    .micro_batch = 2,
                                    .frozen = frozen})),
              expected);
  expect_same(train(of(small_omni, {.images = {.dp = 2, .pp = 2},
                                    .audio = {.tp = 2, .dp = 2},
                                    .language = {.tp = 2, .pp = 2},
                                    .colocated = true,
                                    .recompute = true,
                                    .micro_batch = 4,
                                    .frozen = frozen})),
              expected);
}

INSTANTIATE_TEST_SUITE_P(Threads, FrozenOmni,
                         ::testing::Values(std::vector<std::string>{"audio.encoder", "audio.projector"},
                                           std::vector<std::string>{"images.encoder", "images.projector"},
                                           std::vector<std::string>{"audio.encoder"},
                                           std::vector<std::string>{"images.encoder", "audio.encoder", "language"},
                                           std::vector<std::string>{"images.encoder", "images.projector",
                                                                    "audio.projector"}));

std::set<std::string> kinds_of(const SampleSource& data, std::int64_t begin, std::int64_t end) {
  std::set<std::string> kinds;
  for (std::int64_t sample = begin; sample < end; ++sample) {
    const bool images = !data.media("images", sample).empty(), audio = !data.media("audio", sample).empty();
    kinds.insert(images && audio ? "both" : images ? "images" : audio ? "audio" : "neither");
  }
  return kinds;
}

TEST(OmniTraining, HasSamplesOfEveryKind) {
  const auto data = testing::mock(mixed_data())(small_omni(), topology_of(of(small_omni, {})));
  EXPECT_EQ(kinds_of(*data, 0, kSteps * kGlobalBatch), (std::set<std::string>{"both", "images", "audio", "neither"}));
}

// One step has only images, the next one only audio, then both, then neither.
class OneKindAStep : public SampleSource {
 public:
  OneKindAStep(const Provider& provider, const Topology& topology) {
    for (const auto& [images, audio] : {std::pair(1, 0), {0, 1}, {1, 1}, {0, 0}}) {
      MockDataConfig config = mixed_data();
      config.media = {{.name = "images", .share = images * 1.0, .max_items = 1, .max_size = 6},
                      {.name = "audio", .share = audio * 1.0, .max_size = 16}};
      kinds_.push_back(testing::mock(config)(provider, topology));
    }
  }
  Tokens tokens(std::int64_t sample) const override { return kind_of(sample).tokens(sample); }
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    return kind_of(sample).media(encoder, sample);
  }

 private:
  const SampleSource& kind_of(std::int64_t sample) const {
    return *kinds_[static_cast<std::size_t>(sample / kGlobalBatch) % kinds_.size()];
  }
  std::vector<std::unique_ptr<SampleSource>> kinds_;
};

TEST(OmniTraining, EqualsOneProcessWhenAnEncoderHasNothingForAStep) {
  const testing::TrainingOptions options = {.data = [](const Provider& provider, const Topology& topology) {
    return std::make_unique<OneKindAStep>(provider, topology);
  }};
  const auto data = options.data(small_omni(), topology_of(of(small_omni, {})));
  const std::vector<std::string> kinds = {"images", "audio", "both", "neither"};
  for (int step = 0; step < 4; ++step)
    EXPECT_EQ(kinds_of(*data, step * kGlobalBatch, (step + 1) * kGlobalBatch),
              std::set<std::string>{kinds[static_cast<std::size_t>(step)]});
  const Trained expected = train(in_one_process(of(small_omni, {})), options);
  for (const Layout& layout :
       {Layout{.images = {.dp = 2}, .audio = {.pp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true},
        Layout{.images = {.tp = 2}, .audio = {.dp = 4}, .language = {.cp = 2, .dp = 2}, .micro_batch = 2},
        Layout{.images = {.tp = 2}, .audio = {.dp = 2}, .language = {.tp = 2}, .colocated = true, .micro_batch = 4}}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    expect_same(train(of(small_omni, layout), options), expected);
  }
}

TEST(OmniTraining, EqualsOneProcessAsProcesses) {
  const Layout layout =
      of(small_omni, {.images = {.dp = 2}, .audio = {.pp = 2}, .language = {.tp = 2}, .sp = true, .micro_batch = 2});
  const Topology topology = topology_of(layout);
  const Trained& expected = alone(layout);
  testing::on_processes(topology.world_size(), [&](World& world) {
    expect_same_on_rank(testing::train_on(world, layout, topology), expected);
  });
}

TEST(OmniTraining, RepeatsBitForBit) {
  const Layout layout = of(small_omni, {.images = {.dp = 2},
                                        .audio = {.tp = 2},
                                        .language = {.tp = 2, .dp = 2, .ep = 2},
                                        .sp = true,
                                        .dtype = at::kFloat});
  const Trained first = train(layout), again = train(layout);
  EXPECT_EQ(first.losses(), again.losses());
  for (const auto& [name, weight] : first.weights) EXPECT_TRUE(at::equal(weight, again.weights.at(name))) << name;
}

// --- tiny-llava: CLIP and Llama

class LlavaTrainings : public ::testing::TestWithParam<Layout> {};

TEST_P(LlavaTrainings, EqualOneProcess) { expect_same(train(GetParam()), alone(GetParam())); }

INSTANTIATE_TEST_SUITE_P(
    Threads, LlavaTrainings,
    ::testing::ValuesIn(all_of(
        small_llava, {{},
                      {.language = {.dp = 2}, .overlap = true, .gather_overlap = true},
                      {.images = {.dp = 2}, .language = {.dp = 2}, .zero = false},
                      {.images = {.dp = 2}, .micro_batch = 2},
                      {.language = {.tp = 2}, .sp = true, .micro_batch = 2},
                      {.language = {.cp = 2}, .micro_batch = 2},
                      {.language = {.pp = 2}},
                      {.images = {.tp = 2}},
                      {.images = {.pp = 2}},
                      {.recompute = true},
                      {.images = {.tp = 2, .pp = 2},
                       .language = {.tp = 2, .cp = 2, .pp = 2},
                       .sp = true,
                       .recompute = true,
                       .micro_batch = 2},
                      {.images = {.dp = 2}, .language = {.tp = 2}, .colocated = true, .sp = true, .micro_batch = 2},
                      {.images = {.tp = 2, .pp = 2}, .language = {.dp = 2, .pp = 2}, .colocated = true},
                      {.images = {.pp = 2}, .language = {.tp = 2}, .sp = true, .frozen = {"images.encoder"}},
                      {.images = {.tp = 2}, .language = {.pp = 2}, .frozen = {"language"}}})));

}  // namespace
}  // namespace braid
