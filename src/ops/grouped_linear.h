// The products of experts with their rows. E experts, R rows that are sorted by expert.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tensor/autograd.h"
#include "tensor/weight.h"

namespace braid {

// How many rows each expert has: as end offsets on the device for kernels, and on the host for loops over experts.
class ExpertRows {
 public:
  ExpertRows() = default;
  explicit ExpertRows(at::Tensor ends) : ends_(std::move(ends)) {}
  ExpertRows(std::vector<std::int64_t> counts, at::Tensor ends) : ends_(std::move(ends)), counts_(make(counts)) {}

  const at::Tensor& ends() const { return ends_; }  // [E] int32, one past the last row of each expert
  bool on_host() const { return counts_->has_value(); }
  // Rows of each expert. If they are not on the host, the first call copies them and makes the host wait for the GPU.
  const std::vector<std::int64_t>& counts() const;

 private:
  using Counts = std::optional<std::vector<std::int64_t>>;
  static std::shared_ptr<Counts> make(Counts counts) { return std::make_shared<Counts>(std::move(counts)); }

  at::Tensor ends_;
  std::shared_ptr<Counts> counts_ = make({});  // one for all copies
};

// The rows of each expert e times weight[e]^T.   rows: [R, In], weight: [E, Out, In] -> [R, Out]
at::Tensor grouped_linear(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts);
at::Tensor grouped_linear_forward(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts);
// Gradients of rows and weight. Each expert's part of the weight's is added to its slice of the weight's sum; without a
// sum it is returned. Saved: the rows if the weight requires a gradient, else undefined.
Tensors grouped_linear_backward(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                                const ExpertRows& experts, bool rows_want_gradient);

}  // namespace braid
