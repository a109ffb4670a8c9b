// Linear maps split over tp, and the vocabulary split the same way. Weights are this rank's shards.
#pragma once

#include "nn/parallel.h"
#include "nn/parameters.h"
#include "ops/activation.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "tensor/autograd.h"
#include "tensor/weight.h"

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
  static Branch gelu_branch(const Recomputable& x, const Linear& fc1, const Linear& fc2, Activation form,
                            bool recomputed, Result output = Result::Needed);
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

// The linear maps of this rank's experts: of its ep share of them, in the features that expt_tp leaves to this rank.
// Split::Columns computes this rank's output features of a row, Split::Rows its partial sums, which
// ExpertExchange::start_combine() adds up over expt_tp. Backward adds each expert's weight gradient directly to its
// slice of the weight's GradientSum, if the optimizer keeps one.
class GroupedLinear {
 public:
  // From the parameter `prefix`weight, [experts, Out, In]. `pieces`: how often it is called for a microbatch.
  GroupedLinear(const Parameters& parameters, const std::string& prefix, Split split, int pieces = 1);

  at::Tensor operator()(const Recomputable& rows, const ExpertRows& experts,
                        Result result = Result::Needed) const;  // [R, In] -> [R, Out]
  const Weight& weight() const { return weight_; }

 private:
  Weight weight_;
};

// Linear maps between a sequence that tp splits and its tensor-parallel region, cut into pieces so that communication
// overlaps with products. A piece has the same rows of every rank's share.
//
//   gather_and_multiply   forward: while a piece is multiplied, the next ones are gathered. Backward: while the input
//                         gradient of a piece is computed, that of the one before is summed and scattered; that of the
//                         last one, which may be the only one, during the product of the weight's gradient.
//   multiply_and_scatter  forward: while a piece is multiplied, the one before is summed and scattered. Backward: while
//                         the input gradient of a piece is computed, the next ones of the output's gradient are
//                         gathered.
//
// Each row is the same sum of products as in the whole map. The gradient of the weight is one product of all rows.

// Whether a linear map has more than one piece if every tp rank holds `rows` rows of the sequence.
bool is_cut(std::int64_t rows, const Parallel& parallel);

// As linear() of gather_sequence(), with one piece or more. There is sequence parallelism, and a row.
// [t, In] -> [T / cp, Out / tp]
at::Tensor gather_and_multiply(const Recomputable& x, const Weight& weight, const at::Tensor& bias,
                               const Parallel& parallel);
// As reduce_to_sequence() of linear(), the same.   [T / cp, In / tp] -> [t, Out]
at::Tensor multiply_and_scatter(const Recomputable& x, const Weight& weight, const Parallel& parallel,
                                Result result = Result::Needed);

}  // namespace braid
