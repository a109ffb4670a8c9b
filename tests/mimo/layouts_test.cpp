// One step of tiny-vlm on mixed text and image samples in every layout of two grids: the loss and every gradient equal
// those of one process. In float64, where a wrong factor cannot hide behind rounding.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "comm/world.h"
#include "data/batches/mock_data.h"
#include "mimo/step.h"
#include "nn/layer_check.h"
#include "plan/schedule.h"
#include "support/grid_sizes.h"
#include "support/ranks.h"
#include "support/relative_error.h"

namespace braid {
namespace {

using testing::relative_error;

using Sizes = testing::GridSizes;

const std::vector<std::string> kImages = {"images.encoder", "images.projector"};

constexpr int kSamples = 8;  // per step

struct Layout {
  std::vector<Sizes> encoders = {{}};
  Sizes language{};
  bool colocated = false, sp = false, recompute = false;
  int micro_batch = 1;
  std::vector<std::string> frozen{};
  int prefetch = 0;
};

Topology topology_of(const Layout& layout, int samples = kSamples) {
  TopologyConfig config;
  config.colocated = layout.colocated;
  for (const Sizes& encoder : layout.encoders)
    config.modules.push_back(testing::module_of("images", ModuleKind::Encoder, encoder));
  config.modules.push_back(testing::module_of("language", ModuleKind::Language, layout.language));
  return Topology(config, {.micro_batch = layout.micro_batch, .global_batch = samples, .num_experts = 16});
}

struct Outcome {
  StepTotals totals{std::vector<double>(StepTotals::kFixed)};
  std::map<std::string, at::Tensor> grads;  // whole, by set and parameter
};

// Half of the language model's layers, to save time.
Provider small_vlm() {
  Provider provider = tiny_vlm();
  auto& language = std::get<HybridLmConfig>(provider.language);
  auto& vision = std::get<RadioConfig>(provider.encoders[0].model);
  language.pattern = "M*E-";
  language.experts = 16;
  vision.layers = 2;
  language.init_std = vision.init_std = provider.encoders[0].projector.init_std = 0.1;
  return provider;
}

constexpr int kSeed = 7;

MockDataConfig mixed_data() {
  return {.sequence_length = 32, .min_length = 20, .media = {{.name = "images", .max_size = 6}}};
}

Outcome run(const Layout& layout, const Provider& provider, const SampleSource& source, int samples = kSamples) {
  const Topology topology = topology_of(layout, samples);
  ScheduleOptions options =
      schedule_options(topology, layout.frozen, samples / (layout.micro_batch * layout.language.dp), layout.prefetch);
  options.updates = false;
  const StepPlan plan(topology, options);
  const auto data = make_sample_batches(source, media_tokens(provider, topology));
  Outcome outcome;
  std::mutex mutex;
  testing::on_threads(
      topology.world_size(),
      [&](World& world) {
        const Groups groups(world, topology);
        const MimoModel model(provider, topology, groups, world,
                              {.dtype = at::kDouble,
                               .sequence_parallel = layout.sp,
                               .recompute = {.full = layout.recompute},
                               .frozen = layout.frozen});
        BatchFeed feed(model, plan.options.microbatches, layout.micro_batch * layout.language.dp, *data);
        Step step(model, plan, feed.next_step(0), {.micro_batch = layout.micro_batch});
        for (const Op& op : plan.schedule.ranks[static_cast<std::size_t>(world.rank())]) step.run(op);
        at::Tensor sums = step.finish();
        groups.world().all_reduce(sums);
        const StepTotals totals({sums.const_data_ptr<double>(), static_cast<std::size_t>(sums.numel())});
        const std::lock_guard<std::mutex> lock(mutex);
        outcome.totals = totals;
        for (const auto& set : model.parameter_sets()) {
          if (!set->parameters.trains()) continue;
          std::map<std::string, at::Tensor> own;
          testing::add_gradients(set->parameters, own);
          for (const auto& [name, gradient] : own) {
            at::Tensor& sum = outcome.grads.try_emplace(set->name + "/" + name, at::zeros_like(gradient)).first->second;
            sum.add_(gradient);
          }
        }
      },
      ThreadSemantics::OneQueue);
  return outcome;
}

Outcome run(const Layout& layout, const MockDataConfig& config = mixed_data(), int seed = kSeed) {
  const Provider provider = small_vlm();
  return run(layout, provider, MockData(config, provider, topology_of({}), static_cast<std::uint64_t>(seed)));
}

const Outcome& reference() {
  static const Outcome outcome = run({.colocated = true, .micro_batch = kSamples});
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& expected) {
  EXPECT_EQ(got.totals.num_tokens, expected.totals.num_tokens);
  EXPECT_NEAR(got.totals.loss_sum, expected.totals.loss_sum, 1e-10 * expected.totals.loss_sum);
  for (const auto& [name, gradient] : got.grads) {
    const at::Tensor& other = expected.grads.at(name);
    EXPECT_GT(other.abs().max().item<double>(), 0) << name;
    EXPECT_LE(relative_error(gradient, other), 1e-10) << name;
  }
}

std::set<std::string> names_without(const std::vector<std::string>& sets, const Outcome& outcome) {
  std::set<std::string> names;
  for (const auto& [name, gradient] : outcome.grads)
    if (std::find(sets.begin(), sets.end(), name.substr(0, name.find('/'))) == sets.end()) names.insert(name);
  return names;
}

std::set<std::string> names_of(const Outcome& outcome) { return names_without({}, outcome); }

class VlmLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(VlmLayouts, EqualOneProcess) {
  const Outcome got = run(GetParam());
  expect_same(got, reference());
  EXPECT_EQ(names_of(got), names_without(GetParam().frozen, reference()));
}

INSTANTIATE_TEST_SUITE_P(
    Threads, VlmLayouts,
    ::testing::Values(
        Layout{}, Layout{.micro_batch = 4}, Layout{.encoders = {{.dp = 2}}, .micro_batch = 2},
        Layout{.language = {.dp = 2}}, Layout{.encoders = {{.dp = 2}}, .language = {.dp = 2}},
        Layout{.encoders = {{.dp = 4}}, .language = {.dp = 2}, .micro_batch = 2},
        Layout{.encoders = {{.dp = 2}}, .language = {.dp = 4}}, Layout{.encoders = {{.dp = 8}}, .language = {.dp = 8}},
        Layout{.language = {.tp = 2}}, Layout{.language = {.tp = 2}, .sp = true},
        Layout{.language = {.tp = 4}, .sp = true}, Layout{.language = {.cp = 2}},
        Layout{.language = {.tp = 2, .cp = 2}, .sp = true}, Layout{.language = {.dp = 2, .ep = 2}},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 4}, .sp = true},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 2, .expt_tp = 2}, .sp = true}, Layout{.language = {.pp = 2}},
        Layout{.language = {.pp = 4}}, Layout{.language = {.tp = 2, .pp = 2}, .sp = true},
        Layout{.language = {.pp = 2, .vpp = 2}},
        Layout{.encoders = {{.dp = 2}}, .language = {.dp = 2, .pp = 2, .vpp = 2}},
        Layout{.encoders = {{.pp = 2}}, .language = {.tp = 2, .pp = 2, .vpp = 2}, .sp = true, .recompute = true},
        Layout{.encoders = {{.dp = 2}}, .language = {.pp = 2, .vpp = 2}, .colocated = true, .micro_batch = 2},
        Layout{.encoders = {{.pp = 2}}, .language = {.pp = 2, .vpp = 2}, .colocated = true, .frozen = kImages},
        Layout{.encoders = {{.tp = 2}}}, Layout{.encoders = {{.tp = 4, .dp = 2}}, .language = {.dp = 2}},
        Layout{.encoders = {{.pp = 2}}},
        Layout{.encoders = {{.tp = 2, .dp = 2, .pp = 2}}, .language = {.tp = 2, .dp = 2, .pp = 2}, .sp = true},
        Layout{.encoders = {{.dp = 2}},
               .language = {.tp = 2, .cp = 2, .dp = 2, .ep = 4, .pp = 2},
               .sp = true,
               .recompute = true},
        Layout{.recompute = true}, Layout{.colocated = true},
        Layout{.encoders = {{.dp = 2}}, .language = {.tp = 2}, .colocated = true, .micro_batch = 2},
        Layout{.encoders = {{.tp = 2}}, .language = {.dp = 2}, .colocated = true},
        Layout{.encoders = {{.tp = 2, .dp = 2}}, .language = {.cp = 2, .dp = 2}, .colocated = true},
        Layout{
            .encoders = {{.dp = 4}}, .language = {.tp = 2, .pp = 2}, .colocated = true, .sp = true, .micro_batch = 4},
        Layout{.encoders = {{.dp = 2, .pp = 2}}, .language = {.dp = 2, .pp = 2}, .colocated = true},
        Layout{.frozen = kImages},
        Layout{.encoders = {{.dp = 2}}, .language = {.tp = 2, .dp = 2}, .frozen = kImages, .prefetch = 2},
        Layout{.encoders = {{.dp = 2}}, .language = {.dp = 2}, .prefetch = 1},
        Layout{.colocated = true, .frozen = kImages}));

void expect_same_or_zero(const Outcome& got, const Outcome& expected) {
  EXPECT_EQ(got.totals.num_tokens, expected.totals.num_tokens);
  EXPECT_NEAR(got.totals.loss_sum, expected.totals.loss_sum, 1e-10 * expected.totals.loss_sum);
  for (const auto& [name, gradient] : got.grads) {
    const at::Tensor& other = expected.grads.at(name);
    EXPECT_LE((gradient - other).abs().max().item<double>(), 1e-10 * other.abs().max().item<double>()) << name;
  }
}

// Text-only steps, and steps where only some replicas have images, run like others: every share of samples with images,
// every limit of images of a sample, every layout.
TEST(VlmLayouts, HoldForEveryMixOfTextAndImages) {
  const std::vector<Layout> layouts = {
      {.encoders = {{.tp = 2, .dp = 2}}, .language = {.tp = 2, .dp = 4}, .sp = true},
      {.encoders = {{.dp = 4}}, .language = {.dp = 2}, .micro_batch = 2},
      {.encoders = {{.pp = 2}}, .language = {.cp = 2, .pp = 2}},
      {.encoders = {{.dp = 2}}, .language = {.tp = 2}, .colocated = true, .micro_batch = 2}};
  for (int mix = 0; mix < 60; ++mix) {
    MockDataConfig data = mixed_data();
    data.media[0].share = mix % 10 == 0 ? 0 : (mix % 10) / 9.0 * 0.6;
    data.media[0].max_items = 1 + mix % 3;
    SCOPED_TRACE(mix);
    expect_same_or_zero(run(layouts[static_cast<std::size_t>(mix) % layouts.size()], data, 1000 + mix),
                        run({.colocated = true, .micro_batch = kSamples}, data, 1000 + mix));
  }
}

// Enough layers for many stages; the stages of a rank are not adjacent.
class InterleavedLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(InterleavedLayouts, EqualOneProcess) {
  Provider provider = small_vlm();
  auto& language = std::get<HybridLmConfig>(provider.language);
  const int stages = GetParam().language.pp * GetParam().language.vpp;
  while (language.pattern.size() % static_cast<std::size_t>(stages) != 0) language.pattern += "M*E-";
  static std::map<std::string, Outcome> references;
  const MockData data(mixed_data(), provider, topology_of({}), kSeed);
  const auto [reference, is_new] = references.try_emplace(language.pattern);
  if (is_new) reference->second = run({.colocated = true, .micro_batch = kSamples}, provider, data);
  expect_same(run(GetParam(), provider, data), reference->second);
}

INSTANTIATE_TEST_SUITE_P(
    Threads, InterleavedLayouts,
    ::testing::Values(
        Layout{.language = {.pp = 2, .vpp = 3}}, Layout{.language = {.pp = 4, .vpp = 2}},
        Layout{.language = {.pp = 4, .vpp = 3}},
        Layout{.encoders = {{.dp = 2}}, .language = {.dp = 2, .pp = 2, .vpp = 3}},
        Layout{.encoders = {{.pp = 2}}, .language = {.pp = 4, .vpp = 2}},
        Layout{.encoders = {{.dp = 2}}, .language = {.pp = 2, .vpp = 3}, .colocated = true, .micro_batch = 2},
        Layout{
            .encoders = {{.tp = 2, .dp = 2}}, .language = {.pp = 4, .vpp = 3}, .colocated = true, .micro_batch = 2}));

// Three sequences of different lengths, 32 tokens in all, as one sample or one by one.
class Pieces : public SampleSource {
 public:
  Pieces(const Provider& provider, bool packed) : packed_(packed) {
    for (const int length : {8, 14, 10})
      of_length_.emplace_back(MockDataConfig{.sequence_length = length, .media = mixed_data().media}, provider,
                              topology_of({}), static_cast<std::uint64_t>(kSeed + length));
  }

  Tokens tokens(std::int64_t sample) const override {
    if (!packed_) return of_length_[index(sample % 3)].tokens(sample / 3);
    std::vector<at::Tensor> ids, labels;
    std::vector<std::int64_t> lengths;
    for (const MockData& pieces : of_length_) {
      const Tokens tokens = pieces.tokens(sample);
      ids.push_back(tokens.ids);
      labels.push_back(tokens.labels);
      lengths.push_back(tokens.ids.size(0));
    }
    return {at::cat(ids), at::cat(labels), lengths};
  }

  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    if (!packed_) return of_length_[index(sample % 3)].media(encoder, sample / 3);
    std::vector<MediaItem> items;
    for (const MockData& pieces : of_length_)
      for (MediaItem& item : pieces.media(encoder, sample)) items.push_back(std::move(item));
    return items;
  }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  const bool packed_;
  std::vector<MockData> of_length_;
};

// The auxiliary loss depends on samples, however they are packed.
Provider without_auxiliary_loss() {
  Provider provider = small_vlm();
  std::get<HybridLmConfig>(provider.language).aux_loss_coeff = 0;
  return provider;
}

TEST(PackedSamples, TrainLikeTheirPiecesOneByOne) {
  const Provider provider = without_auxiliary_loss();
  const Layout one = {.colocated = true, .micro_batch = kSamples};
  const Layout one_by_one = {.colocated = true, .micro_batch = 1};
  expect_same(run(one, provider, Pieces(provider, true)),
              run(one_by_one, provider, Pieces(provider, false), 3 * kSamples));
}

class PackedLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(PackedLayouts, EqualOneProcess) {
  const Provider provider = small_vlm();
  const Pieces pieces(provider, true);
  static const Outcome reference = run({.colocated = true, .micro_batch = kSamples}, provider, pieces);
  expect_same(run(GetParam(), provider, pieces), reference);
}

INSTANTIATE_TEST_SUITE_P(
    Threads, PackedLayouts,
    ::testing::Values(
        Layout{.micro_batch = 2}, Layout{.encoders = {{.dp = 2}}, .language = {.dp = 4}},
        Layout{.encoders = {{.dp = 4}}, .language = {.dp = 2}, .micro_batch = 2}, Layout{.language = {.tp = 2}},
        Layout{.language = {.tp = 2}, .sp = true}, Layout{.language = {.tp = 4}, .sp = true},
        Layout{.language = {.cp = 2}}, Layout{.language = {.cp = 2}, .micro_batch = 4}, Layout{.language = {.cp = 4}},
        Layout{.language = {.tp = 2, .cp = 2}, .sp = true, .micro_batch = 2},
        Layout{.language = {.tp = 2, .cp = 4}, .sp = true, .micro_batch = 2}, Layout{.language = {.dp = 2, .ep = 2}},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 4}, .sp = true}, Layout{.language = {.pp = 2}},
        Layout{.language = {.pp = 2, .vpp = 2}}, Layout{.language = {.cp = 2, .pp = 2, .vpp = 2}, .micro_batch = 2},
        Layout{.encoders = {{.tp = 2}}, .language = {.pp = 4}},
        Layout{.encoders = {{.tp = 2, .dp = 2, .pp = 2}}, .language = {.tp = 2, .dp = 2, .pp = 2}, .sp = true},
        Layout{.encoders = {{.dp = 2}},
               .language = {.tp = 2, .cp = 2, .dp = 2, .ep = 4, .pp = 2},
               .sp = true,
               .recompute = true},
        Layout{.encoders = {{.dp = 2}}, .language = {.tp = 2}, .colocated = true, .micro_batch = 2},
        Layout{.encoders = {{.tp = 2, .dp = 2}}, .language = {.cp = 2, .dp = 2}, .colocated = true}));

// Media as bytes, and what the model makes of them, (byte / 255 - mean) / deviation by channel, as floats.
class Pictures : public SampleSource {
 public:
  Pictures(const SampleSource& mock, bool as_bytes) : mock_(mock), as_bytes_(as_bytes) {}

  Tokens tokens(std::int64_t sample) const override { return mock_.tokens(sample); }
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    std::vector<MediaItem> items = mock_.media(encoder, sample);
    for (MediaItem& item : items) {
      const at::Tensor bytes = (item.values * 40 + 128).clamp(0, 255).to(at::kByte);
      item.values = as_bytes_ ? bytes : normalized(bytes.to(at::kDouble));
    }
    return items;
  }

 private:
  static at::Tensor normalized(const at::Tensor& bytes) {
    const at::Tensor mean = at::tensor({0.485, 0.456, 0.406}, at::kDouble).unsqueeze(1);
    const at::Tensor deviation = at::tensor({0.229, 0.224, 0.225}, at::kDouble).unsqueeze(1);
    return ((bytes / 255).unflatten(1, {3, -1}) - mean).div(deviation).flatten(1);
  }

  const SampleSource& mock_;
  const bool as_bytes_;
};

TEST(Layouts, BytesAreNormalizedByTheModel) {
  Provider provider = small_vlm();
  provider.encoders[0].pixel_stats = "imagenet";
  const MockData mock(mixed_data(), provider, topology_of({}), kSeed);
  const Outcome floats = run({.colocated = true, .micro_batch = kSamples}, provider, Pictures(mock, false));
  expect_same(run({.encoders = {{.tp = 2}}, .language = {.dp = 2}}, provider, Pictures(mock, true)), floats);
  EXPECT_NE(floats.totals.loss_sum, reference().totals.loss_sum);
}

}  // namespace
}  // namespace braid
