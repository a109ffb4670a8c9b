// Operators on paper: collectives, and layers that run again in backward.
#include "models/paper_nodes.h"
#include "models/paper_ops.h"

namespace braid {

using namespace paper;

// --- collectives

PaperTensor PaperOps::all_reduce(const PaperTensor& x) { return copy(x, x.rows, x.columns); }

PaperTensor PaperOps::all_gather(const PaperTensor& x, std::int64_t ranks) {
  return copy(x, x.rows * ranks, x.columns);
}

// It gathers rows of the transposed matrix.
PaperTensor PaperOps::gather_columns(const PaperTensor& x, std::int64_t ranks) {
  tape_.ledger().touch(x.bytes() * (ranks + 1));
  return copy(x, x.rows, x.columns * ranks);
}

PaperTensor PaperOps::reduce_scatter(const PaperTensor& x, std::int64_t ranks) {
  return copy(x, x.rows / ranks, x.columns);
}

PaperTensor PaperOps::exchange(const PaperTensor& x, std::int64_t rows, std::int64_t columns) {
  return copy(x, rows, columns);
}

PaperTensor PaperOps::gather_and_multiply(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks) {
  const std::int64_t own = x.value.rows, rows = own * ranks, gathered_bytes = rows * weight.in * element();
  const bool gathers_again = weight.trains && x.again && !weight.fp8;
  PaperMemory kept = tape_.make(gathered_bytes);
  PaperTensor y = {rows, weight.out, element()};
  y.memory = product(rows, weight.out);
  if (weight.fp8 && weight.trains) kept = fp8_columns(rows, weight.in);
  if (!weight.trains || gathers_again || !tape_.records()) kept.reset();
  return tape_.differentiable(
      y, x.value.trains() || weight.trains,
      [=, this, again = gathers_again ? x.again : nullptr, to_x = target(x.value)](const PaperMemory&) {
        PaperMemory input = kept;
        if (again) {
          input = tape_.make(gathered_bytes);
          const PaperMemory own_rows = again();
        }
        const PaperMemory x_grad = to_x.trains() ? tape_.make(to_x.bytes()) : nullptr;
        const PaperMemory partial = to_x.trains() ? product(rows, weight.in) : nullptr;
        tape_.pass(to_x, x_grad);
      });
}

PaperTensor PaperOps::multiply_and_scatter(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks) {
  PaperTensor y = matrix(x.value.rows / ranks, weight.out);
  const PaperMemory columns =
      weight.fp8 && weight.trains && tape_.records() ? fp8_columns(x.value.rows, weight.in) : nullptr;
  { const PaperMemory partial = tape_.make(x.value.rows * weight.out * element()); }
  return tape_.differentiable(
      y, x.value.trains() || weight.trains,
      [=, this, saved = x.saved_if(weight.trains && !weight.fp8), to_x = target(x.value)](const PaperMemory&) {
        keep(columns);
        const std::int64_t gathered_bytes = to_x.rows * weight.out * element();
        const PaperMemory arriving = tape_.make(gathered_bytes);
        const PaperMemory x_grad = to_x.trains() ? tape_.make(to_x.bytes()) : nullptr;
        const PaperMemory all = weight.trains ? tape_.make(gathered_bytes) : nullptr;
        const PaperMemory input = saved();
        tape_.pass(to_x, x_grad);
      });
}

// --- recomputation

PaperOps::Tensors PaperOps::recompute(const std::function<Tensors(const Tensors&)>& function,
                                      const std::vector<PaperRecomputable>& inputs, bool trains) {
  Tensors values;
  bool needs_gradient = trains;
  for (const PaperRecomputable& input : inputs) {
    values.push_back(input.value);
    needs_gradient = needs_gradient || input.value.trains();
  }
  if (!tape_.records() || !needs_gradient) return function(values);
  std::vector<PaperRecomputable::Function> saved;
  Tensors targets, outputs;
  for (const PaperRecomputable& input : inputs) {
    saved.push_back(input.saved_if(true));
    targets.push_back(target(input.value));
  }
  {
    const PaperTape::Mode without_gradients(tape_, false);
    outputs = function(values);
  }
  std::vector<std::shared_ptr<PaperMemory>> slots;
  for (PaperTensor& output : outputs) {
    output.gradient = std::make_shared<PaperMemory>();
    slots.push_back(output.gradient);
  }
  tape_.add([this, function, saved, targets, slots] {
    std::vector<PaperMemory> grads;  // the caller's, which outlive the inner backward
    for (const auto& slot : slots) grads.push_back(std::exchange(*slot, nullptr));
    Tensors again;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      again.push_back(targets[i]);
      again.back().memory = saved[i]();
      if (targets[i].trains()) again.back().gradient = std::make_shared<PaperMemory>();
    }
    const PaperTape::Mode with_gradients(tape_, true);
    const std::size_t before = tape_.size();
    const Tensors results = function(again);
    for (std::size_t i = 0; i < results.size(); ++i)
      tape_.pass(results[i], grads[i] ? grads[i] : tape_.make(results[i].bytes()));
    tape_.backward(before);
    for (std::size_t i = 0; i < again.size(); ++i)
      if (targets[i].trains()) tape_.pass(targets[i], std::exchange(*again[i].gradient, nullptr));
  });
  return outputs;
}

}  // namespace braid
