// Ten steps of a small vision-language model, with weight decay, clipping and mixed text and image samples, in every
// layout: losses and final weights equal those of one process. In float64, where a wrong factor cannot hide.
#include "train/training.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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
  bool zero = true, overlap = false;
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

// This rank's part of a run: losses on every rank, weights only what it holds.
Trained train_on(World& world, const Layout& layout, const Topology& topology) {
  const Provider provider = small_vlm();
  const MockData data({.sequence_length = 32, .min_length = 20, .media = {{.name = "images", .max_size = 6}}}, provider,
                      topology, 3);
  StepClock clock;
  TrainingConfig config;
  config.model = {
      .dtype = layout.dtype, .sequence_parallel = layout.sp, .recompute = layout.recompute, .frozen = layout.frozen};
  config.optimizer.zero = layout.zero;
  config.optimizer.overlap_grad_reduce = layout.overlap;
  config.optimizer.clip_grad = 0.5;
  config.schedule = resolve({.lr = 1e-2, .min_lr = 1e-3, .decay_style = "cosine", .weight_decay = 0.1},
                            {.iterations = kSteps, .samples = std::nullopt, .global_batch = kGlobalBatch});
  config.micro_batch = layout.micro_batch;
  config.global_batch = kGlobalBatch;
  const Groups groups(world, topology);
  Training training(provider, topology, groups, world, config);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const TrainingReport report = training.step(data, std::int64_t{step} * kGlobalBatch, clock);
    EXPECT_TRUE(report.update.stepped);
    trained.losses.push_back(report.loss);
    trained.norms.push_back(report.update.grad_norm);
  }
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
        Layout{.language = {.dp = 2}, .overlap = true}, Layout{.encoder = {.dp = 2}, .language = {.dp = 2}},
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
        Layout{.encoder = {.dp = 2}, .language = {.dp = 2}, .colocated = true, .overlap = false, .frozen = {}}));

// What does not train stays as it was, and everything else trains alike in every layout.
TEST(Training, FrozenEncoderStaysAndTheRestEqualsOneProcess) {
  const Trained expected = train({.colocated = true, .micro_batch = kGlobalBatch, .frozen = kImages});
  expect_same(train({.encoder = {.dp = 2}, .language = {.tp = 2, .dp = 2}, .sp = true, .frozen = kImages}), expected,
              1e-10, 1e-8);
  EXPECT_NE(expected.losses.back(), alone().losses.back());
}

// Over Gloo; the losses of every step say that nothing went wrong before.
TEST(Training, EqualsOneProcessAsProcesses) {
  for (const Layout& layout :
       {Layout{}, Layout{.language = {.dp = 2}, .overlap = true}, Layout{.language = {.tp = 2}, .sp = true},
        Layout{.language = {.cp = 2}}, Layout{.encoder = {.dp = 2}, .language = {.dp = 2, .ep = 2}},
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
