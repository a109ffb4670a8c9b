// Linear maps split over tp, and the vocabulary split the same way. Weights are this rank's shards.
#pragma once

#include <string>

#include "nn/parallel.h"
#include "nn/parameters.h"
#include "ops/activation.h"
#include "ops/branch.h"
#include "tensor/recomputable.h"

namespace braid {

enum class Split {
  Columns,  // output features: each rank computes its own, for all tokens   [t, In] -> [T / cp, Out / tp]
  Rows,     // input features: the ranks' products are summed   [T / cp, In / tp] -> [t, Out]
};

// A linear map with this rank's shard of its weight. Backward adds the weight's gradient directly to its GradientSum,
// if the optimizer keeps one.
class Linear {
 public:
  // A bias is this rank's shard with Split::Columns, and whole with Split::Rows.
  Linear(Weight weight, at::Tensor bias, Split split, const Parallel& parallel)
      : weight_(std::move(weight)), bias_(std::move(bias)), split_(split), parallel_(&parallel) {}
  // From the parameters `prefix`weight and, if declared, `prefix`bias.
  Linear(const Parameters& parameters, const std::string& prefix, Split split, const Parallel& parallel)
      : Linear(parameters.weight(prefix + "weight"), parameters.get_if_declared(prefix + "bias"), split, parallel) {}

  at::Tensor operator()(const Recomputable& x) const;
  // With Split::Rows, with the bias apart, which a residual stream adds.
  Branch branch(const Recomputable& x, Result result = Result::Needed) const;
  // fc2(gelu(fc1(x))), with the bias apart. `recomputed`: backward computes the GELU again instead of keeping it.
  static Branch gelu_branch(const Recomputable& x, const Linear& fc1, const Linear& fc2, GeluForm form, bool recomputed,
                            Result output = Result::Needed);
  // With Split::Columns, for some of the T / cp tokens only.   [t, In], rows: [n] int64 -> [n, Out / tp]
  at::Tensor of_rows(const at::Tensor& x, const at::Tensor& rows) const;
  at::ScalarType dtype() const { return weight_.value.scalar_type(); }

 private:
  Weight weight_;
  at::Tensor bias_;
  Split split_;
  const Parallel* parallel_;
};

// Looks up embeddings in a vocabulary that is split over tp; NaN for an id outside the vocabulary.
// ids: [T / cp] int64 -> [t, H]
at::Tensor embed(const at::Tensor& ids, const Weight& weight, const Parallel& parallel);

}  // namespace braid
