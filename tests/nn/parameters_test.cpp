// A rank's shards: slices of the whole parameter, drawn from the distributions of their rules.
#include "nn/parameters.h"
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <stdexcept>
#include "base/philox.h"
#include "ops/gradients.h"

namespace braid {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const InitRule kNormal = {.kind = InitRule::Normal, .scale = 0.02};

const std::vector<ParamSpec> kSpecs = {
    {.name = "whole", .shape = {3, 5}, .init = kNormal},
    {.name = "vector", .shape = {8}, .tp_dim = 0, .init = kNormal},
    {.name = "column", .shape = {8, 3}, .tp_dim = 0, .init = kNormal},
    {.name = "row", .shape = {3, 8}, .tp_dim = 1, .init = kNormal},
    {.name = "fused", .shape = {16, 3}, .tp_dim = 0, .tp_blocks = {8, 4, 4}, .init = kNormal},
    {.name = "fused_vector", .shape = {16}, .tp_dim = 0, .tp_blocks = {8, 4, 4}, .init = kNormal},
    {.name = "conv", .shape = {8, 1, 4}, .tp_dim = 0, .init = kNormal},
    {.name = "expert_fc1", .shape = {4, 8, 3}, .tp_dim = 1, .expert = true, .init = kNormal},
    {.name = "expert_fc2", .shape = {4, 3, 8}, .tp_dim = 2, .expert = true, .init = kNormal},
    {.name = "buffer", .shape = {6}, .init = kNormal, .trainable = false},
};

Parameters initialized(const std::vector<ParamSpec>& specs, const ShardCoordinates& place = {},
                       at::ScalarType dtype = at::kDouble, std::uint64_t seed = 5,
                       const at::Device& device = at::Device("cpu")) {
  Parameters parameters(specs, /*stage=*/0, place, dtype, device);
  parameters.initialize(seed);
  return parameters;
}

// The shard, cut from the whole by plain tensor operations.
at::Tensor cut(const at::Tensor& whole, const ParamSpec& spec, const ShardCoordinates& place) {
  at::Tensor part = whole;
  if (spec.expert) part = part.chunk(place.ep_size, 0)[static_cast<std::size_t>(place.ep)];
  if (spec.tp_dim < 0) return part;
  const int index = spec.expert ? place.expt_tp : place.tp, parts = spec.expert ? place.expt_tp_size : place.tp_size;
  const auto blocks = spec.tp_blocks.empty() ? std::vector<std::int64_t>{part.size(spec.tp_dim)} : spec.tp_blocks;
  Tensors pieces;
  for (const at::Tensor& block : part.split_with_sizes(blocks, spec.tp_dim))
    pieces.push_back(block.chunk(parts, spec.tp_dim)[static_cast<std::size_t>(index)]);
  return at::cat(pieces, spec.tp_dim);
}

TEST(Parameters, AShardIsThatPartOfTheWhole) {
  const Parameters whole = initialized(kSpecs);
  for (int tp = 0; tp < 4; ++tp)
    for (int ep = 0; ep < 2; ++ep)
      for (int expt_tp = 0; expt_tp < 2; ++expt_tp) {
        const ShardCoordinates place = {tp, 4, ep, 2, expt_tp, 2};
        const Parameters shards = initialized(kSpecs, place);
        for (const ParamSpec& spec : kSpecs)
          EXPECT_TRUE(at::equal(shards.get(spec.name), cut(whole.get(spec.name), spec, place)))
              << spec.name << " at tp " << tp << " ep " << ep << " expt_tp " << expt_tp;
      }
}

// An error while several threads draw is thrown and does not end the process.
TEST(Parameters, AnErrorInDrawingIsThrown) {
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  const InitRule unknown = {.kind = static_cast<InitRule::Kind>(7)};
  EXPECT_THAT([&] { initialized({{.name = "large", .shape = {1 << 16}, .init = unknown}}); },
              ThrowsMessage<std::exception>(HasSubstr("rule 7 has no values to draw")));
  at::set_num_threads(threads);
}

// A vector long enough for several threads, and a matrix too large to be drawn at once.
TEST(Parameters, ElementsAreThoseOfTheirFieldForAnyNumberOfThreads) {
  const std::vector<ParamSpec> specs = {{.name = "x", .shape = {40'001}, .init = kNormal},
                                        {.name = "y", .shape = {1401, 3001}, .init = kNormal}};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Parameters by_one = initialized(specs, {}, at::kDouble, 1234);
  at::set_num_threads(3);
  const Parameters by_three = initialized(specs, {}, at::kDouble, 1234);
  at::set_num_threads(threads);
  for (const ParamSpec& spec : specs) {
    EXPECT_TRUE(at::equal(by_three.get(spec.name), by_one.get(spec.name))) << spec.name;
    const RandomField field(1234, spec.name);
    const at::Tensor values = by_one.get(spec.name).detach().flatten();
    const std::int64_t last = values.numel() - 1;
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, std::int64_t{3002}, last / 2, last})
      EXPECT_EQ(values[i].item<double>(), 0.02 * field.normal(static_cast<std::uint64_t>(i))) << spec.name << " " << i;
  }
}

TEST(Parameters, ElementsAreIndependentOfEachOther) {
  const Parameters one = initialized(kSpecs), again = initialized(kSpecs),
                   other = initialized(kSpecs, {}, at::kDouble, /*seed=*/6);
  Tensors values;
  for (const ParamSpec& spec : kSpecs) {
    EXPECT_TRUE(at::equal(one.get(spec.name), again.get(spec.name))) << spec.name;
    values.push_back(one.get(spec.name).detach().flatten());
    values.push_back(other.get(spec.name).detach().flatten());
  }
  const at::Tensor sorted = std::get<0>(at::cat(values).sort());
  EXPECT_GT(sorted.diff().min().item<double>(), 0) << "two elements are equal";
}

TEST(Parameters, EveryDtypeRoundsTheSameNumbers) {
  const Parameters wide = initialized(kSpecs);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Parameters narrow = initialized(kSpecs, {}, dtype);
    for (const ParamSpec& spec : kSpecs) {
      const at::Tensor value = narrow.get(spec.name);
      EXPECT_EQ(value.scalar_type(), spec.trainable ? dtype : at::kFloat) << spec.name;
      EXPECT_TRUE(at::equal(value, wide.get(spec.name).to(value.scalar_type()))) << spec.name;
    }
  }
}

// A GPU draws what a CPU draws: whole parameters and slices that begin at even and at odd elements.
TEST(Parameters, HaveTheSameBitsOnAGpu) {
  if (test_device().is_cpu()) GTEST_SKIP() << "no GPU: set BRAID_TEST_DEVICE=cuda";
  std::vector<ParamSpec> specs = kSpecs;
  specs.push_back({.name = "large", .shape = {1404, 3001}, .tp_dim = 0, .init = kNormal});
  specs.push_back({.name = "odd slices", .shape = {301, 4 * 77}, .tp_dim = 1, .init = kNormal});
  specs.push_back({.name = "uniform", .shape = {301, 4 * 77}, .tp_dim = 1, .init = {InitRule::Uniform, 0.3}});
  specs.push_back({.name = "dt_bias", .shape = {64}, .tp_dim = 0, .init = {InitRule::DtBias}});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const ShardCoordinates& place : {ShardCoordinates{}, {0, 4, 0, 2, 0, 2}, {1, 4, 1, 2, 1, 2}, {3, 4}}) {
      const Parameters cpu = initialized(specs, place, dtype), gpu = initialized(specs, place, dtype, 5, test_device());
      for (const ParamSpec& spec : specs)
        EXPECT_TRUE(at::equal(gpu.get(spec.name).cpu(), cpu.get(spec.name)))
            << spec.name << " of " << dtype << " at tp " << place.tp << " of " << place.tp_size;
    }
}

// Copies of a parameter in another form go by its version.
TEST(Parameters, CountTheirWrites) {
  const Parameters parameters = initialized(kSpecs, {}, at::kFloat, 5, test_device());
  for (const ParamSpec& spec : kSpecs) EXPECT_GT(parameters.get(spec.name)._version(), 0) << spec.name;
}

constexpr std::int64_t kCount = 100'000;

at::Tensor drawn(const InitRule& rule) {
  const std::vector<ParamSpec> specs = {{.name = "drawn", .shape = {kCount}, .init = rule}};
  return initialized(specs).get("drawn").detach();
}

// Within five standard deviations of a mean of kCount values that vary by `variance` each.
void expect_mean(const at::Tensor& values, double expected, double variance, const char* what) {
  EXPECT_NEAR(values.mean().item<double>(), expected, 5 * std::sqrt(variance / kCount)) << what;
}

void expect_within(const at::Tensor& values, double low, double high) {
  constexpr double kRounding = 1e-12;
  EXPECT_GE(values.min().item<double>(), low - kRounding);
  EXPECT_LE(values.max().item<double>(), high + kRounding);
}

TEST(InitRules, ZerosAndOnes) {
  EXPECT_TRUE(at::equal(drawn({.kind = InitRule::Zeros}), at::zeros({kCount}, at::kDouble)));
  EXPECT_TRUE(at::equal(drawn({.kind = InitRule::Ones}), at::ones({kCount}, at::kDouble)));
}

TEST(InitRules, NormalHasItsScaleAsStandardDeviation) {
  const at::Tensor values = drawn({.kind = InitRule::Normal, .scale = 0.02}) / 0.02;
  expect_mean(values, 0, 1, "mean");
  expect_mean(values.square(), 1, 2, "variance");
}

TEST(InitRules, UniformReachesItsScaleOnBothSides) {
  const at::Tensor values = drawn({.kind = InitRule::Uniform, .scale = 0.5});
  expect_within(values, -0.5, 0.5);
  expect_mean(values, 0, 1.0 / 12, "mean");
  expect_mean(values.square(), 1.0 / 12, 1.0 / 80 - 1.0 / 144, "variance");
}

TEST(InitRules, DtBiasIsALogUniformTimeStepBehindSoftplus) {
  const at::Tensor dt = at::softplus(drawn({.kind = InitRule::DtBias}));
  expect_within(dt, 0.001, 0.1);
  const at::Tensor position = (dt / 0.001).log() / std::log(100.0);  // uniform between 0 and 1
  expect_mean(position, 0.5, 1.0 / 12, "mean");
  expect_mean((position - 0.5).square(), 1.0 / 12, 1.0 / 80 - 1.0 / 144, "variance");
}

TEST(InitRules, ALogIsTheLogarithmOfAUniformDecay) {
  const at::Tensor a = drawn({.kind = InitRule::ALog}).exp();
  expect_within(a, 1, 16);
  expect_mean((a - 1) / 15, 0.5, 1.0 / 12, "mean");
  expect_mean(((a - 1) / 15 - 0.5).square(), 1.0 / 12, 1.0 / 80 - 1.0 / 144, "variance");
}

TEST(Parameters, HoldWhatTheirStageHas) {
  const std::vector<ParamSpec> specs = {{.name = "first", .shape = {4, 6}, .tp_dim = 0},
                                        {.name = "second", .shape = {4}, .stage = 1},
                                        {.name = "counts", .shape = {3}, .trainable = false}};
  const Parameters parameters(specs, /*stage=*/0, {.tp = 1, .tp_size = 2}, at::kBFloat16, at::Device("cpu"));
  ASSERT_EQ(parameters.entries().size(), 2u);
  EXPECT_EQ(parameters.get("first").sizes(), at::IntArrayRef({2, 6}));
  EXPECT_TRUE(parameters.get("first").requires_grad());
  EXPECT_FALSE(parameters.get("counts").requires_grad());
  EXPECT_EQ(parameters.bytes(), 2 * 6 * 2 + 3 * 4);
  EXPECT_FALSE(parameters.get_if_declared("second").defined());
  EXPECT_TRUE(parameters.get_if_declared("first").is_same(parameters.get("first")));
  EXPECT_THAT([&] { parameters.get("second"); }, ThrowsMessage<std::logic_error>(HasSubstr("second")));
}

TEST(Parameters, AwaitThoseWithAPrefix) {
  std::vector<ParamSpec> specs;
  for (const char* name : {"layers.1.norm", "layers.10.norm", "output", "layers.1.bias", "layer"})
    specs.push_back({.name = name, .shape = {2}});
  const Parameters parameters(specs, 0, {}, at::kFloat, at::Device("cpu"));
  std::vector<std::string> awaited;
  for (const Parameters::Entry& entry : parameters.entries())
    entry.arrival->await = [&awaited, name = entry.spec.name] { awaited.push_back(name); };
  parameters.await("layers.1.");
  EXPECT_THAT(awaited, ::testing::UnorderedElementsAre("layers.1.norm", "layers.1.bias"));
  EXPECT_THAT([&] { parameters.await("layers.2."); }, ThrowsMessage<std::logic_error>(HasSubstr("layers.2.")));
}

TEST(Parameters, RefuseANameDeclaredTwice) {
  const std::vector<ParamSpec> specs = {{.name = "twin", .shape = {4}}, {.name = "twin", .shape = {2}}};
  EXPECT_THAT([&] { Parameters(specs, 0, {}, at::kFloat, at::Device("cpu")); },
              ThrowsMessage<std::logic_error>(HasSubstr("twin is declared twice")));
}

}  // namespace
}  // namespace braid
