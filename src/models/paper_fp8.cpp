// Operators on paper: products in fp8.
#include "models/paper_nodes.h"
#include "models/paper_ops.h"

namespace braid {

using namespace paper;

PaperMemory PaperOps::fp8(std::int64_t rows, std::int64_t columns) { return tape_.make(rows * (columns + kFloat)); }

// Rows of experts have gaps in kernels, see ops/quantize_experts_cuda.cpp.
PaperMemory PaperOps::fp8_columns(std::int64_t rows, std::int64_t columns, std::int64_t groups) {
  constexpr std::int64_t kMultiple = 16, kGroupMultiple = 32;
  const bool has_gaps = groups > 1 && device_.kernels;
  const std::int64_t length =
      has_gaps ? round_up(rows + groups * (kGroupMultiple - 1), kGroupMultiple) : round_up(rows, kMultiple);
  return tape_.make(columns * (length + kFloat));
}

PaperTensor PaperOps::linear_fp8(const PaperTensor& x, const PaperWeight& weight) {
  PaperMemory columns;
  PaperTensor y = {x.rows, weight.out, element()};
  {
    const PaperMemory rows = fp8(x.rows, weight.in);
    if (weight.trains && tape_.records()) columns = fp8_columns(x.rows, weight.in, weight.matrices);
    y.memory = tape_.make(y.bytes());
    wide_copies(x.elements() + weight.in * weight.out * weight.matrices + y.elements(), 1);
  }
  return tape_.differentiable(
      y, x.trains() || weight.trains, [this, columns, weight, to_x = target(x)](const PaperMemory&) {
        keep(columns);
        const std::int64_t tokens = to_x.rows;
        const PaperMemory rows = to_x.trains() ? fp8(tokens, weight.out) : nullptr;
        const PaperMemory of_grad = weight.trains ? fp8_columns(tokens, weight.out, weight.matrices) : nullptr;
        const PaperMemory x_grad = to_x.trains() ? tape_.make(to_x.bytes()) : nullptr;
        wide_copies(tokens * (weight.in + weight.out) + weight.in * weight.out * weight.matrices, 1);
        // After the first microbatch of a step, a product that is added to the sum.
        if (weight.trains && weight.matrices == 1) tape_.ledger().touch(weight.in * weight.out * wide());
        tape_.pass(to_x, x_grad);
      });
}

PaperTensor PaperOps::expert_mlp_fp8(const PaperRecomputable& tokens, const PaperTensor& weights,
                                     const PaperTensor& added, const ExpertMlp& mlp, const PaperMemory& order,
                                     bool recomputed) {
  struct Saved {
    PaperMemory rows, activated, inner, scales;
  };
  const std::int64_t hidden = mlp.fc1.in, ffn = mlp.fc1.out, rows = tokens.value.rows * mlp.top_k,
                     experts = mlp.fc1.matrices;
  const bool trains = mlp.fc1.trains;
  // activate(): what is saved, and fc2's input, which is not
  const auto activate = [=, this](bool with_columns, PaperMemory& activated) {
    Saved saved;
    {
      const PaperMemory permuted = fp8(rows, hidden);
      if (with_columns) saved.rows = fp8_columns(rows, hidden, experts);
      saved.inner = tape_.make(rows * ffn * element());
      wide_copies(rows * (hidden + ffn), 1);
    }
    saved.scales = tape_.make(rows * wide());
    activated = fp8(rows, ffn);
    if (with_columns) saved.activated = fp8_columns(rows, ffn, experts);
    return saved;
  };
  PaperTensor y = matrix(tokens.value.rows, hidden);
  PaperMemory activated;
  Saved saved = activate(trains && !recomputed && tape_.records(), activated);
  {
    const PaperMemory outputs = tape_.make(rows * hidden * element());
    wide_copies(rows * (hidden + ffn), 1);
  }
  activated.reset();
  if (recomputed) saved = {};
  return tape_.differentiable(
      y, tokens.value.trains() || weights.trains() || trains,
      [=, this, again = tokens.saved_if(recomputed), of_weights = weights, to_tokens = target(tokens.value),
       to_added = target(added)](const PaperMemory& grad) {
        keep(order);
        Saved now = saved;
        PaperMemory activated_again;
        if (recomputed) {
          const PaperMemory from = again();
          now = activate(trains, activated_again);
        }
        PaperMemory of_activated;
        {
          const PaperMemory grad_rows = fp8(rows, hidden);
          const PaperMemory grad_columns = trains ? fp8_columns(rows, hidden, experts) : nullptr;
          of_activated = tape_.make(rows * ffn * element());
          wide_copies(rows * (hidden + ffn), 1);
        }
        PaperMemory inner_rows = fp8(rows, ffn), inner_columns = trains ? fp8_columns(rows, ffn, experts) : nullptr;
        tape_.ledger().touch(rows * ffn * element());  // the gradient before it is converted
        const PaperMemory of_rows = tape_.make(rows * hidden * element());
        tape_.pass(to_tokens, tape_.make(to_tokens.bytes()));
        tape_.pass(of_weights, tape_.make(of_weights.bytes()));
        tape_.pass(to_added, grad);
      });
}

}  // namespace braid
