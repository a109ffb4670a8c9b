// Norms, products, elementwise operators, embeddings and the loss; the others are in paper_collectives.cpp,
// paper_experts.cpp, paper_fp8.cpp and paper_sequences.cpp.
#include "models/paper_ops.h"

#include "models/paper_nodes.h"

namespace braid {

using namespace paper;

// --- norms

PaperTensor PaperOps::norm(const PaperTensor& x, bool trains, bool has_mean) {
  const PaperTensor y = tape_.like(x);
  const PaperMemory statistics = tape_.make((has_mean ? 2 : 1) * x.rows * wide());
  wide_copies(x.elements(), 2);
  return tape_.differentiable(y, x.trains() || trains, [this, x, statistics](const PaperMemory&) {
    keep(statistics);
    wide_copies(x.elements(), 5);
    tape_.pass(x, tape_.make(x.bytes()));
  });
}

PaperOps::SumAndNormed PaperOps::add_norm(const PaperTensor& x, const PaperTensor& branch, bool trains, bool has_mean) {
  PaperTensor sum = tape_.like(x), normed = tape_.like(x);
  const PaperMemory statistics = tape_.make((has_mean ? 2 : 1) * x.rows * wide());
  wide_copies(x.elements(), 2);
  if (!tape_.records() || !(x.trains() || branch.trains() || trains)) return {sum, normed};
  sum.gradient = std::make_shared<PaperMemory>();
  normed.gradient = std::make_shared<PaperMemory>();
  tape_.add([this, to_x = target(x), to_branch = target(branch), statistics, saved = sum.memory, of_sum = sum.gradient,
             of_normed = normed.gradient] {
    keep(saved, statistics);
    const auto taken = [&](const std::shared_ptr<PaperMemory>& slot) {
      return *slot ? std::exchange(*slot, nullptr) : tape_.make(to_x.bytes());
    };
    const PaperMemory sum_grad = taken(of_sum), normed_grad = taken(of_normed);
    wide_copies(to_x.elements(), 5);
    const PaperMemory grad = tape_.make(to_x.bytes());
    tape_.pass(to_x, grad);
    tape_.pass(to_branch, grad);
  });
  return {sum, normed};
}

PaperMemory PaperOps::norm_again(std::int64_t rows, std::int64_t columns) {
  const PaperMemory y = tape_.make(rows * columns * element());
  tape_.ledger().touch(rows * wide());
  wide_copies(rows * columns, 2);
  return y;
}

// --- products

PaperMemory PaperOps::product(std::int64_t rows, std::int64_t columns) {
  return tape_.make(rows * columns * element());
}

PaperMemory PaperOps::linear_backward(const PaperRecomputable::Function& saved, const PaperWeight& weight,
                                      std::int64_t rows, bool x_trains) {
  const PaperMemory x = saved();
  const PaperMemory x_grad = x_trains ? product(rows, weight.in) : nullptr;
  // The sum of gradients is fp32 or wider; on a CPU its factors are copied to that.
  if (weight.trains && !device_.kernels && element() < wide())
    tape_.ledger().touch(rows * (weight.in + weight.out) * wide());
  return x_grad;
}

PaperTensor PaperOps::linear(const PaperRecomputable& input, const PaperWeight& weight) {
  const PaperTensor& x = input.value;
  if (weight.fp8 && x.rows > 0) return linear_fp8(x, weight);
  PaperTensor y = {x.rows, weight.out, element()};
  y.memory = product(x.rows, weight.out);
  return tape_.differentiable(
      y, x.trains() || weight.trains,
      [this, saved = input.saved_if(weight.trains), weight, to_x = target(x)](const PaperMemory&) {
        tape_.pass(to_x, linear_backward(saved, weight, to_x.rows, to_x.trains()));
      });
}

PaperTensor PaperOps::linear_of_gelu(const PaperTensor& inner, const PaperRecomputable& activated,
                                     const PaperWeight& weight) {
  PaperTensor y = {inner.rows, weight.out, element()};
  y.memory = product(y.rows, y.columns);
  return tape_.differentiable(y, inner.trains() || weight.trains,
                              [this, inner, saved = activated.saved_if(weight.trains)](const PaperMemory&) {
                                const PaperMemory x = saved();
                                if (!inner.trains()) return;
                                const PaperMemory of_activated = device_.kernels ? nullptr : tape_.make(inner.bytes());
                                tape_.pass(inner, product(inner.rows, inner.columns));
                              });
}

// --- elements

PaperTensor PaperOps::activation(const PaperTensor& x, std::int64_t columns) {
  const PaperTensor y = matrix(x.rows, columns);
  return tape_.differentiable(y, x.trains(), [this, x](const PaperMemory&) {
    wide_copies(x.elements(), 1);
    tape_.pass(x, tape_.make(x.bytes()));
  });
}

PaperTensor PaperOps::scaled_activation(const PaperTensor& x, const PaperTensor& scales) {
  const PaperTensor y = tape_.like(x);
  wide_copies(x.elements(), 1);
  return tape_.differentiable(y, x.trains() || scales.trains(), [this, x, scales](const PaperMemory&) {
    wide_copies(x.elements(), 3);
    tape_.pass(x, tape_.make(x.bytes()));
    tape_.pass(scales, tape_.make(scales.bytes()));
  });
}

PaperTensor PaperOps::sum(const PaperTensor& a, const PaperTensor& b) {
  return tape_.differentiable(tape_.like(a), a.trains() || b.trains(),
                              [this, to_a = target(a), to_b = target(b)](const PaperMemory& grad) {
                                tape_.pass(to_a, grad);
                                tape_.pass(to_b, grad);
                              });
}

PaperTensor PaperOps::scaled_by_channel(const PaperTensor& x, bool trains) {
  return tape_.differentiable(tape_.like(x), x.trains() || trains,
                              [this, to_x = target(x), saved = trains ? x.memory : nullptr](const PaperMemory&) {
                                keep(saved);
                                tape_.ledger().touch(saved ? to_x.bytes() : 0);  // of the scale's gradient
                                tape_.pass(to_x, tape_.make(to_x.bytes()));
                              });
}

PaperTensor PaperOps::copy(const PaperTensor& x, std::int64_t rows, std::int64_t columns, const PaperMemory& order) {
  return tape_.differentiable(tape_.matrix(rows, columns, x.element_bytes), x.trains(),
                              [this, order, to_x = target(x)](const PaperMemory&) {
                                keep(order);
                                tape_.pass(to_x, tape_.make(to_x.bytes()));
                              });
}

// --- text

PaperTensor PaperOps::embedding(std::int64_t tokens, std::int64_t hidden, bool trains) {
  const PaperTensor y = matrix(tokens, hidden);
  const PaperMemory ids = tape_.make(tokens * kIndex);
  if (!device_.kernels) tape_.ledger().touch(y.bytes());
  return tape_.differentiable(y, trains, [this, ids, elements = y.elements()](const PaperMemory&) {
    keep(ids);
    wide_copies(elements, 3);
  });
}

PaperTensor PaperOps::put_rows(const PaperTensor& x, const PaperTensor& rows) {
  const std::int64_t place_bytes = (x.rows + rows.rows) * kIndex;
  const PaperMemory places = tape_.make(place_bytes);
  return tape_.differentiable(tape_.like(x), x.trains() || rows.trains(),
                              [this, places, to_x = target(x), to_rows = target(rows)](const PaperMemory&) {
                                keep(places);
                                const PaperMemory x_grad = to_x.trains() ? tape_.make(to_x.bytes()) : nullptr;
                                if (to_rows.trains()) tape_.pass(to_rows, tape_.make(to_rows.bytes()));
                                tape_.pass(to_x, x_grad);
                              });
}

// Backward overwrites the logits with their gradient.
PaperTensor PaperOps::cross_entropy(const PaperTensor& logits, std::int64_t ranks) {
  const bool one_table = device_.kernels && ranks == 1;  // the largest logit, the sum, the label's and the loss
  const PaperMemory row_sums = tape_.make((one_table ? 4 : 3) * logits.rows * wide());
  const std::int64_t of_block = std::min(std::int64_t{16} << 20, logits.elements());
  const auto scratch = [this, of_block] { wide_copies(of_block, 2); };
  scratch();
  PaperTensor loss = tape_.matrix(1, 1, wide());
  return tape_.differentiable(loss, logits.trains(), [this, logits, row_sums, scratch](const PaperMemory&) {
    keep(row_sums);
    scratch();
    tape_.pass(logits, logits.memory);
  });
}

}  // namespace braid
