// Compares a layer with its definition: output and every gradient, on one rank and in layouts. In double, where
// rounding cannot hide a wrong factor.
#pragma once

#include <ATen/ATen.h>
#include "nn/layer.h"
#include "nn/parameters.h"
#include "ops/gradients.h"
#include "support/layout.h"

namespace braid::testing {

inline at::Tensor view_of(at::Tensor tensor, const std::vector<std::int64_t>& begin,
                          const std::vector<std::int64_t>& size) {
  for (std::size_t dim = 0; dim < size.size(); ++dim)
    tensor = tensor.narrow(static_cast<std::int64_t>(dim), begin[dim], size[dim]);
  return tensor;
}

// Adds the gradients of a rank's shards to those of the whole parameters.
inline void add_gradients(const Parameters& parameters, std::map<std::string, at::Tensor>& sums) {
  for (const auto& [spec, value, gradient, fp8, arrival] : parameters.entries()) {
    if (!spec.trainable) continue;
    at::Tensor& sum = sums.try_emplace(spec.name, at::zeros(spec.shape, at::kDouble)).first->second;
    if (!value.grad().defined()) continue;
    for (const Box& box : shard_boxes(spec, parameters.coordinates()))
      view_of(sum, box.global_begin, box.size).add_(view_of(value.grad().cpu(), box.local_begin, box.size));
  }
}

struct LayerCheck {
  std::vector<ParamSpec> specs;
  std::vector<std::int64_t> offsets;  // of the sequences
  std::int64_t hidden;
  std::function<at::Tensor(const Parameters&, const at::Tensor& x)> definition;  // of all rows, on whole parameters
  std::function<std::unique_ptr<Layer>(const Parameters&, const Parallel&)> make_layer;

  struct Outcome {
    at::Tensor output, x_grad;                // [T, H]
    std::map<std::string, at::Tensor> grads;  // of whole parameters
  };

  at::Tensor x() const { return random_tensor({offsets.back(), hidden}, 10); }
  at::Tensor output_grad() const { return random_tensor({offsets.back(), hidden}, 20); }

  Parameters make_parameters(const ShardCoordinates& place = {}) const {
    Parameters parameters(specs, 0, place, at::kDouble, at::Device("cpu"));
    parameters.initialize(3);
    return parameters;
  }

  Outcome run_definition() const {
    const Parameters parameters = make_parameters();
    const at::Tensor leaf = x().requires_grad_();
    Outcome outcome;
    outcome.output = definition(parameters, leaf);
    outcome.output.backward(output_grad());
    outcome.x_grad = leaf.grad();
    add_gradients(parameters, outcome.grads);
    return outcome;
  }

  Outcome run_layer(const Layout& layout) const {
    const at::Tensor all_x = x(), all_output_grad = output_grad();
    Outcome outcome{at::zeros_like(all_x), at::zeros_like(all_x), {}};
    std::mutex mutex;
    on_layout(layout, [&](const Rank& rank) {
      const Parameters parameters = make_parameters(rank.coordinates());
      const auto layer = make_layer(parameters, rank.parallel);
      const at::Tensor leaf = rank.rows_outside(all_x).clone().requires_grad_();
      const at::Tensor y = layer->branch(leaf, {.sequences = pack_sequences(offsets, at::Device("cpu"))});
      // Without sequence parallelism every tp rank has the same output; each counts its share of it.
      y.backward(rank.rows_outside(all_output_grad) / (rank.parallel.sequence_parallel ? 1 : rank.parallel.tp.size()));
      const std::lock_guard<std::mutex> lock(mutex);
      rank.rows_outside(outcome.output).copy_(y.detach());
      rank.rows_outside(outcome.x_grad).add_(leaf.grad());
      add_gradients(parameters, outcome.grads);
      return true;
    });
    return outcome;
  }

  void expect_definition_in(const std::vector<Layout>& layouts) const {
    constexpr double kSameFormula = 1e-12;
    const Outcome expected = run_definition();
    for (const auto& [name, grad] : expected.grads)
      EXPECT_GT(grad.abs().max().item<double>(), 0) << name << " is not used";
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(::testing::Message() << layout);
      const Outcome got = run_layer(layout);
      expect_close(got.output, expected.output, kSameFormula, "output");
      expect_close(got.x_grad, expected.x_grad, kSameFormula, "gradient of x");
      for (const auto& [name, grad] : expected.grads) expect_close(got.grads.at(name), grad, kSameFormula, name);
    }
  }
};

}  // namespace braid::testing
