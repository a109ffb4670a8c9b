// Shared by tests of whole models: parameter values that make every parameter matter, and one forward in any layout
// against one process. In float64 layouts differ only by the order of sums, so a tolerance of 1e-10 of the largest
// value detects any wrong factor.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include "forward/forward.h"
#include "ops/cross_entropy.h"
#include "support/layout.h"
#include "support/relative_error.h"

namespace braid::testing {

inline constexpr double kSameSums = 1e-10;

// Distinct numbers, the same in every layout.
inline at::Tensor waves(at::IntArrayRef shape, double step) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return at::arange(count, at::kDouble).mul(step).sin().view(shape);
}

// Biases, factors and buffers at their initial zeros and ones would hide where they are applied.
inline void draw_everything(Parameters& parameters) {
  parameters.initialize(77);
  at::NoGradGuard guard;
  for (const auto& entry : parameters.entries()) {
    if (entry.spec.init.kind == InitRule::Normal) continue;
    const at::Tensor whole = waves(entry.spec.shape, 1.3).mul(0.3).add(entry.spec.init.kind == InitRule::Ones ? 1 : 0);
    for (const Box& box : shard_boxes(entry.spec, parameters.coordinates())) {
      at::Tensor from = whole, to = entry.value;
      for (std::size_t dim = 0; dim < box.size.size(); ++dim) {
        from = from.narrow(static_cast<std::int64_t>(dim), box.global_begin[dim], box.size[dim]);
        to = to.narrow(static_cast<std::int64_t>(dim), box.local_begin[dim], box.size[dim]);
      }
      to.copy_(from);
    }
  }
}

// Sequences of these lengths, with some labels ignored.
inline TokenBatch token_batch(const std::vector<std::int64_t>& lengths, std::int64_t vocab) {
  TokenBatch batch;
  batch.offsets = {0};
  for (const std::int64_t length : lengths) batch.offsets.push_back(batch.offsets.back() + length);
  const std::int64_t tokens = batch.offsets.back();
  batch.ids = at::arange(tokens, at::kLong).mul(7).add(3).remainder(vocab);
  batch.labels = at::arange(tokens, at::kLong).mul(11).add(5).remainder(vocab);
  batch.labels.masked_fill_(at::arange(tokens, at::kLong).remainder(5) == 2, kIgnoredLabel);
  return batch;
}

// The result on rank 0 of forward(options, topology, world), with gradients in double, on threads in a layout.
template <class Forward>
ForwardResult in_layout(const Layout& layout, const Forward& forward,
                        ThreadSemantics semantics = ThreadSemantics::Relaxed) {
  const ForwardOptions options = {.dtype = at::kDouble,
                                  .grads = true,
                                  .sequence_parallel = layout.sp,
                                  .overlap = layout.overlap,
                                  .recompute = {.full = layout.recompute}};
  ForwardResult result;
  on_threads(
      layout.ranks(),
      [&](World& world) {
        const ForwardResult mine = forward(options, topology_of(layout), world);
        if (world.rank() == 0) result = mine;
      },
      semantics);
  return result;
}

inline void expect_same(const ForwardResult& got, const ForwardResult& expected, double tolerance = kSameSums) {
  EXPECT_LE(relative_error(got.output, expected.output), tolerance) << "output";
  EXPECT_LE(relative_error(got.loss, expected.loss), tolerance) << "loss";
  ASSERT_EQ(got.grads.size(), expected.grads.size());
  for (std::size_t i = 0; i < got.grads.size(); ++i) {
    ASSERT_EQ(got.grads[i].first, expected.grads[i].first);
    EXPECT_GT(expected.grads[i].second.abs().max().item<double>(), 0) << got.grads[i].first;
    EXPECT_LE(relative_error(got.grads[i].second, expected.grads[i].second), tolerance) << got.grads[i].first;
  }
}

inline const at::Tensor& gradient(const ForwardResult& result, const std::string& name) {
  for (const auto& [key, value] : result.grads)
    if (key == name) return value;
  throw std::out_of_range(name);
}

// Constants: they have no gradients of their own, but pass gradients on.
inline void freeze(Parameters& parameters) {
  for (const auto& entry : parameters.entries()) at::Tensor(entry.value).requires_grad_(false);
}

// "<where>: <what>" of each.
inline std::vector<std::string> sentences(const std::vector<Problem>& problems) {
  std::vector<std::string> result;
  for (const Problem& problem : problems) result.push_back(problem.where + ": " + problem.what);
  return result;
}

}  // namespace braid::testing
