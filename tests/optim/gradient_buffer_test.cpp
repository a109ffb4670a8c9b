// When gradients are added, and when they are reduced.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "nn/layer.h"
#include "ops/linear.h"
#include "optim/sharded_adam.h"
#include "support/ranks.h"

namespace braid {
namespace {

std::vector<Parameters::Entry> three_vectors() {
  std::vector<Parameters::Entry> entries;
  for (const char* name : {"a", "b", "c"})
    entries.push_back({{.name = name, .shape = {100}}, at::ones({100}, at::kFloat).requires_grad_(true)});
  return entries;
}

// One bucket each, in the order c, b, a.
const GradientBufferOptions kBucketEach = {.buckets = {.bucket_size = 1}};

TEST(GradientBuffer, StartsABucketAsSoonAsItIsComplete) {
  testing::on_threads(2, [](World& world) {
    const auto entries = three_vectors();
    GradientBuffer buffer(entries, world.everyone(), kBucketEach);
    ASSERT_EQ(buffer.layout().buckets.size(), 3u);
    entries[2].value.sum().backward();
    EXPECT_FALSE(buffer.started(0)) << "more microbatches follow";
    buffer.announce_reduction(0);
    entries[2].value.sum().backward();
    EXPECT_TRUE(buffer.started(0));
    EXPECT_FALSE(buffer.started(1));
    buffer.finish_reduction(0);
    EXPECT_TRUE(buffer.view({buffer.owned(0).begin, buffer.owned(0).begin + 30}).eq(4).all().item<bool>());
  });
}

// Rank 1 begins its backward after rank 0 has ended its own, so rank 0 must not wait for reductions that it started.
TEST(GradientBuffer, ReducesWhileBackwardGoesOn) {
  const auto body = [](World& world) {
    for (const bool shard : {true, false}) {
      GradientBufferOptions options = kBucketEach;
      options.shard = shard;
      const auto entries = three_vectors();
      const Group turns = world.make_group("turns", {0, 1});
      at::Tensor turn = at::ones({1});
      GradientBuffer buffer(entries, world.everyone(), options);
      buffer.announce_reduction(0);
      if (world.rank() == 1) turns.receive(turn, 0);
      (entries[0].value + 2 * entries[1].value + 3 * entries[2].value).sum().backward();
      for (std::size_t bucket = 0; bucket < 3; ++bucket) EXPECT_TRUE(buffer.started(bucket));
      EXPECT_ANY_THROW(buffer.begin_step()) << "reductions are under way";
      if (world.rank() == 0) turns.send(turn, 1);
      buffer.finish_reduction(0);
      for (std::size_t bucket = 0; bucket < 3; ++bucket)
        EXPECT_EQ(buffer.view(buffer.owned(bucket))[0].item<float>(), 2.0f * static_cast<float>(3 - bucket));
      EXPECT_NO_THROW(buffer.begin_step());
    }
  };
  testing::on_threads(2, body);
  testing::on_threads(2, body, ThreadSemantics::Strict);
  testing::on_processes(2, body);
}

TEST(GradientBuffer, OverlapChangesNoGradient) {
  const auto body = [](World& world) {
    for (const bool shard : {true, false}) {
      const auto gradients = [&](bool overlap) {
        std::vector<Parameters::Entry> entries;
        for (const std::int64_t size : {300, 7, 120, 1, 64})
          entries.push_back({{.name = "p", .shape = {size}}, at::ones({size}, at::kFloat).requires_grad_(true)});
        GradientBuffer buffer(entries, world.everyone(), {.buckets = {.bucket_size = 60}, .shard = shard});
        EXPECT_EQ(buffer.layout().buckets.size(), 3u);
        for (const bool last : {false, true}) {
          if (last && overlap) buffer.announce_reduction(0);
          at::Tensor loss = at::zeros({});
          for (const auto& [spec, value, gradient, fp8, arrival] : entries)
            loss = loss + (value * at::arange(value.numel()).mul(0.1 + world.rank()).sin()).sum();
          loss.backward();
        }
        buffer.finish_reduction(0);
        std::vector<at::Tensor> owned;
        for (std::size_t bucket = 0; bucket < buffer.layout().buckets.size(); ++bucket)
          owned.push_back(buffer.view(buffer.owned(bucket)).clone());
        return at::cat(owned);
      };
      EXPECT_TRUE(at::equal(gradients(true), gradients(false)));
    }
  };
  testing::on_threads(4, body);
  testing::on_processes(2, body);
}

TEST(GradientBuffer, ReducesInOneOrderOnAllRanks) {
  testing::on_threads(2, [](World& world) {
    const auto entries = three_vectors();
    GradientBuffer buffer(entries, world.everyone(), kBucketEach);
    buffer.announce_reduction(0);
    entries[1].value.mul(world.rank() + 1).sum().backward();  // without c, which comes first
    EXPECT_FALSE(buffer.started(1));
    if (world.rank() == 0) entries[0].value.sum().backward();
    buffer.finish_reduction(0);
    const auto first_of = [&](std::size_t bucket) { return buffer.view(buffer.owned(bucket))[0].item<float>(); };
    EXPECT_EQ(first_of(0), 0) << "no gradient is a gradient of zero";
    EXPECT_EQ(first_of(1), 3);
    EXPECT_EQ(first_of(2), 1);
  });
}

TEST(GradientBuffer, RefusesAGradientThatComesTooLate) {
  testing::on_threads(1, [](World& world) {
    const auto entries = three_vectors();
    GradientBuffer buffer(entries, world.everyone(), kBucketEach);
    buffer.finish_reduction(0);
    EXPECT_ANY_THROW(entries[0].value.sum().backward());
    buffer.begin_step();
    EXPECT_NO_THROW(entries[0].value.sum().backward());
  });
}

// Their gradients come from a backward inside the backward.
TEST(GradientBuffer, TakesTheGradientsOfRecomputedLayers) {
  testing::on_threads(2, [](World& world) {
    const auto entries = three_vectors();
    GradientBuffer buffer(entries, world.everyone(), kBucketEach);
    buffer.announce_reduction(0);
    at::Tensor x = at::full({100}, world.rank() + 1.0, at::kFloat);
    for (const Parameters::Entry& entry : entries)
      x = recompute([&entry](const Tensors& in, Result) { return Tensors{in[0] * entry.value}; }, {x}, true)[0];
    x.sum().backward();
    for (std::size_t bucket = 0; bucket < 3; ++bucket) EXPECT_TRUE(buffer.started(bucket));
    buffer.finish_reduction(0);
    for (std::size_t bucket = 0; bucket < 3; ++bucket) EXPECT_EQ(buffer.view(buffer.owned(bucket))[0].item<float>(), 3);
  });
}

TEST(GradientBuffer, SumsManySmallGradientsInSinglePrecision) {
  testing::on_threads(1, [](World& world) {
    const Parameters::Entry entry = {{.name = "a", .shape = {4}}, at::ones({4}, at::kBFloat16).requires_grad_(true)};
    GradientBuffer buffer({entry}, world.everyone(), {});
    for (int microbatch = 0; microbatch < 1000; ++microbatch) entry.value.sum().backward();  // bf16 ends at 256
    EXPECT_EQ(buffer.view({0, 4})[0].item<float>(), 1000);
  });
}

TEST(GradientBuffer, LeavesParametersAloneWhenItIsGone) {
  testing::on_threads(1, [](World& world) {
    const auto entries = three_vectors();
    { GradientBuffer buffer(entries, world.everyone(), {}); }
    entries[0].value.sum().backward();
    EXPECT_TRUE(entries[0].value.grad().defined());
  });
}

// A linear layer adds its weight's gradient to the buffer, in the buffer's precision, and autograd never sees it.
TEST(GradientBuffer, TakesTheGradientOfALinearLayerDirectly) {
  testing::on_threads(1, [&](World& world) {
    const Parameters parameters({{.name = "a.weight", .shape = {3, 4}, .init = {InitRule::Ones}}}, 0, {}, at::kFloat,
                                at::kCPU);
    GradientBuffer buffer(parameters.entries(), world.everyone(), {});
    const at::Tensor x = at::arange(8, at::kFloat).view({2, 4}).requires_grad_(true);
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const at::Tensor y = linear(x, parameters.weight("a.weight"), {});
      y.sum().backward();
      EXPECT_EQ(buffer.started(0), false);
    }
    EXPECT_FALSE(parameters.get("a.weight").grad().defined());
    buffer.finish_reduction(0);
    const at::Tensor sum = buffer.view(buffer.layout().slots[0].span).view({3, 4});
    EXPECT_TRUE(sum.equal(2 * x.detach().sum(0).expand({3, 4})));
    EXPECT_ANY_THROW(linear(x, parameters.weight("a.weight"), {}).sum().backward());
  });
}

}  // namespace
}  // namespace braid
