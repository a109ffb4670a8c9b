// Training in every layout equals the formula on whole tensors: ranks are threads, each with its share of the loss.
#include "optim/module_optimizer.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "optim/toy_problem.h"
#include "support/layout.h"
#include "support/relative_error.h"

namespace braid {
namespace {

using testing::Layout;
using testing::relative_error;
using testing::Tensors;
using testing::ToyLoss;
using testing::Trained;

constexpr int kSteps = 5;
constexpr double kLr = 0.05, kWeightDecay = 0.1;

Parameters make_parameters(const Layout& layout, const Module& module, int global_rank, at::ScalarType dtype,
                           const at::Device& device = at::kCPU) {
  Parameters parameters(testing::toy_specs(layout.pp - 1), module.dense.coord(global_rank, "pp"),
                        shard_coordinates(module, global_rank), dtype, device);
  parameters.initialize(11);
  return parameters;
}

void backward_all(const ToyLoss& loss, const Parameters& parameters, const Module& module, int global_rank, int step,
                  ModuleOptimizer& optimizer, const OptimizerConfig& config) {
  const int stage = module.dense.coord(global_rank, "pp");
  for (int microbatch = 0; microbatch < testing::kMicrobatches; ++microbatch) {
    if (config.overlap_grad_reduce && microbatch + 1 == testing::kMicrobatches) optimizer.announce_gradients(stage);
    loss(parameters, module, global_rank, step, microbatch).backward();
  }
  optimizer.start_gradients(stage);
  optimizer.finish_gradients(stage);
}

// The optimizer state of all ranks, assembled. Ranks that hold the same state agree to the bit.
class Assembly {
 public:
  explicit Assembly(const std::vector<ParamSpec>& specs) {
    for (const ParamSpec& spec : specs)
      if (spec.trainable)
        for (Tensors* all : {&trained.main, &trained.exp_avg, &trained.exp_avg_sq, &values})
          (*all)[spec.name] = at::full(spec.shape, kNothing, at::kDouble);
  }

  void add(const Parameters& parameters, const ModuleOptimizer& optimizer, const std::vector<StepReport>& reports) {
    for (const auto& [spec, value, gradient, fp8, arrival] : parameters.entries())
      if (spec.trainable) merge(values, spec, value.detach(), parameters.coordinates());
    for (const OptimizerState& state : optimizer.state()) {
      const auto put = [&](Tensors& all, const at::Tensor& part) {
        const at::Tensor local = at::full(local_shape(state.spec, parameters.coordinates()), kNothing, at::kDouble);
        local.view(-1).slice(0, state.range.begin, state.range.end).copy_(part);
        merge(all, state.spec, local, parameters.coordinates());
      };
      put(trained.main, state.main);
      put(trained.exp_avg, state.exp_avg);
      put(trained.exp_avg_sq, state.exp_avg_sq);
    }
    trained.reports = reports;
  }

  Trained trained;
  Tensors values;  // of the model

 private:
  static constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

  static void merge(Tensors& all, const ParamSpec& spec, const at::Tensor& local, const ShardCoordinates& place) {
    EXPECT_TRUE(testing::merge_shard(all.at(spec.name), local.to(at::kDouble), spec, place))
        << "ranks differ in " << spec.name;
  }
};

StepReport update(ModuleOptimizer& optimizer, const Group& world, const StepOptions& options) {
  const std::vector<ModuleUpdate> own = {{0, &optimizer}};
  return step_all(own, testing::gradient_totals_of(own, 1, world), options);
}

std::vector<StepReport> run_steps(const Parameters& parameters, ModuleOptimizer& optimizer, const Module& module,
                                  const Group& world, const OptimizerConfig& config, const ToyLoss& loss) {
  std::vector<StepReport> reports;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.begin_step();
    optimizer.finish_parameters();
    backward_all(loss, parameters, module, world.rank(), step, optimizer, config);
    for (const auto& entry : parameters.entries()) EXPECT_FALSE(entry.value.grad().defined()) << entry.spec.name;
    reports.push_back(
        update(optimizer, world,
               {.lr = kLr, .weight_decay = kWeightDecay, .clip_grad = config.clip_grad, .factors = {testing::kScale}}));
  }
  optimizer.finish_parameters();
  EXPECT_EQ(optimizer.steps(), kSteps);
  return reports;
}

Assembly train(const Layout& layout, const OptimizerConfig& config, at::ScalarType dtype, const ToyLoss& loss) {
  Assembly assembly(testing::toy_specs(layout.pp - 1));
  std::mutex one_rank_at_a_time;
  const Topology topology = testing::topology_of(layout);
  testing::on_threads(layout.ranks(), [&](World& world) {
    const Groups groups(world, topology);
    const Parameters parameters = make_parameters(layout, topology.language(), world.rank(), dtype);
    ModuleOptimizer optimizer(parameters, groups, "language", config);
    const auto reports = run_steps(parameters, optimizer, topology.language(), groups.world(), config, loss);
    const std::lock_guard lock(one_rank_at_a_time);
    assembly.add(parameters, optimizer, reports);
  });
  return assembly;
}

Trained expected(const OptimizerConfig& config, at::ScalarType dtype, const ToyLoss& loss) {
  const std::vector<ParamSpec> specs = testing::toy_specs(0);
  const Topology topology = testing::topology_of({});
  Tensors start;
  const Parameters parameters = make_parameters({}, topology.language(), 0, dtype);
  for (const auto& entry : parameters.entries())
    if (entry.spec.trainable) start[entry.spec.name] = entry.value.detach().to(at::kDouble);
  return testing::train_naively(specs, start, loss, config, kSteps, kLr, kWeightDecay);
}

void expect_same(const Trained& got, const Trained& want, double tolerance) {
  for (const auto& [name, value] : want.main) {
    EXPECT_LE(relative_error(got.main.at(name), value), tolerance) << name;
    if (name == "unused") continue;
    EXPECT_LE(relative_error(got.exp_avg.at(name), want.exp_avg.at(name)), tolerance) << name;
    EXPECT_LE(relative_error(got.exp_avg_sq.at(name), want.exp_avg_sq.at(name)), tolerance) << name;
  }
  ASSERT_EQ(got.reports.size(), want.reports.size());
  for (std::size_t i = 0; i < want.reports.size(); ++i) {
    EXPECT_TRUE(got.reports[i].stepped);
    EXPECT_NEAR(got.reports[i].grad_norm, want.reports[i].grad_norm, tolerance * want.reports[i].grad_norm);
    EXPECT_EQ(got.reports[i].zeros, want.reports[i].zeros);
  }
}

class ModuleOptimizers : public ::testing::TestWithParam<Layout> {};

TEST_P(ModuleOptimizers, EqualTheFormula) {
  for (const bool zero : {true, false})
    for (const bool overlap : {true, false})
      for (const int bucket_size : {0, 60}) {
        SCOPED_TRACE(fmt::format("zero {} overlap {} bucket_size {}", zero, overlap, bucket_size));
        const OptimizerConfig config = {
            .clip_grad = zero ? 3 : 1e6, .zero = zero, .overlap_grad_reduce = overlap, .bucket_size = bucket_size};
        const ToyLoss loss = {.quadratic = true};
        const Assembly got = train(GetParam(), config, at::kDouble, loss);
        expect_same(got.trained, expected(config, at::kDouble, loss), 1e-12);
        for (const auto& [name, value] : got.values) EXPECT_TRUE(value.equal(got.trained.main.at(name))) << name;
      }
}

INSTANTIATE_TEST_SUITE_P(Threads, ModuleOptimizers,
                         ::testing::Values(Layout{}, Layout{.tp = 2}, Layout{.cp = 2}, Layout{.dp = 2}, Layout{.dp = 4},
                                           Layout{.tp = 2, .dp = 2}, Layout{.tp = 2, .cp = 2}, Layout{.ep = 2, .dp = 2},
                                           Layout{.tp = 2, .ep = 2}, Layout{.tp = 2, .expt_tp = 2},
                                           Layout{.ep = 2, .expt_tp = 2, .dp = 4}, Layout{.pp = 2, .dp = 2},
                                           Layout{.tp = 2, .ep = 4, .pp = 2, .dp = 2}),
                         ::testing::PrintToStringParamName());

// Each update rounds to 2^-24 of the value; five of them and the moments stay within a few of those.
TEST(ModuleOptimizers, KeepAFloatMainCopyOfLowPrecisionParameters) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const Layout& layout : {Layout{}, Layout{.dp = 4}, Layout{.tp = 2, .dp = 2}, Layout{.ep = 2, .dp = 2}})
      for (const bool zero : {true, false}) {
        SCOPED_TRACE(::testing::Message() << layout << " zero " << zero << " " << toString(dtype));
        const OptimizerConfig config = {.clip_grad = 3, .zero = zero, .bucket_size = 60};
        const Assembly got = train(layout, config, dtype, {});
        expect_same(got.trained, expected(config, dtype, {}), 2e-6);
        for (const auto& [name, value] : got.values)
          EXPECT_TRUE(value.equal(got.trained.main.at(name).to(dtype).to(at::kDouble))) << name;
      }
}

TEST(ModuleOptimizers, WorkBetweenProcesses) {
  const Layout layout = {.tp = 2, .ep = 2, .dp = 2};
  testing::on_processes(layout.ranks(), [&](World& world) {
    const Topology topology = testing::topology_of(layout);
    const Groups groups(world, topology);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const OptimizerConfig config = {
          .clip_grad = 3, .overlap_grad_reduce = true, .overlap_param_gather = true, .bucket_size = 60};
      const Parameters parameters = make_parameters(layout, topology.language(), world.rank(), dtype, world.device());
      ModuleOptimizer optimizer(parameters, groups, "language", config);
      run_steps(parameters, optimizer, topology.language(), groups.world(), config, {});
      const Trained want = expected(config, dtype, {});
      for (const auto& [spec, value, gradient, fp8, arrival] : parameters.entries()) {
        if (!spec.trainable) continue;
        const at::Tensor shard = testing::shard_of(want.main.at(spec.name), spec, parameters.coordinates());
        EXPECT_LE(relative_error(value, shard), dtype == at::kFloat ? 2e-6 : 1.0 / 256) << spec.name;
      }
    }
  });
}

void expect_equal_bits(const Assembly& got, const Assembly& want) {
  for (const auto& [name, value] : want.values) EXPECT_TRUE(value.equal(got.values.at(name))) << name;
  for (const auto& [name, main] : want.trained.main) EXPECT_TRUE(main.equal(got.trained.main.at(name))) << name;
}

TEST(ModuleOptimizers, OverlapChangesNoBit) {
  for (const Layout& layout : {Layout{}, Layout{.dp = 4}, Layout{.tp = 2, .ep = 2, .dp = 2}})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      OptimizerConfig config = {.overlap_grad_reduce = false, .bucket_size = 60};
      const Assembly without = train(layout, config, dtype, {});
      config.overlap_grad_reduce = true;
      expect_equal_bits(train(layout, config, dtype, {}), without);
      config.overlap_param_gather = true;
      expect_equal_bits(train(layout, config, dtype, {}), without);
    }
}

// step() leaves the model's parameters alone; the gradients of the next step may be cleared while they are gathered.
TEST(ModuleOptimizers, ParametersArriveWhenTheyAreAskedFor) {
  const Layout layout = {.dp = 2};
  const Topology topology = testing::topology_of(layout);
  testing::on_threads(layout.ranks(), [&](World& world) {
    const Groups groups(world, topology);
    const auto values = [](const Parameters& parameters) { return parameters.get("embedding").detach().clone(); };
    std::vector<at::Tensor> results;
    for (const bool by_stage : {false, true}) {
      const OptimizerConfig config = {.overlap_grad_reduce = true, .overlap_param_gather = true, .bucket_size = 60};
      const Parameters parameters = make_parameters(layout, topology.language(), world.rank(), at::kBFloat16);
      const at::Tensor old = values(parameters);
      ModuleOptimizer optimizer(parameters, groups, "language", config);
      backward_all({}, parameters, topology.language(), world.rank(), 0, optimizer, config);
      update(optimizer, groups.world(), {.lr = kLr, .factors = {1}});
      EXPECT_TRUE(values(parameters).equal(old));
      if (by_stage) optimizer.start_parameters(0);
      optimizer.begin_step();
      by_stage ? optimizer.finish_parameters(0) : optimizer.finish_parameters();
      results.push_back(values(parameters));
      EXPECT_FALSE(results.back().equal(old));
      optimizer.finish_parameters();
      EXPECT_TRUE(values(parameters).equal(results.back()));
    }
    EXPECT_TRUE(results[0].equal(results[1]));
  });
}

// Dense and expert buckets alternate as their first parameters do.
TEST(ModuleOptimizers, GatherInTheOrderOfDeclaration) {
  const Layout layout = {.dp = 2};
  const Topology topology = testing::topology_of(layout);
  testing::on_threads(layout.ranks(), [&](World& world) {
    const Groups groups(world, topology);
    const Parameters parameters = make_parameters(layout, topology.language(), world.rank(), at::kFloat);
    const ModuleOptimizer optimizer(parameters, groups, "language", {.bucket_size = 60});
    std::vector<std::string> first_names;
    for (const ModuleOptimizer::Gather& gather : optimizer.gathers()) {
      const GradientBuffer& gradients = gather.part->gradients();
      first_names.push_back(
          gradients.entry(gradients.layout().slots[gradients.layout().buckets[gather.bucket].last_slot]).spec.name);
    }
    EXPECT_EQ(first_names, (std::vector<std::string>{"unused", "embedding", "fused.weight", "fused.bias", "experts.up",
                                                     "out.weight"}));
  });
}

// Each bucket arrives when one of its parameters is awaited. In one queue, values are NaN until then.
TEST(ModuleOptimizers, AwaitOneBucketAtATime) {
  const Layout layout = {.dp = 2};
  const Topology topology = testing::topology_of(layout);
  const auto body = [&](World& world) {
    const Groups groups(world, topology);
    const OptimizerConfig config = {.overlap_grad_reduce = true, .overlap_param_gather = true, .bucket_size = 1};
    const Parameters parameters = make_parameters(layout, topology.language(), world.rank(), at::kFloat);
    const auto arrived = [&](const std::string& name) { return !parameters.get(name).isnan().any().item<bool>(); };
    ModuleOptimizer optimizer(parameters, groups, "language", config);
    backward_all({}, parameters, topology.language(), world.rank(), 0, optimizer, config);
    update(optimizer, groups.world(), {.lr = kLr, .factors = {1}});
    EXPECT_THAT([&] { parameters.await("embedding"); },
                ::testing::ThrowsMessage<std::logic_error>(
                    ::testing::HasSubstr("embedding is read after its update, before its gather has started")));
    optimizer.start_parameters(0);
    std::vector<std::string> waiting;
    for (const auto& entry : parameters.entries())
      if (entry.spec.trainable) waiting.push_back(entry.spec.name);
    EXPECT_EQ(waiting.size(), 10u);
    for (auto next = waiting.begin(); next != waiting.end(); ++next) {
      for (auto name = waiting.begin(); name != waiting.end(); ++name) EXPECT_EQ(arrived(*name), name < next) << *name;
      parameters.await(*next);
    }
    optimizer.finish_parameters(0);
    for (const std::string& name : waiting) EXPECT_TRUE(arrived(name)) << name;
  };
  testing::on_threads(layout.ranks(), body, ThreadSemantics::OneQueue);
}

// What tp or expt_tp does not split is summed over it in one operation per stage, however many parameters there are.
TEST(ModuleOptimizers, SumOverReplicasInOneOperation) {
  const Layout layout = {.tp = 2, .expt_tp = 2};
  const Topology topology = testing::topology_of(layout);
  testing::on_threads(layout.ranks(), [&](World& world) {
    const Groups groups(world, topology);
    const OptimizerConfig config = {.bucket_size = 1};
    const Parameters parameters = make_parameters(layout, topology.language(), world.rank(), at::kFloat);
    ModuleOptimizer optimizer(parameters, groups, "language", config);
    const auto sums_over = [&](const char* group) {
      const TrafficTable traffic = world.progress().traffic();
      const auto found = traffic.find({std::string("language.") + group, "all_reduce"});
      return found == traffic.end() ? 0 : found->second.operations;
    };
    for (int step = 1; step <= 2; ++step) {
      optimizer.begin_step();
      backward_all({}, parameters, topology.language(), world.rank(), 0, optimizer, config);
      EXPECT_EQ(sums_over("tp"), step);
      EXPECT_EQ(sums_over("expt_tp"), step);
    }
  });
}

// If a reader does not call finish_parameters(), the optimizer itself still reads correct values.
TEST(ModuleOptimizers, TakeAndPublishCompleteWhatIsUnderWay) {
  const Layout layout = {.dp = 2};
  const Topology topology = testing::topology_of(layout);
  testing::on_threads(layout.ranks(), [&](World& world) {
    const Groups groups(world, topology);
    const Parameters parameters = make_parameters(layout, topology.language(), world.rank(), at::kFloat);
    const OptimizerConfig config = {.overlap_grad_reduce = true, .overlap_param_gather = true};
    ModuleOptimizer optimizer(parameters, groups, "language", config);
    const auto step = [&] {
      optimizer.begin_step();
      backward_all({}, parameters, topology.language(), world.rank(), 0, optimizer, config);
      update(optimizer, groups.world(), {.lr = kLr, .factors = {1}});
    };
    const auto main = [&] { return optimizer.state().at(0).main.clone(); };
    step();
    const at::Tensor updated = main();
    optimizer.take_parameters();
    EXPECT_TRUE(main().equal(updated));
    step();
    optimizer.state().at(0).main.fill_(7);
    optimizer.publish_parameters();
    optimizer.take_parameters();
    EXPECT_TRUE(main().eq(7).all().item<bool>());
  });
}

TEST(ModuleOptimizers, BucketCountDividesTheWholeModule) {
  const Layout layout = {.ep = 2, .dp = 4};
  const Topology topology = testing::topology_of(layout);
  testing::on_threads(layout.ranks(), [&](World& world) {
    const Groups groups(world, topology);
    const Parameters parameters = make_parameters(layout, topology.language(), world.rank(), at::kFloat);
    int elements = 0;  // of frozen and expert parameters too
    for (const auto& entry : parameters.entries()) elements += static_cast<int>(entry.value.numel());
    const auto owned_with = [&](const OptimizerConfig& config) {
      std::vector<std::tuple<std::string, std::int64_t, std::int64_t>> owned;
      for (const OptimizerState& state : ModuleOptimizer(parameters, groups, "language", config).state())
        owned.emplace_back(state.spec.name, state.range.begin, state.range.end);
      return owned;
    };
    EXPECT_EQ(owned_with({.bucket_count = 3}), owned_with({.bucket_size = elements / 3}));
    EXPECT_NE(owned_with({.bucket_count = 3}), owned_with({.bucket_count = 1}));
  });
}

TEST(ModuleOptimizers, DecayMatricesThatAreNotBiases) {
  EXPECT_TRUE(has_weight_decay({.name = "a.weight", .shape = {2, 3}}));
  EXPECT_TRUE(has_weight_decay({.name = "conv.weight", .shape = {2, 1, 3}}));
  EXPECT_FALSE(has_weight_decay({.name = "norm.weight", .shape = {2}}));
  EXPECT_FALSE(has_weight_decay({.name = "a.bias", .shape = {2, 3}}));
  EXPECT_TRUE(has_weight_decay({.name = "experts", .shape = {4, 2, 3}, .expert = true}));
  EXPECT_FALSE(has_weight_decay({.name = "expert_norms", .shape = {4, 2}, .expert = true}));
}

TEST(ModuleOptimizers, ContinueFromTheirState) {
  const Layout layout = {.tp = 2, .dp = 2};
  const Topology topology = testing::topology_of(layout);
  testing::on_threads(layout.ranks(), [&](World& world) {
    const Groups groups(world, topology);
    const Module& module = topology.language();
    const ToyLoss loss;
    const auto step = [&](const Parameters& parameters, ModuleOptimizer& optimizer, int number) {
      optimizer.begin_step();
      backward_all(loss, parameters, module, world.rank(), number, optimizer, {});
      update(optimizer, groups.world(), {.lr = kLr, .weight_decay = kWeightDecay, .factors = {1}});
      optimizer.finish_parameters();
    };
    const Parameters first = make_parameters(layout, module, world.rank(), at::kBFloat16);
    ModuleOptimizer saved(first, groups, "language", {});
    step(first, saved, 0);

    const Parameters second = make_parameters(layout, module, world.rank(), at::kBFloat16);
    ModuleOptimizer loaded(second, groups, "language", {});
    const std::vector<OptimizerState> from = saved.state(), to = loaded.state();
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      to[i].main.copy_(from[i].main);
      to[i].exp_avg.copy_(from[i].exp_avg);
      to[i].exp_avg_sq.copy_(from[i].exp_avg_sq);
    }
    loaded.set_steps(saved.steps());
    loaded.publish_parameters();
    for (const auto& [spec, value, gradient, fp8, arrival] : first.entries())
      EXPECT_TRUE(value.equal(second.get(spec.name))) << spec.name;
    step(first, saved, 1);
    step(second, loaded, 1);
    for (const auto& [spec, value, gradient, fp8, arrival] : first.entries())
      EXPECT_TRUE(value.equal(second.get(spec.name))) << spec.name;
  });
}

}  // namespace
}  // namespace braid
