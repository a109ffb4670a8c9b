// The products of experts with their rows. E experts, R rows that are sorted by expert.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ops/quantize.h"
#include "tensor/autograd.h"
#include "tensor/copies.h"
#include "tensor/weight.h"

namespace braid {

// How many rows each expert has: as end offsets on the device for kernels, and on the host for loops over experts.
class ExpertRows {
 public:
  ExpertRows() = default;
  explicit ExpertRows(at::Tensor ends) : ends_(std::move(ends)) {}
  ExpertRows(std::vector<std::int64_t> counts, at::Tensor ends) : ends_(std::move(ends)) {
    host_->counts = std::move(counts);
  }

  const at::Tensor& ends() const { return ends_; }  // [E] int32, one past the last row of each expert
  bool on_host() const { return host_->counts.has_value(); }
  // Starts to copy the counts to the host, which goes on meanwhile.
  void prefetch() const;
  // Rows of each expert. Waits for the copy, or, if no copy was started, for all work that is queued on the GPU.
  const std::vector<std::int64_t>& counts() const;

 private:
  struct Host {
    std::optional<std::vector<std::int64_t>> counts{};
    std::optional<HostCopy> ends{};
  };
  at::Tensor ends_;
  std::shared_ptr<Host> host_ = std::make_shared<Host>();  // one for all copies
};

// Throws if rows, a weight and the experts' row counts do not fit.
void check_grouped_linear(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts);

// The rows of each expert e times weight[e]^T.   rows: [R, In], weight: [E, Out, In] -> [R, Out]
at::Tensor grouped_linear(const Recomputable& rows, const Weight& weight, const ExpertRows& experts,
                          Result result = Result::Needed);
at::Tensor grouped_linear_forward(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts);
// Gradients of rows and weight. Each expert's part of the weight's is added to its slice of the weight's sum; where no
// kernel does it, by a product per expert, for which the host needs the counts. Without a sum it is returned. Saved:
// the rows if the weight requires a gradient, else undefined.
Tensors grouped_linear_backward(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                                const ExpertRows& experts, bool rows_want_gradient);

namespace cuda {  // grouped_linear_cuda.cpp

// Kernels for these products exist: bf16 on a Hopper GPU, at least one row, and sizes in multiples of 16 bytes.
bool has_row_products(const at::Tensor& rows, const at::Tensor& weight);
// Those of a gradient exist, too: it is float, or bf16 and only written.
bool has_gradient_products(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& result, bool overwrite);

// The rows of each expert e times weight[e], or its transpose.
// ends: [E] int32, rows: [R, Out], weight: [E, Out, In] -> [R, In]; transposed, rows: [R, In] -> [R, Out]
at::Tensor multiply_rows(const at::Tensor& ends, const at::Tensor& rows, const at::Tensor& weight, bool transposed);

// grad^T rows of each expert, added to the result or written over it.
// ends: [E] int32, grad: [R, Out], rows: [R, In], result: [E, Out, In]
void write_expert_gradients(const at::Tensor& ends, const at::Tensor& grad, const at::Tensor& rows,
                            const at::Tensor& result, bool overwrite);

// The same in fp8, for outputs with fast sums, for gradients with precise ones. The columns of a gradient's factors are
// the experts' rows, with padding (ops/experts_fp8.h).
// rows: [R, K], weight: [E, N, K] -> [R, N] bf16;   grad: [Out, R], rows: [In, R], result: [E, Out, In]
bool has_row_products(const Fp8Matrix& rows, const Fp8Matrix& weight);
bool has_gradient_products(const Fp8Matrix& grad, const Fp8Matrix& rows, const at::Tensor& result, bool overwrite);
at::Tensor multiply_rows(const at::Tensor& ends, const Fp8Matrix& rows, const Fp8Matrix& weight);
void write_expert_gradients(const at::Tensor& padded_ends, const Fp8Matrix& grad, const Fp8Matrix& rows,
                            const at::Tensor& result, bool overwrite);

// grad = 0 for experts without rows.   ends: [E] int32, grad: [E, Out, In] bf16
void clear_expert_gradients(const at::Tensor& ends, const at::Tensor& grad);

}  // namespace cuda
}  // namespace braid
