// One norm and one decision over modules on different ranks.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include "comm/world.h"
#include "optim/module_optimizer.h"
#include "optim/toy_problem.h"
#include "plan/topology.h"
#include "support/ranks.h"

namespace braid {
namespace {

// Encoder on ranks 0-1 (dp), language on 2-3 (tp).
Topology two_modules() {
  TopologyConfig config;
  config.modules = {{.name = "vision", .kind = ModuleKind::Encoder, .dp = 2}, {.name = "language", .tp = 2}};
  return Topology(config, {.micro_batch = 2, .global_batch = 2});
}

Parameters one_matrix(const Module& module, int global_rank) {
  const ShardCoordinates place = {.tp = module.dense.coord(global_rank, "tp"), .tp_size = module.dense.size_of("tp")};
  Parameters parameters({{.name = "w.weight", .shape = {4, 6}, .tp_dim = 0, .init = {InitRule::Ones}}}, 0, place,
                        at::kFloat, at::kCPU);
  parameters.initialize(1);
  return parameters;
}

// A rank's module of one matrix, whose elements all have the same gradient.
struct OneMatrix {
  OneMatrix(const Topology& topology, const Groups& groups, int global_rank)
      : module(*topology.modules_of(global_rank).at(0)), parameters(one_matrix(module, global_rank)),
        optimizer(parameters, groups, module.name, {}) {}

  StepReport step(double gradient, const Groups& groups, double clip_grad) {
    optimizer.begin_step();
    parameters.get("w.weight").mul(gradient).sum().backward();
    optimizer.finish_gradients(0);
    const std::vector<ModuleUpdate> own = {{module.is_encoder ? 0 : 1, &optimizer}};
    const GradientTotals totals = testing::gradient_totals_of(own, 2, groups.world());
    const StepReport report = step_all(own, totals, {.lr = 0.1, .clip_grad = clip_grad, .factors = factors});
    optimizer.finish_parameters();
    return report;
  }

  const Module& module;
  Parameters parameters;
  ModuleOptimizer optimizer;
  std::vector<double> factors = {1, 1};
};

TEST(GlobalStep, TakesTheNormOverAllModules) {
  const Topology topology = two_modules();
  testing::on_threads(4, [&](World& world) {
    const Groups groups(world, topology);
    OneMatrix mine(topology, groups, world.rank());
    const StepReport report = mine.step(2, groups, 0);
    EXPECT_TRUE(report.stepped);
    // 24 elements of 2 + 2 in the encoder, 24 of 2 in the language model.
    EXPECT_DOUBLE_EQ(report.grad_norm, std::sqrt(24 * 16 + 24 * 4));
    EXPECT_EQ(report.zeros, 0);
    EXPECT_EQ(mine.step(0, groups, 0).zeros, 48);
    mine.factors = {0.5, 3};
    EXPECT_DOUBLE_EQ(mine.step(2, groups, 0).grad_norm, std::sqrt(24 * 4 + 24 * 36));
  });
}

TEST(GlobalStep, ClipsByThatNormEverywhere) {
  const Topology topology = two_modules();
  testing::on_threads(4, [&](World& world) {
    const Groups groups(world, topology);
    OneMatrix mine(topology, groups, world.rank());
    const StepReport report = mine.step(2, groups, 0.5);
    const double gradient = (mine.module.is_encoder ? 4 : 2) * 0.5 / (report.grad_norm + 1e-6);
    for (const OptimizerState& state : mine.optimizer.state())
      EXPECT_NEAR(state.exp_avg[0].item<double>(), 0.1 * gradient, 1e-7 * gradient);
  });
}

TEST(GlobalStep, LeavesSmallGradientsAlone) {
  EXPECT_EQ(clip_coefficient(0.5, 1), 1);
  EXPECT_EQ(clip_coefficient(100, 0), 1);
  EXPECT_DOUBLE_EQ(clip_coefficient(4, 1), 1 / 4.000001);
}

TEST(GlobalStep, NobodyStepsWhenOneGradientIsNotFinite) {
  const Topology topology = two_modules();
  testing::on_threads(4, [&](World& world) {
    const Groups groups(world, topology);
    OneMatrix mine(topology, groups, world.rank());
    for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
      for (int bad_rank = 0; bad_rank < 4; ++bad_rank) {
        EXPECT_FALSE(mine.step(world.rank() == bad_rank ? bad : 1, groups, 1).stepped);
        EXPECT_TRUE(mine.parameters.get("w.weight").eq(1).all().item<bool>());
        for (const OptimizerState& state : mine.optimizer.state()) EXPECT_TRUE(state.exp_avg.eq(0).all().item<bool>());
      }
    EXPECT_EQ(mine.optimizer.steps(), 0);
    EXPECT_TRUE(mine.step(1, groups, 1).stepped);
    EXPECT_NEAR(mine.parameters.get("w.weight")[0][0].item<double>(), 0.9, 1e-6) << "Adam's first step is lr";
  });
}

TEST(GlobalStep, IsJoinedByRanksThatTrainNothing) {
  testing::on_threads(2, [&](World& world) {
    const GradientTotals totals = testing::gradient_totals_of({}, 1, world.everyone());
    const StepReport report = step_all({}, totals, {.lr = 0.1, .factors = {1}});
    EXPECT_TRUE(report.stepped);
    EXPECT_EQ(report.grad_norm, 0);
  });
}

}  // namespace
}  // namespace braid
