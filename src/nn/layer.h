// Layers of a model: the residual stream that they read and add to, and running them again in backward.
#pragma once

#include <ATen/core/Tensor.h>
#include "ops/norm.h"
#include "ops/packed_sequences.h"
#include "tensor/autograd.h"

namespace braid {

// A residual stream: the sum of x and of the outputs of branches. The last output is added only when the stream is next
// normalised or read, so that adding and normalising are one pass over memory.
class Residual {
 public:
  Residual(at::Tensor x) : x_(std::move(x)) {}  // implicit: a tensor is a stream to which nothing was added yet

  void add(Branch branch);
  const at::Tensor& value() const;  // [t, H]
  // `recomputed`: backward normalises the stream again instead of keeping the result.
  Recomputable rms_norm(const at::Tensor& weight, double eps, bool recomputed = false) const;
  Recomputable layer_norm(const at::Tensor& weight, const at::Tensor& bias, double eps, bool recomputed = false) const;

 private:
  template <class Norm, class AddNorm>
  Recomputable normed(const Norm& norm, const AddNorm& add_norm, bool recomputed) const;

  mutable at::Tensor x_;
  mutable Branch pending_;  // the stream is their sum; it may have no output
};

// function(inputs, Result::Needed), saving only the inputs: backward runs the function again. It must give the same
// results both times; it is told that they are unused in the second run, so that it need not communicate them. Ranks of
// its groups recompute together. `trains`: whether any of its parameters, on any rank, requires a gradient; a frozen
// function of inputs without gradient is run directly.
Tensors recompute(const std::function<Tensors(const Tensors&, Result)>& function,
                  const std::vector<Recomputable>& inputs, bool trains);

// add(stream, ...), which adds a layer's branches. `recomputed`: the layer saves only the stream's value, as above, and
// is told in its second run that the result of its last branch is unused.
void add_layer(Residual& stream, const std::function<void(Residual&, Result)>& add, bool recomputed, bool trains);

struct ExpertCounts;

// What a layer needs to know about the tokens of a replica's microbatch.
struct SequenceBatch {
  PackedSequences sequences;  // of all T tokens
  std::int64_t samples = 1;   // the T tokens are this many samples of equal length; each may hold several sequences
  double aux_loss_scale = 0;  // weight of auxiliary losses relative to the summed token losses; 0: none
  std::shared_ptr<ExpertCounts> expert_counts{};  // of a layer that runs again in backward: what its first run learnt
  Result output = Result::Needed;                 // of such a layer: not in its second run
};

// One residual branch, its norm included: the model adds its output to the stream x.   [t, H] -> [t, H]
class Layer {
 public:
  virtual ~Layer() = default;
  virtual at::Tensor branch(const Residual& x, const SequenceBatch& batch) = 0;
};

}  // namespace braid
