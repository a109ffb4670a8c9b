// Norms, products, elementwise operators, embeddings, the loss, collectives and recomputation; the others are in
// experts.cpp and sequences.cpp.
#include "paper/ops.h"

#include <algorithm>

namespace braid {

using namespace paper;

// --- norms

OperatorWork PaperOps::work_of(const Norm& norm, const PaperTensor& x, bool adds) const {
  const Operators works = this->works(norm.trains);
  const double rows = real(x.rows), width = real(x.columns);
  OperatorWork work = adds || norm.counts_sum ? works.add_norm(rows, width) : works.norm(rows, width);
  if (norm.recomputed && norm.trains) work.backward = works.stream(Operator::Norm, 2 * rows * width) + work.backward;
  return work;
}

PaperTensor PaperOps::norm(const PaperTensor& x, const Norm& norm) {
  const PaperTensor y = tape_.like(x);
  const PaperMemory statistics = tape_.make((norm.has_mean ? 2 : 1) * x.rows * wide());
  wide_copies(x.elements(), 2);
  return tape_.differentiable(work_of(norm, x, false), y, x.trains() || norm.trains,
                              [this, x, statistics](const PaperMemory&) {
                                keep(statistics);
                                wide_copies(x.elements(), 5);
                                tape_.pass(x, tape_.make(x.bytes()));
                              });
}

PaperOps::SumAndNormed PaperOps::add_norm(const PaperTensor& x, const PaperTensor& branch, const Norm& norm) {
  const PaperTensor sum = tape_.like(x), normed = tape_.like(x);
  const PaperMemory statistics = tape_.make((norm.has_mean ? 2 : 1) * x.rows * wide());
  wide_copies(x.elements(), 2);
  const Tensors outputs = tape_.differentiable(
      work_of(norm, x, true), {sum, normed}, x.trains() || branch.trains() || norm.trains,
      [this, to_x = target(x), to_branch = target(branch), statistics, saved = sum.memory](const auto&) {
        keep(saved, statistics);
        wide_copies(to_x.elements(), 5);
        const PaperMemory grad = tape_.make(to_x.bytes());
        tape_.pass(to_x, grad);
        tape_.pass(to_branch, grad);
      });
  return {outputs[0], outputs[1]};
}

PaperMemory PaperOps::norm_again(std::int64_t rows, std::int64_t columns) {
  const PaperMemory y = tape_.make(rows * columns * element());
  tape_.ledger().touch(rows * wide());
  wide_copies(rows * columns, 2);
  return y;
}

// --- products

OperatorWork PaperOps::work_of(const PaperWeight& weight, std::int64_t rows_of_x, bool x_trains) const {
  const Operators works = this->works(weight.trains);
  const double rows = real(rows_of_x), in = real(weight.in), out = real(weight.out);
  OperatorWork work;
  if (!weight.is_of_experts) {
    work = works.linear(rows, out, in, weight.fp8, x_trains);
  } else {
    work = works.grouped(rows, real(weight.matrices), out, in, weight.fp8);
    if (weight.fp8)
      work = {works.quantize(rows * in, weight.trains) + work.forward,
              works.quantize(rows * out, weight.trains) + work.backward};
  }
  if (weight.has_bias) work = work + works.bias(rows, out);
  if (weight.ends_layer && tape_.in_second_run())
    std::erase_if(work.forward, [](const Work& each) { return !counts_bytes(each.op); });
  return work;
}

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
      work_of(weight, x.rows, x.trains()), y, x.trains() || weight.trains,
      [this, saved = input.saved_if(weight.trains), weight, to_x = target(x)](const PaperMemory&) {
        tape_.pass(to_x, linear_backward(saved, weight, to_x.rows, to_x.trains()));
      });
}

PaperTensor PaperOps::linear_of_gelu(const PaperTensor& inner, const PaperRecomputable& activated,
                                     const OperatorWork& gelu, const PaperWeight& weight) {
  PaperTensor y = {inner.rows, weight.out, element()};
  y.memory = product(y.rows, y.columns);
  return tape_.differentiable(gelu + work_of(weight, inner.rows, inner.trains()), y, inner.trains() || weight.trains,
                              [this, inner, saved = activated.saved_if(weight.trains)](const PaperMemory&) {
                                const PaperMemory x = saved();
                                if (!inner.trains()) return;
                                const PaperMemory of_activated = device_.kernels ? nullptr : tape_.make(inner.bytes());
                                tape_.pass(inner, product(inner.rows, inner.columns));
                              });
}

// --- products in fp8

PaperMemory PaperOps::fp8(std::int64_t rows, std::int64_t columns) { return tape_.make(rows * (columns + kFloat)); }

// Rows of experts have gaps in kernels, see ops/experts_fp8.cpp.
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
      work_of(weight, x.rows, x.trains()), y, x.trains() || weight.trains,
      [this, columns, weight, to_x = target(x)](const PaperMemory&) {
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

// --- elements

PaperTensor PaperOps::activation(const PaperTensor& x, std::int64_t columns, bool recomputed) {
  const OperatorWork work = works(true).activation(real(x.rows), real(x.columns), real(columns));
  return tape_.differentiable(repeated_if(recomputed, work), matrix(x.rows, columns), x.trains(),
                              [this, x](const PaperMemory&) {
                                wide_copies(x.elements(), 1);
                                tape_.pass(x, tape_.make(x.bytes()));
                              });
}

PaperTensor PaperOps::scaled_activation(const PaperTensor& x, const PaperTensor& scales, bool recomputed) {
  const OperatorWork work = works(true).activation(real(x.rows), real(x.columns), real(x.columns));
  const PaperTensor y = tape_.like(x);
  wide_copies(x.elements(), 1);
  return tape_.differentiable(repeated_if(recomputed, work), y, x.trains() || scales.trains(),
                              [this, x, scales](const PaperMemory&) {
                                wide_copies(x.elements(), 3);
                                tape_.pass(x, tape_.make(x.bytes()));
                                tape_.pass(scales, tape_.make(scales.bytes()));
                              });
}

PaperTensor PaperOps::sum(const PaperTensor& a, const PaperTensor& b) {
  return tape_.differentiable({}, tape_.like(a), a.trains() || b.trains(),
                              [this, to_a = target(a), to_b = target(b)](const PaperMemory& grad) {
                                tape_.pass(to_a, grad);
                                tape_.pass(to_b, grad);
                              });
}

PaperTensor PaperOps::scaled_by_channel(const PaperTensor& x, bool trains) {
  return tape_.differentiable({}, tape_.like(x), x.trains() || trains,
                              [this, to_x = target(x), saved = trains ? x.memory : nullptr](const PaperMemory&) {
                                keep(saved);
                                tape_.ledger().touch(saved ? to_x.bytes() : 0);  // of the scale's gradient
                                tape_.pass(to_x, tape_.make(to_x.bytes()));
                              });
}

PaperTensor PaperOps::copy(const PaperTensor& x, std::int64_t rows, std::int64_t columns, const OperatorWork& work,
                           const PaperMemory& order) {
  return tape_.differentiable(work, tape_.matrix(rows, columns, x.element_bytes), x.trains(),
                              [this, order, to_x = target(x)](const PaperMemory&) {
                                keep(order);
                                tape_.pass(to_x, tape_.make(to_x.bytes()));
                              });
}

// --- text

// The first gradient clears the whole sum.
PaperTensor PaperOps::embedding(std::int64_t tokens, std::int64_t hidden, std::int64_t vocab, bool trains) {
  const PaperTensor y = matrix(tokens, hidden);
  const PaperMemory ids = tape_.make(tokens * kIndex);
  if (!device_.kernels) tape_.ledger().touch(y.bytes());
  const Operators works = this->works(trains);
  const double elements = real(y.elements());
  Work cleared = stream_work(Operator::Stream, 4 * real(vocab) * real(hidden));
  cleared.when = When::FirstMicrobatch;
  const OperatorWork work = {works.stream(Operator::Rows, 2 * elements),
                             {stream_work(Operator::Rows, elements * (works.e() + 8), 3), cleared}};
  return tape_.differentiable(work, y, trains, [this, ids, of_all = y.elements()](const PaperMemory&) {
    keep(ids);
    wide_copies(of_all, 3);
  });
}

PaperTensor PaperOps::put_rows(const PaperTensor& x, const PaperTensor& rows) {
  const std::int64_t place_bytes = (x.rows + rows.rows) * kIndex;
  const PaperMemory places = tape_.make(place_bytes);
  return tape_.differentiable({}, tape_.like(x), x.trains() || rows.trains(),
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
  const Operators works = this->works(true);
  const OperatorWork work = {works.stream(Operator::CrossEntropy, real(logits.elements())),
                             works.stream(Operator::CrossEntropyBackward, 2 * real(logits.elements()))};
  return tape_.differentiable(work, loss, logits.trains(), [this, logits, row_sums, scratch](const PaperMemory&) {
    keep(row_sums);
    scratch();
    tape_.pass(logits, logits.memory);
  });
}

// --- collectives

PaperTensor PaperOps::communicate(const PaperTensor& x, std::int64_t rows, std::int64_t columns,
                                  const PaperCall& call) {
  tape_.communicate(call, x.trains());
  return copy(x, rows, columns);
}

PaperTensor PaperOps::gather_and_multiply(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks,
                                          PaperCall call) {
  const std::int64_t own = x.value.rows, rows = own * ranks, gathered_bytes = rows * weight.in * element();
  const bool gathers_again = weight.trains && x.again && !weight.fp8;
  const bool needs_gradient = x.value.trains() || weight.trains;
  call.again = gathers_again;
  call.beside_products = weight.trains && !weight.fp8;
  tape_.communicate(call, needs_gradient);
  PaperMemory kept = tape_.make(gathered_bytes);
  PaperTensor y = {rows, weight.out, element()};
  y.memory = product(rows, weight.out);
  if (weight.fp8 && weight.trains) kept = fp8_columns(rows, weight.in);
  if (!weight.trains || gathers_again || !tape_.records()) kept.reset();
  return tape_.differentiable(
      work_of(weight, rows, x.value.trains()), y, needs_gradient,
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

PaperTensor PaperOps::multiply_and_scatter(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks,
                                           const PaperCall& call) {
  const bool needs_gradient = x.value.trains() || weight.trains;
  tape_.communicate(call, needs_gradient);
  PaperTensor y = matrix(x.value.rows / ranks, weight.out);
  const PaperMemory columns =
      weight.fp8 && weight.trains && tape_.records() ? fp8_columns(x.value.rows, weight.in) : nullptr;
  { const PaperMemory partial = tape_.make(x.value.rows * weight.out * element()); }
  return tape_.differentiable(
      work_of(weight, x.value.rows, x.value.trains()), y, needs_gradient,
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
    const auto without_gradients = tape_.recording(false);
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
    const auto with_gradients = tape_.recording(true);
    const auto second_run = tape_.second_run();
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
