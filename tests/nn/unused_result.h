// Shared by the tests of layers whose output nobody uses: they compute fewer products, and the same gradients.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "nn/layer.h"
#include "nn/parameters.h"
#include "ops/gradients.h"
#include "support/operator_observer.h"
#include "tensor/autograd.h"

namespace braid::testing {

inline bool is_product(const at::RecordFunction& function) {
  static const std::set<std::string> products = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};
  return products.count(function.name()) > 0;
}

// forward() computes `fewer` products less if its result is unused, and its backward gives `leaves` the same gradients,
// bit for bit.
inline void expect_products_left_out(int fewer, const std::function<at::Tensor(Result)>& forward,
                                     const Tensors& leaves) {
  struct Run {
    int products = 0;
    Tensors gradients{};
  };
  const auto run = [&](Result result) {
    Run done;
    at::Tensor y;
    {
      const OperatorObserver observer(
          [&](const at::RecordFunction& function) { done.products += is_product(function); });
      y = forward(result);
    }
    y.backward(random_tensor(y.sizes(), 77));
    for (const at::Tensor& leaf : leaves) {
      done.gradients.push_back(leaf.grad());
      leaf.mutable_grad() = at::Tensor();
    }
    return done;
  };
  const Run unused = run(Result::Unused);  // first: later its memory might hold the result
  const Run needed = run(Result::Needed);
  EXPECT_EQ(needed.products - unused.products, fewer) << "of " << needed.products;
  for (std::size_t i = 0; i < leaves.size(); ++i)
    EXPECT_TRUE(at::equal(unused.gradients[i], needed.gradients[i])) << "gradient " << i;
}

// The same of a layer's branch and the gradients of x and of its parameters.
inline void expect_products_left_out(int fewer, Layer& layer, const Parameters& parameters, const at::Tensor& x,
                                     SequenceBatch batch) {
  Tensors leaves = {x.clone().requires_grad_()};
  for (const auto& entry : parameters.entries())
    if (entry.spec.trainable) leaves.push_back(entry.value);
  const auto branch = [&](Result result) {
    batch.output = result;
    return layer.branch(leaves[0], batch);
  };
  expect_products_left_out(fewer, branch, leaves);
}

}  // namespace braid::testing
