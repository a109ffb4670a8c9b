// Ten steps of a small vision-language model, with weight decay, clipping and mixed text and image samples, in every
// layout: losses and final weights equal those of one process. In float64, where a wrong factor cannot hide.
#include "train/training.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>

#include "base/error.h"
#include "dist/world.h"
#include "mimo/mock_data.h"
#include "support/grid_sizes.h"
#include "support/ranks.h"

namespace braid {
namespace {

constexpr int kSteps = 10, kGlobalBatch = 8;

using Sizes = testing::GridSizes;

const std::vector<std::string> kImages = {"images.encoder", "images.projector"};

struct Layout {
  Sizes encoder{}, language{};
  bool colocated = false, sp = false, recompute = false;
  int micro_batch = 1;
  bool zero = true, overlap = false, gather_overlap = false;
  std::vector<std::string> frozen{};
  at::ScalarType dtype = at::kDouble;
};

Topology topology_of(const Layout& layout) {
  TopologyConfig config;
  config.colocated = layout.colocated;
  config.modules = {testing::module_of("images", "encoder", layout.encoder),
                    testing::module_of("language", "language", layout.language)};
  return Topology(config, {.micro_batch = layout.micro_batch, .global_batch = kGlobalBatch, .num_experts = 8});
}

Provider small_vlm() {
  Provider provider = tiny_vlm();
  auto& language = std::get<HybridLmConfig>(provider.language);
  language.pattern = "ME*-";
  language.aux_loss_coeff = 1e-2;
  std::get<RadioConfig>(provider.encoders[0].model).layers = 2;
  return provider;
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;  // whole, by set and parameter
};

void put_weights(const ParameterSet& set, std::map<std::string, at::Tensor>& weights) {
  for (const Parameters::Entry& entry : set.parameters.entries()) {
    at::Tensor& whole =
        weights.try_emplace(set.name + "/" + entry.spec.name, at::zeros(entry.spec.shape, at::kDouble)).first->second;
    for (const Box& box : shard_boxes(entry.spec, set.parameters.place())) {
      at::Tensor to = whole, from = entry.value.detach();
      for (std::size_t dim = 0; dim < box.size.size(); ++dim) {
        to = to.narrow(static_cast<std::int64_t>(dim), box.global_begin[dim], box.size[dim]);
        from = from.narrow(static_cast<std::int64_t>(dim), box.local_begin[dim], box.size[dim]);
      }
      to.copy_(from);
    }
  }
}

MockDataConfig mixed_data() {
  return {.sequence_length = 32, .min_length = 20, .media = {{.name = "images", .max_size = 6}}};
}

TrainingConfig config_of(const Layout& layout) {
  TrainingConfig config;
  config.model = {
      .dtype = layout.dtype, .sequence_parallel = layout.sp, .recompute = layout.recompute, .frozen = layout.frozen};
  config.optimizer.zero = layout.zero;
  config.optimizer.overlap_grad_reduce = layout.overlap;
  config.optimizer.overlap_param_gather = layout.gather_overlap;
  if (layout.overlap) config.optimizer.bucket_count = 4;
  config.optimizer.clip_grad = 0.5;
  config.schedule = resolve({.lr = 1e-2, .min_lr = 1e-3, .decay_style = "cosine", .weight_decay = 0.1},
                            {.iterations = kSteps, .samples = std::nullopt, .global_batch = kGlobalBatch});
  config.micro_batch = layout.micro_batch;
  config.global_batch = kGlobalBatch;
  return config;
}

// This rank's part of a run: losses on every rank, weights only what it holds.
Trained train_on(World& world, const Layout& layout, const Topology& topology) {
  const Provider provider = small_vlm();
  const MockData data(mixed_data(), provider, topology, 3);
  StepClock clock;
  const Groups groups(world, topology);
  Training training(provider, topology, groups, world, config_of(layout));
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const TrainingReport report = training.step(data, std::int64_t{step} * kGlobalBatch, clock);
    EXPECT_TRUE(report.update.stepped);
    trained.losses.push_back(report.loss);
    trained.norms.push_back(report.update.grad_norm);
  }
  training.finish_parameters();
  for (const auto& set : training.model().parameter_sets()) put_weights(*set, trained.weights);
  return trained;
}

Trained train(const Layout& layout) {
  const Topology topology = topology_of(layout);
  Trained trained;
  std::mutex mutex;
  testing::on_threads(topology.world_size(), [&](World& world) {
    const Trained mine = train_on(world, layout, topology);
    const std::lock_guard<std::mutex> lock(mutex);
    if (world.rank() == 0) trained.losses = mine.losses;
    if (world.rank() == 0) trained.norms = mine.norms;
    // A rank has zeros where others have values; replicas have the same.
    for (const auto& [name, weight] : mine.weights) {
      const auto [place, is_new] = trained.weights.try_emplace(name, weight);
      if (!is_new) place->second = at::where(weight != 0, weight, place->second);
    }
  });
  return trained;
}

const Trained& alone() {
  static const Trained run = train({.colocated = true, .micro_batch = kGlobalBatch});
  return run;
}

void expect_same(const Trained& got, const Trained& expected, double loss_tolerance, double weight_tolerance) {
  for (int step = 0; step < kSteps; ++step) {
    const auto i = static_cast<std::size_t>(step);
    EXPECT_NEAR(got.losses[i], expected.losses[i], loss_tolerance * expected.losses[i]) << "step " << step;
    EXPECT_NEAR(got.norms[i], expected.norms[i], 100 * loss_tolerance * expected.norms[i]) << "step " << step;
  }
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : got.weights) {
    const at::Tensor& other = expected.weights.at(name);
    EXPECT_LE((weight - other).norm().item<double>(), weight_tolerance * other.norm().item<double>()) << name;
  }
}

class Trainings : public ::testing::TestWithParam<Layout> {};

TEST_P(Trainings, EqualOneProcess) { expect_same(train(GetParam()), alone(), 1e-10, 1e-8); }

INSTANTIATE_TEST_SUITE_P(
    Threads, Trainings,
    ::testing::Values(
        Layout{}, Layout{.micro_batch = 2}, Layout{.zero = false}, Layout{.encoder = {.dp = 2}, .micro_batch = 2},
        Layout{.language = {.dp = 2}}, Layout{.language = {.dp = 2}, .zero = false},
        Layout{.language = {.dp = 2}, .overlap = true},
        Layout{.language = {.dp = 2}, .overlap = true, .gather_overlap = true},
        Layout{.encoder = {.dp = 2}, .language = {.dp = 2}},
        Layout{.encoder = {.dp = 4}, .language = {.dp = 2}, .micro_batch = 2},
        Layout{.encoder = {.dp = 2}, .language = {.dp = 4}}, Layout{.encoder = {.dp = 8}, .language = {.dp = 8}},
        Layout{.language = {.tp = 2}}, Layout{.language = {.tp = 2}, .sp = true},
        Layout{.language = {.tp = 4}, .sp = true}, Layout{.language = {.cp = 2}},
        Layout{.language = {.tp = 2, .cp = 2}, .sp = true}, Layout{.language = {.dp = 2, .ep = 2}},
        Layout{.language = {.dp = 4, .ep = 4}}, Layout{.language = {.tp = 2, .dp = 2, .ep = 4}, .sp = true},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .zero = false},
        Layout{.language = {.tp = 2, .dp = 2, .ep = 2, .expt_tp = 2}, .sp = true}, Layout{.language = {.pp = 2}},
        Layout{.language = {.pp = 4}}, Layout{.language = {.tp = 2, .pp = 2}, .sp = true}, Layout{.encoder = {.tp = 2}},
        Layout{.encoder = {.pp = 2}}, Layout{.encoder = {.tp = 2, .dp = 2}, .language = {.dp = 2}},
        Layout{.encoder = {.tp = 2, .dp = 2, .pp = 2}, .language = {.tp = 2, .dp = 2, .pp = 2}, .sp = true},
        Layout{.encoder = {.dp = 2}, .language = {.tp = 2, .cp = 2, .dp = 2, .ep = 4}, .sp = true, .recompute = true},
        Layout{.colocated = true},
        Layout{.encoder = {.dp = 2}, .language = {.tp = 2}, .colocated = true, .micro_batch = 2},
        Layout{.encoder = {.tp = 2}, .language = {.dp = 2}, .colocated = true},
        Layout{.encoder = {.dp = 4}, .language = {.tp = 2, .pp = 2}, .colocated = true, .sp = true, .micro_batch = 4},
        Layout{.encoder = {.dp = 2}, .language = {.dp = 2}, .colocated = true, .overlap = false, .frozen = {}},
        Layout{.encoder = {.tp = 2, .dp = 2},
               .language = {.tp = 2, .dp = 2, .ep = 2, .pp = 2},
               .sp = true,
               .overlap = true,
               .gather_overlap = true}));

// What does not train stays as it was, and everything else trains alike in every layout.
TEST(Training, FrozenEncoderStaysAndTheRestEqualsOneProcess) {
  const Trained expected = train({.colocated = true, .micro_batch = kGlobalBatch, .frozen = kImages});
  expect_same(train({.encoder = {.dp = 2}, .language = {.tp = 2, .dp = 2}, .sp = true, .frozen = kImages}), expected,
              1e-10, 1e-8);
  EXPECT_NE(expected.losses.back(), alone().losses.back());
}

// Data with a flaw: from `first_bad` to `last_bad`, pixels are not numbers.
class FlawedData : public DataSource {
 public:
  FlawedData(const DataSource& good, std::int64_t first_bad, std::int64_t last_bad)
      : good_(good), first_bad_(first_bad), last_bad_(last_bad) {}
  Tokens tokens(std::int64_t sample) const override { return good_.tokens(sample); }
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    std::vector<MediaItem> items = good_.media(encoder, sample);
    if (sample >= first_bad_ && sample <= last_bad_)
      for (MediaItem& item : items) item.values.fill_(std::numeric_limits<double>::quiet_NaN());
    return items;
  }

 private:
  const DataSource& good_;
  const std::int64_t first_bad_, last_bad_;
};

// What happened in each of `steps`, and the weights at the end.
struct Story {
  std::vector<TrainingReport> reports;
  std::map<std::string, at::Tensor> weights;
};

Story story_of(const Layout& layout, int steps, const std::function<void(TrainingConfig&)>& change,
               const MockDataConfig& mock = mixed_data(), std::pair<int, int> bad_samples = {-1, -1}) {
  const Topology topology = topology_of(layout);
  Story story;
  testing::on_threads(topology.world_size(), [&](World& world) {
    const Provider provider = small_vlm();
    const MockData good(mock, provider, topology, 3);
    const FlawedData data(good, bad_samples.first, bad_samples.second);
    TrainingConfig config = config_of(layout);
    change(config);
    const Groups groups(world, topology);
    Training training(provider, topology, groups, world, config);
    StepClock clock;
    Story mine;
    for (int step = 0; step < steps; ++step)
      mine.reports.push_back(training.step(data, std::int64_t{step} * kGlobalBatch, clock));
    training.finish_parameters();
    if (world.rank() != 0) return;
    for (const auto& set : training.model().parameter_sets()) put_weights(*set, mine.weights);
    story = std::move(mine);
  });
  return story;
}

// Every module's gradient is that of the loss over all tokens of the step, however many of them a replica had.
TEST(Training, GradientsOfEveryModuleAreDividedByTheTokensOfAll) {
  MockDataConfig uneven = mixed_data();
  uneven.min_length = 8;
  uneven.media[0].share = 0.3;
  const std::vector<std::string> all = {"images.encoder", "images.projector", "language"};
  for (const std::string& trained : all) {
    Layout one = {.colocated = true, .micro_batch = kGlobalBatch};
    for (const std::string& name : all)
      if (name != trained) one.frozen.push_back(name);
    Layout many = {.encoder = {.dp = 4}, .language = {.dp = 2}, .micro_batch = 2, .frozen = one.frozen};
    const auto no_clip = [](TrainingConfig& config) { config.optimizer.clip_grad = 0; };
    const Story expected = story_of(one, 1, no_clip, uneven), got = story_of(many, 1, no_clip, uneven);
    EXPECT_GT(expected.reports[0].update.grad_norm, 0) << trained;
    EXPECT_NEAR(got.reports[0].update.grad_norm, expected.reports[0].update.grad_norm,
                1e-10 * expected.reports[0].update.grad_norm)
        << trained;
  }
}

// Three of four replicas without images: exact by default, four times as much with the correction.
TEST(Training, PartialParticipationIsExactUnlessCorrected) {
  MockDataConfig few = mixed_data();
  few.media[0].share = 0.3;
  const std::vector<std::string> rest = {"language"};
  const Layout one = {.colocated = true, .micro_batch = kGlobalBatch, .frozen = rest};
  const Layout many = {.encoder = {.dp = 4}, .language = {.dp = 2}, .micro_batch = 4, .frozen = rest};
  const auto norm = [&](const Layout& layout, bool correct) {
    return story_of(layout, 1,
                    [&](TrainingConfig& config) {
                      config.optimizer.clip_grad = 0;
                      config.correct_partial_participation = correct;
                    },
                    few)
        .reports[0]
        .update.grad_norm;
  };
  const MockData data(few, small_vlm(), topology_of(many), 3);
  int participants = 0;
  for (int replica = 0; replica < 4; ++replica)
    participants += !data.media("images", 2 * replica).empty() || !data.media("images", 2 * replica + 1).empty();
  ASSERT_TRUE(participants > 0 && participants < 4) << participants;
  const double exact = norm(one, false);
  EXPECT_NEAR(norm(many, false), exact, 1e-10 * exact);
  EXPECT_NEAR(norm(many, true), exact * 4 / participants, 1e-10 * exact);
  EXPECT_NEAR(norm(one, true), exact, 1e-10 * exact);
}

TEST(Training, ALossThatIsNotANumberSkipsTheStepEverywhere) {
  const Layout layout = {.encoder = {.dp = 2}, .language = {.tp = 2, .dp = 2}, .sp = true};
  const auto none = [](TrainingConfig&) {};
  MockDataConfig all_images = mixed_data();
  all_images.media[0].share = 1;
  const Story flawed = story_of(layout, 2, none, all_images, {kGlobalBatch, kGlobalBatch});
  EXPECT_TRUE(flawed.reports[0].update.stepped);
  EXPECT_FALSE(flawed.reports[1].update.stepped);
  EXPECT_TRUE(std::isnan(flawed.reports[1].loss));
  const Story good = story_of(layout, 1, none, all_images);
  for (const auto& [name, weight] : good.weights) EXPECT_TRUE(at::equal(weight, flawed.weights.at(name))) << name;
  const Story later = story_of(layout, 3, none, all_images, {kGlobalBatch, kGlobalBatch});
  EXPECT_TRUE(later.reports[2].update.stepped);
  EXPECT_EQ(later.reports[2].lr, later.reports[1].lr);
}

TEST(Training, LossScaleChangesNothingButOverflow) {
  const Layout layout = {.language = {.dp = 2}, .dtype = at::kFloat};
  const Story plain = story_of(layout, 3, [](TrainingConfig&) {});
  const Story scaled = story_of(layout, 3, [](TrainingConfig& config) { config.loss_scale.initial = 1024; });
  for (int step = 0; step < 3; ++step)
    EXPECT_NEAR(scaled.reports[step].loss, plain.reports[step].loss, 1e-5 * plain.reports[step].loss) << step;
  const Story dynamic = story_of(layout, 4, [](TrainingConfig& config) {
    config.loss_scale = {.dynamic = true, .initial = 0x1p126, .backoff = 0x1p-60, .hysteresis = 2};
  });
  std::vector<double> scales;
  std::vector<bool> stepped;
  for (const TrainingReport& report : dynamic.reports) {
    scales.push_back(report.loss_scale);
    stepped.push_back(report.update.stepped);
  }
  EXPECT_EQ(scales, (std::vector<double>{0x1p126, 0x1p126, 0x1p66, 0x1p66}));
  EXPECT_EQ(stepped, (std::vector<bool>{false, false, true, true}));
}

// A frozen part stays as it was and the rest trains alike in every layout.
TEST(Training, EveryCombinationOfFrozenPartsEqualsOneProcess) {
  for (const std::vector<std::string>& frozen : std::vector<std::vector<std::string>>{
           {"images.encoder"}, {"images.projector"}, {"language"}, {"images.encoder", "language"}}) {
    SCOPED_TRACE(frozen.front());
    const Trained expected = train({.colocated = true, .micro_batch = kGlobalBatch, .frozen = frozen});
    expect_same(train({.encoder = {.tp = 2, .pp = 2}, .language = {.tp = 2, .pp = 2}, .sp = true, .frozen = frozen}),
                expected, 1e-10, 1e-8);
    expect_same(train({.encoder = {.dp = 2},
                       .language = {.tp = 2},
                       .colocated = true,
                       .recompute = true,
                       .micro_batch = 2,
                       .frozen = frozen}),
                expected, 1e-10, 1e-8);
  }
}

// Over Gloo; the losses of every step say that nothing went wrong before.
TEST(Training, EqualsOneProcessAsProcesses) {
  for (const Layout& layout : {Layout{}, Layout{.language = {.dp = 2}, .overlap = true, .gather_overlap = true},
                               Layout{.language = {.tp = 2}, .sp = true}, Layout{.language = {.cp = 2}},
                               Layout{.encoder = {.dp = 2}, .language = {.dp = 2, .ep = 2}},
                               Layout{.encoder = {.tp = 2}, .language = {.pp = 2}},
                               Layout{.encoder = {.dp = 2}, .language = {.tp = 2}, .colocated = true, .micro_batch = 2},
                               Layout{.encoder = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 4}, .sp = true}}) {
    const Topology topology = topology_of(layout);
    testing::on_processes(topology.world_size(), [&](World& world) {
      const Trained got = train_on(world, layout, topology);
      if (world.rank() != 0) return;
      for (std::size_t i = 0; i < got.losses.size(); ++i)
        EXPECT_NEAR(got.losses[i], alone().losses[i], 1e-10 * alone().losses[i]) << "step " << i;
    });
  }
}

TEST(Training, RepeatsBitForBit) {
  const Layout layout = {
      .encoder = {.dp = 2}, .language = {.tp = 2, .dp = 2, .ep = 2}, .sp = true, .dtype = at::kFloat};
  const Trained first = train(layout), again = train(layout);
  EXPECT_EQ(first.losses, again.losses);
  for (const auto& [name, weight] : first.weights) EXPECT_TRUE(at::equal(weight, again.weights.at(name))) << name;
}

TEST(Training, EqualsOneProcessInSinglePrecision) {
  const Trained expected = train({.colocated = true, .micro_batch = kGlobalBatch, .dtype = at::kFloat});
  for (Layout layout : {Layout{.language = {.tp = 2}, .sp = true}, Layout{.language = {.cp = 2}},
                        Layout{.language = {.dp = 2, .ep = 2}}, Layout{.language = {.pp = 2}},
                        Layout{.encoder = {.dp = 2}, .language = {.dp = 2}}, Layout{.encoder = {.tp = 2}}}) {
    layout.dtype = at::kFloat;
    const Trained got = train(layout);
    for (std::size_t i = 0; i < got.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << i;
  }
}

}  // namespace
}  // namespace braid
