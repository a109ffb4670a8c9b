// The steps of a mixture of experts: route, sort, the products of experts with their rows, restore the order.
// E experts, k chosen per token, T tokens, R = T * k rows that go to experts.
#pragma once

#include "tensor/autograd.h"
#include "tensor/copies.h"
#include "tensor/weight.h"

namespace braid {

struct Routing {
  at::Tensor scores;   // [T, E] sigmoid of the logits, fp32 or wider; with gradient
  at::Tensor experts;  // [T, k] int64, chosen by score + bias, best first
  at::Tensor weights;  // [T, k] score / (sum of the chosen scores + kNeverZero) * scaling; with gradient
};

inline constexpr double kNeverZero = 1e-20;  // keeps weights finite when all chosen scores of a token underflow

struct RouterOptions {
  std::int64_t top_k = 1;
  double scaling = 1;
  bool normalize = true;  // false: weights are score * scaling
};

// The logits, in fp32 or wider.   x: [T, H], weight: [E, H] -> [T, E]
at::Tensor router_logits(const Recomputable& x, const Weight& weight);
// The same, and x for its other users, at most two: backward adds their gradients of x to the router's in one pass.
struct LogitsAndTokens {
  at::Tensor logits;
  Tensors tokens;  // x, once for each of them
};
LogitsAndTokens router_logits_and_tokens(const Recomputable& x, const Weight& weight, std::size_t other_users);
at::Tensor router_logits_forward(const at::Tensor& x, const at::Tensor& weight);
// Gradients of x and weight, undefined where not required. The weight's is undefined too if it was added to the
// weight's sum. `added` are the gradients of x that its other users have. Saved: x.
Tensors router_logits_backward(const at::Tensor& grad, const at::Tensor& x, const Weight& weight, bool x_wants_gradient,
                               const Tensors& added = {});

// The bias affects only the choice, never the weights. Ties go to the lower expert index on every device.
// logits: [T, E] fp32 or wider, bias: [E]
Routing route(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options);
Routing route_forward(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options);
// Gradient of the logits, from those of scores and weights. Saved: scores and experts.
at::Tensor route_backward(const at::Tensor& scores_grad, const at::Tensor& weights_grad, const at::Tensor& scores,
                          const at::Tensor& experts, const RouterOptions& options);

// The stable sort of rows by expert: row i in sorted order is slot `order[i]` of the flattened [T * k].
struct ExpertOrder {
  at::Tensor order;    // [T * k] int64
  at::Tensor inverse;  // [T * k] int64: the row of each slot
  at::Tensor counts;   // [E] int64: rows of each expert
  at::Tensor ends;     // [E] int32: one past the last row of each expert
};
ExpertOrder sort_by_expert(const at::Tensor& experts, std::int64_t num_experts);

// Row i is x[order[i] / k].   x: [T, H] -> [T * k, H]
at::Tensor permute_to_experts(const at::Tensor& x, const ExpertOrder& order, std::int64_t top_k);
// The transpose: sums the k rows of each token, and adds the token's row of `added` if that is defined.
// rows: [T * k, H], added: [T, H] -> [T, H]
at::Tensor unpermute_from_experts(const at::Tensor& rows, const ExpertOrder& order, std::int64_t top_k,
                                  const at::Tensor& added = {});
// One pair for both: each is the other's backward. Saved: order and inverse, [T * k].
at::Tensor permute_to_experts_forward(const at::Tensor& x, const ExpertOrder& order, std::int64_t top_k);
at::Tensor permute_to_experts_backward(const at::Tensor& grad, const ExpertOrder& order, std::int64_t top_k,
                                       const at::Tensor& added = {});

// One number per row instead.   weights: [T, k] -> [T * k]
at::Tensor weights_by_expert(const at::Tensor& weights, const ExpertOrder& order);

// The loss that balances the load of experts within each sample.

// `count` samples of `length` tokens each. A rank holds some of these tokens, starting at token `first`.
struct SampleTokens {
  std::int64_t first = 0, length = 0, count = 0;
};

// With the shares of a token its scores divided by their sum, of each sample and expert:
struct ExpertShares {
  at::Tensor sums;    // [samples, E] the shares, summed over this rank's tokens
  at::Tensor chosen;  // [samples, E] how many of this rank's tokens have the expert among their top k
};
ExpertShares expert_shares(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples);

// E / (k length^2 count) times the sum over samples and experts of sums * chosen, where `chosen` covers the tokens of
// all ranks: sum_over_ranks adds it up in place. Balanced routing gives 1 on all ranks together.
// scores: [T, E], fp32 or wider
at::Tensor aux_loss(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples,
                    const std::function<void(at::Tensor& chosen)>& sum_over_ranks);
// Gradient of the scores; `chosen` is that of all ranks. Saved: scores and chosen.
at::Tensor aux_loss_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& chosen,
                             const SampleTokens& samples, double factor);

// The products of experts with their rows. E experts, R rows that are sorted by expert.

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

// Whether kernels write grad^T rows of each expert to x, or add it: x is float, or bf16 and only written.   x: [E, Out,
// In]
bool takes_expert_gradients(const at::Tensor& x, bool overwrite);
// Whether kernels multiply by these matrices: on a Hopper GPU, with sizes in multiples of 16 bytes.   x: [E, Out, In]
bool fits_grouped_kernels(const at::Tensor& x);
// grad = 0 for experts without rows.   grad: [E, Out, In] bf16
void clear_expert_gradients(const ExpertRows& experts, const at::Tensor& grad);

}  // namespace braid
