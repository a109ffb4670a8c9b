// One rank's optimizer equals the formula in double, on the device under test.
#include "optim/sharded_adam.h"
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include "comm/progress.h"
#include "ops/gradients.h"

namespace braid {
namespace {

using testing::expect_close;
using testing::random_tensor;

const OptimizerConfig kConfig = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .zero = false, .bucket_size = 100'000};
constexpr double kLr = 0.01, kWeightDecay = 0.1, kFactor = 0.37;

// Sizes below, at and above those that kernels work on together, and several buckets.
std::vector<Parameters::Entry> make_entries(at::ScalarType dtype) {
  std::vector<Parameters::Entry> entries;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{1}, {3, 5}, {64}, {7, 4681}, {128, 128}, {50'001}}) {
    Parameters::Entry entry;
    entry.spec = {.name = fmt::format("p{}", entries.size()), .shape = shape};
    entry.value = random_tensor(shape, entries.size()).to(dtype).requires_grad_();
    entries.push_back(std::move(entry));
  }
  return entries;
}

// An optimizer of those parameters without other ranks.
struct Optimizer {
  explicit Optimizer(at::ScalarType dtype) : entries(make_entries(dtype)) {}

  void set_gradients(int step) {
    at::NoGradGuard guard;
    for (std::size_t i = 0; i < entries.size(); ++i)
      entries[i].gradient->value.copy_(random_tensor(entries[i].spec.shape, 100 * step + i));
  }

  std::vector<Parameters::Entry> entries;
  Progress progress;
  Group alone{"alone", testing::test_device(), progress};
  ShardedAdam adam{entries, alone, alone, kConfig, 0};
};

// The state of one range after a step by the formula, in double.
struct Moved {
  Moved(const OptimizerState& state, const at::Tensor& gradient, int step) {
    const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
    const at::Tensor g = kFactor * wide(gradient);
    exp_avg = kConfig.beta1 * wide(state.exp_avg) + (1 - kConfig.beta1) * g;
    exp_avg_sq = kConfig.beta2 * wide(state.exp_avg_sq) + (1 - kConfig.beta2) * g * g;
    const at::Tensor m = exp_avg / (1 - std::pow(kConfig.beta1, step));
    const at::Tensor v = exp_avg_sq / (1 - std::pow(kConfig.beta2, step));
    const double decay = has_weight_decay(state.spec) ? kWeightDecay : 0;
    main = wide(state.main) - kLr * (m / (v.sqrt() + kConfig.eps) + decay * wide(state.main));
  }
  at::Tensor main, exp_avg, exp_avg_sq;
};

// The terms of a moment are rounded three times (the factor, the square, the share), their sum once, each by half an
// epsilon.
TEST(ShardedAdam, EveryStepRoundsLikeTheFormulaInFloat) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Optimizer optimizer(dtype);
    for (int step = 1; step <= 3; ++step) {
      optimizer.set_gradients(step);
      std::vector<Moved> expected;
      for (const OptimizerState& state : optimizer.adam.state()) {
        const std::size_t i = static_cast<std::size_t>(state.spec.name[1] - '0');
        expected.emplace_back(state, optimizer.entries[i].gradient->value.flatten(), step);
      }
      optimizer.adam.update(step, kLr, kWeightDecay, kFactor);
      optimizer.adam.finish_publishing();
      const double tolerance = 2 * testing::epsilon_of(at::kFloat);
      const std::vector<OptimizerState> got = optimizer.adam.state();
      for (std::size_t i = 0; i < got.size(); ++i) {
        expect_close(got[i].main, expected[i].main, tolerance, "main copy of " + got[i].spec.name);
        expect_close(got[i].exp_avg, expected[i].exp_avg, tolerance, "exp_avg of " + got[i].spec.name);
        expect_close(got[i].exp_avg_sq, expected[i].exp_avg_sq, tolerance, "exp_avg_sq of " + got[i].spec.name);
        const auto& entry = optimizer.entries[static_cast<std::size_t>(got[i].spec.name[1] - '0')];
        EXPECT_TRUE(entry.value.detach().flatten().equal(got[i].main.to(dtype))) << entry.spec.name;
      }
    }
  }
}

TEST(ShardedAdam, SumsSquaresInDouble) {
  Optimizer optimizer(at::kBFloat16);
  optimizer.set_gradients(1);
  optimizer.entries[0].gradient->value.fill_(1e30);  // its square overflows a float
  double expected = 0;
  for (const auto& entry : optimizer.entries)
    expected += entry.gradient->value.to(at::kDouble).square().sum().item<double>();
  const at::Tensor terms = optimizer.adam.norm_terms().cpu();
  EXPECT_NEAR(terms[0].item<double>(), expected, 1e-13 * expected);
  EXPECT_EQ(terms[1].item<double>(), 0);
  EXPECT_TRUE(optimizer.adam.norm_terms().cpu().equal(terms));
}

TEST(ShardedAdam, FindsAnyElementThatIsNotFinite) {
  Optimizer optimizer(at::kBFloat16);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (std::size_t i = 0; i < optimizer.entries.size(); ++i) {
      optimizer.set_gradients(1);
      optimizer.entries[i].gradient->value.flatten().slice(0, -1).fill_(bad);
      EXPECT_EQ(optimizer.adam.norm_terms()[1].item<double>(), 1) << "in the last element of p" << i;
    }
}

}  // namespace
}  // namespace braid
