// Tensors without values, autograd over them, and the operators of ops/ and comm/collectives.h on them. A layer that is
// written with these yields the events of its forward and backward (paper/stage.h): operators, collectives, and the
// memory of tensors, each of which counts from its making until nothing refers to it any more, as that of a real one.
// Memory of less than some megabytes is left out: partial sums of kernels, tables of sequences, gradients of vectors.
// No libtorch here.
#pragma once

#include "paper/stage.h"
#include "paper/work.h"

namespace braid {

// Counts bytes, those that exist and the most that existed at once.
class MemoryLedger {
 public:
  // An allocator's blocks are multiples of `unit` bytes.
  explicit MemoryLedger(std::int64_t unit) : unit_(unit) {}
  MemoryLedger(const MemoryLedger&) = delete;

  std::int64_t live() const { return live_; }
  std::int64_t peak() const { return peak_; }
  void forget_peak() { peak_ = live_; }

  std::int64_t rounded(std::int64_t bytes) const { return (bytes + unit_ - 1) / unit_ * unit_; }
  void change(std::int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void touch(std::int64_t bytes) { peak_ = std::max(peak_, live_ + rounded(bytes)); }  // for a moment

 private:
  const std::int64_t unit_;
  std::int64_t live_ = 0, peak_ = 0;
};

class PaperBlock {
 public:
  PaperBlock(MemoryLedger& ledger, std::int64_t bytes) : ledger_(ledger), bytes_(ledger.rounded(bytes)) {
    ledger_.change(bytes_);
  }
  ~PaperBlock() { ledger_.change(-bytes_); }
  PaperBlock(const PaperBlock&) = delete;

 private:
  MemoryLedger& ledger_;
  const std::int64_t bytes_;
};
using PaperMemory = std::shared_ptr<const PaperBlock>;

// A matrix. Copies, and others with the same memory, are views of it.
struct PaperTensor {
  std::int64_t rows = 0, columns = 0, element_bytes = 2;
  PaperMemory memory{};
  std::shared_ptr<PaperMemory> gradient{};  // where its gradient arrives; null: it has none

  std::int64_t elements() const { return rows * columns; }
  std::int64_t bytes() const { return elements() * element_bytes; }
  bool trains() const { return gradient != nullptr; }
  PaperTensor without_memory() const { return {rows, columns, element_bytes, nullptr, gradient}; }
};

// tensor/recomputable.h
struct PaperRecomputable {
  using Function = std::function<PaperMemory()>;
  PaperTensor value{};
  Function again{};

  PaperRecomputable(PaperTensor value, Function again = nullptr) : value(std::move(value)), again(std::move(again)) {}
  Function saved_if(bool needed) const {
    if (needed && again) return again;
    return [kept = needed ? value.memory : nullptr] { return kept; };
  }
};

// A collective that a layer calls in its forward. Its backward is its transpose, of as many bytes (comm/collectives.h).
struct PaperCall {
  Collective call;
  bool again = false;  // backward repeats it, because its result was not kept
  bool once = false;   // a layer that runs again does not repeat it: its result is kept, or unused
  bool has_transpose = true;
  std::int64_t pieces_again = 1;  // into how many operations the repetition is cut
  bool beside_products = false;   // its transpose and its repetition run during products of other tensors
};

inline Collective transpose_of(Collective call) {
  if (call.operation == "all_gather")
    call.operation = "reduce_scatter";
  else if (call.operation == "reduce_scatter")
    call.operation = "all_gather";
  return call;
}

class PaperTape {
 public:
  explicit PaperTape(std::int64_t unit) : ledger_(unit) {}

  MemoryLedger& ledger() { return ledger_; }
  bool records() const { return records_; }
  // Backward runs a layer, or a part of it, again.
  bool in_second_run() const { return in_second_run_; }

  // --- events

  void begin_layer() {
    place_.layer = layers_.size();
    layers_.emplace_back();
  }
  const std::vector<PaperLayer>& layers() const { return layers_; }

  void emit(const Works& works) {
    OperatorWork& layer = layers_[place_.layer].work;
    for (Work work : works) {
      work.beside_experts = place_.beside_experts;
      (in_backward_ ? layer.backward : layer.forward).push_back(work);
    }
  }
  // An operator whose memory is not counted, or that has several outputs.
  void count(const OperatorWork& work, bool needs_gradient) {
    emit(work.forward);
    if (records_ && needs_gradient && !work.backward.empty()) add([this, backward = work.backward] { emit(backward); });
  }
  void communicate(const PaperCall& use, bool needs_gradient) {
    LayerCollectives& layer = layers_[place_.layer].collectives;
    if (!(in_second_run_ && use.once)) (in_backward_ ? layer.backward : layer.forward).push_back(use.call);
    if (!records_ || !needs_gradient) return;
    const auto later = [&](Collective call, std::int64_t operations) {
      call.operations = operations;
      call.beside = use.beside_products;
      layer.backward.push_back(std::move(call));
    };
    if (use.again) later(use.call, use.pieces_again);
    if (use.has_transpose) later(transpose_of(use.call), use.call.operations);
  }

  // --- memory

  PaperMemory make(std::int64_t bytes) {
    return bytes > 0 ? std::make_shared<const PaperBlock>(ledger_, bytes) : nullptr;
  }
  PaperTensor matrix(std::int64_t rows, std::int64_t columns, std::int64_t element_bytes) {
    return {rows, columns, element_bytes, make(rows * columns * element_bytes)};
  }
  PaperTensor like(const PaperTensor& x) { return matrix(x.rows, x.columns, x.element_bytes); }

  // --- nodes

  // The outputs of a node, whose backward is called with the outputs' gradients; libtorch runs nodes from the newest to
  // the oldest. What `backward` has captured exists until it has run.
  template <class Backward>  // (const std::vector<PaperMemory>& gradients)
  std::vector<PaperTensor> differentiable(const OperatorWork& work, std::vector<PaperTensor> outputs,
                                          bool needs_gradient, Backward backward) {
    emit(work.forward);
    std::vector<std::pair<std::shared_ptr<PaperMemory>, std::int64_t>> slots;
    for (PaperTensor& output : outputs) {
      output.gradient = records_ && needs_gradient ? std::make_shared<PaperMemory>() : nullptr;
      slots.emplace_back(output.gradient, output.bytes());
    }
    if (!records_ || !needs_gradient) return outputs;
    add([this, works = work.backward, slots, backward = std::move(backward)] {
      emit(works);
      std::vector<PaperMemory> gradients;
      for (const auto& [slot, bytes] : slots) gradients.push_back(*slot ? std::exchange(*slot, nullptr) : make(bytes));
      backward(gradients);
    });
    return outputs;
  }
  template <class Backward>  // (const PaperMemory& gradient)
  PaperTensor differentiable(const OperatorWork& work, PaperTensor output, bool needs_gradient, Backward backward) {
    return differentiable(work, std::vector{std::move(output)}, needs_gradient,
                          [backward = std::move(backward)](const auto& gradients) { backward(gradients[0]); })[0];
  }
  void add(std::function<void()> node) { nodes_.push_back({place_, std::move(node)}); }

  // A second gradient is added to the first: in place if nothing else refers to the first.
  void pass(const PaperTensor& to, const PaperMemory& gradient) {
    if (!to.gradient) return;
    PaperMemory& sum = *to.gradient;
    if (!sum)
      sum = gradient;
    else if (sum.use_count() > 1)
      sum = make(to.bytes());
  }

  std::size_t size() const { return nodes_.size(); }
  // Runs the nodes that were added since there were `size` of them.
  void backward(std::size_t size) {
    const With<bool> in_backward(in_backward_, true);
    while (nodes_.size() > size) {
      const Node node = std::move(nodes_.back());
      nodes_.pop_back();
      const With<Place> place(place_, node.place);
      node.run();
    }
  }

  // --- modes, each as long as the returned object lives

  template <class T>
  class [[nodiscard]] With {
   public:
    With(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
    ~With() { variable_ = before_; }
    With(const With&) = delete;

   private:
    T& variable_;
    const T before_;
  };
  // Nothing is recorded, or everything is.
  With<bool> recording(bool records) { return {records_, records}; }
  With<bool> second_run() { return {in_second_run_, true}; }
  With<bool> beside_experts() { return {place_.beside_experts, true}; }

 private:
  // Where events belong.
  struct Place {
    std::size_t layer = 0;
    bool beside_experts = false;
  };
  struct Node {
    Place place;
    std::function<void()> run;
  };

  MemoryLedger ledger_;  // outlives the nodes
  std::vector<Node> nodes_;
  std::vector<PaperLayer> layers_;
  Place place_;
  bool records_ = true, in_backward_ = false, in_second_run_ = false;
};

// --- operators that work on each token alone: what they compute, make, save and pass on, forward and backward

// Of a linear map, or of the experts of a rank.
struct PaperWeight {
  std::int64_t in = 0, out = 0;
  bool trains = true, fp8 = false;
  std::int64_t matrices = 1;
  bool is_of_experts = false;
  bool has_bias = false;
  bool ends_layer =
      false;  // in the second run of a layer its result is unused, so it does not multiply (tensor/result.h)
};

// Sequences that are packed end to end, as far as the size of tables depends on them.
struct PaperSequences {
  std::int64_t tokens = 0, count = 1, longest = 0;
  double squares = 0;  // sum of the squares of their lengths
  std::int64_t chunks_of(std::int64_t length) const {
    const auto in = [length](std::int64_t all) { return (all + length - 1) / length; };
    return have_one_length() ? count * in(longest) : in(tokens) + count - 1;  // else, at most
  }
  bool have_one_length() const { return count * longest == tokens; }
};

class PaperOps : public PaperTape {
 public:
  static constexpr std::int64_t kBlock = 512;            // what CUDA's caching allocator rounds to
  static constexpr std::int64_t kIndex = 8, kFloat = 4;  // bytes of an int64 and of an fp32 number

  using PaperTape::communicate;
  using PaperTape::matrix;
  using Tensors = std::vector<PaperTensor>;
  struct Norm {
    bool trains = true, has_mean = false;
    bool recomputed = false;  // its output is not kept
    bool counts_sum = false;  // it counts as add_norm(), although there is nothing to add
  };
  struct SumAndNormed {
    PaperTensor sum, normed;
  };

  explicit PaperOps(const LayerOptions& options) : PaperTape(options.on_gpu ? kBlock : 1), options_(options) {}

  std::int64_t element() const { return options_.element_bytes; }
  std::int64_t wide() const { return std::max<std::int64_t>(options_.element_bytes, 4); }  // of arithmetic
  Operators works(bool trains) const { return {options_.element_bytes, trains}; }
  PaperTensor matrix(std::int64_t rows, std::int64_t columns) { return matrix(rows, columns, element()); }

  // --- norms

  OperatorWork work_of(const Norm& norm, const PaperTensor& x, bool adds) const {
    const Operators works = this->works(norm.trains);
    const double rows = real(x.rows), width = real(x.columns);
    OperatorWork work = adds || norm.counts_sum ? works.add_norm(rows, width) : works.norm(rows, width);
    if (norm.recomputed && norm.trains) work.backward = works.stream(Operator::Norm, 2 * rows * width) + work.backward;
    return work;
  }

  PaperTensor norm(const PaperTensor& x, const Norm& norm) {
    const PaperTensor y = like(x);
    const PaperMemory statistics = make((norm.has_mean ? 2 : 1) * x.rows * wide());
    wide_copies(x.elements(), 2);
    return node(work_of(norm, x, false), y, x.trains() || norm.trains, {x}, {statistics}, 5 * x.elements());
  }

  SumAndNormed add_norm(const PaperTensor& x, const PaperTensor& branch, const Norm& norm) {
    const PaperTensor sum = like(x), normed = like(x);
    const PaperMemory statistics = make((norm.has_mean ? 2 : 1) * x.rows * wide());
    wide_copies(x.elements(), 2);
    const Tensors outputs = differentiable(
        work_of(norm, x, true), {sum, normed}, x.trains() || branch.trains() || norm.trains,
        [this, to_x = target(x), to_branch = target(branch), statistics, saved = sum.memory](const auto&) {
          keep(saved, statistics);
          wide_copies(to_x.elements(), 5);
          const PaperMemory grad = make(to_x.bytes());
          pass(to_x, grad);
          pass(to_branch, grad);
        });
    return {outputs[0], outputs[1]};
  }

  PaperMemory norm_again(std::int64_t rows, std::int64_t columns) {
    const PaperMemory y = make(rows * columns * element());
    ledger().touch(rows * wide());
    wide_copies(rows * columns, 2);
    return y;
  }

  // --- products

  OperatorWork work_of(const PaperWeight& weight, std::int64_t rows_of_x, bool x_trains) const {
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
    if (weight.ends_layer && in_second_run())
      std::erase_if(work.forward, [](const Work& each) { return !counts_bytes(each.op); });
    return work;
  }

  PaperTensor linear(const PaperRecomputable& input, const PaperWeight& weight) {
    const PaperTensor& x = input.value;
    if (weight.fp8 && x.rows > 0) return linear_fp8(x, weight);
    return differentiable(work_of(weight, x.rows, x.trains()), matrix(x.rows, weight.out), x.trains() || weight.trains,
                          [this, again = input.saved_if(weight.trains), weight, to_x = target(x)](const PaperMemory&) {
                            PaperMemory saved = again();
                            const PaperMemory x_grad = to_x.trains() ? matrix(to_x.rows, weight.in).memory : nullptr;
                            // The sum of gradients is fp32 or wider; on a CPU its factors are copied to that.
                            if (weight.trains && element() < wide())
                              wide_copies(to_x.rows * (weight.in + weight.out), 1);
                            saved.reset();
                            pass(to_x, x_grad);
                          });
  }

  PaperTensor linear_of_gelu(const PaperTensor& inner, const PaperRecomputable& activated, const OperatorWork& gelu,
                             const PaperWeight& weight) {
    return differentiable(gelu + work_of(weight, inner.rows, inner.trains()), matrix(inner.rows, weight.out),
                          inner.trains() || weight.trains,
                          [this, inner, saved = activated.saved_if(weight.trains)](const PaperMemory&) {
                            const PaperMemory x = saved();
                            if (!inner.trains()) return;
                            const PaperMemory of_activated = options_.on_gpu ? nullptr : make(inner.bytes());
                            pass(inner, matrix(inner.rows, inner.columns).memory);
                          });
  }

  // --- products in fp8

  PaperMemory fp8(std::int64_t rows, std::int64_t columns) { return make(rows * (columns + kFloat)); }

  // Rows of experts have gaps in kernels, see ops/experts_fp8.cpp.
  PaperMemory fp8_columns(std::int64_t rows, std::int64_t columns, std::int64_t groups = 1) {
    constexpr std::int64_t kMultiple = 16, kGroupMultiple = 32;
    const bool has_gaps = groups > 1 && options_.on_gpu;
    const std::int64_t length =
        has_gaps ? round_up(rows + groups * (kGroupMultiple - 1), kGroupMultiple) : round_up(rows, kMultiple);
    return make(columns * (length + kFloat));
  }

  PaperTensor linear_fp8(const PaperTensor& x, const PaperWeight& weight) {
    PaperMemory columns;
    PaperTensor y = {x.rows, weight.out, element()};
    {
      const PaperMemory rows = fp8(x.rows, weight.in);
      if (weight.trains && records()) columns = fp8_columns(x.rows, weight.in, weight.matrices);
      y.memory = make(y.bytes());
      wide_copies(x.elements() + weight.in * weight.out * weight.matrices + y.elements(), 1);
    }
    return differentiable(
        work_of(weight, x.rows, x.trains()), y, x.trains() || weight.trains,
        [this, columns, weight, to_x = target(x)](const PaperMemory&) {
          keep(columns);
          const std::int64_t tokens = to_x.rows;
          const PaperMemory rows = to_x.trains() ? fp8(tokens, weight.out) : nullptr;
          const PaperMemory of_grad = weight.trains ? fp8_columns(tokens, weight.out, weight.matrices) : nullptr;
          const PaperMemory x_grad = to_x.trains() ? make(to_x.bytes()) : nullptr;
          wide_copies(tokens * (weight.in + weight.out) + weight.in * weight.out * weight.matrices, 1);
          // After the first microbatch of a step, a product that is added to the sum.
          if (weight.trains && weight.matrices == 1) ledger().touch(weight.in * weight.out * wide());
          pass(to_x, x_grad);
        });
  }

  // --- elements. A result that is recomputed is not kept.

  PaperTensor activation(const PaperTensor& x, std::int64_t columns, bool recomputed = false) {
    const OperatorWork work = works(true).activation(real(x.rows), real(x.columns), real(columns));
    return node(repeated_if(recomputed, work), matrix(x.rows, columns), x.trains(), {x}, {}, x.elements());
  }

  // Of x and one scale per row.
  PaperTensor scaled_activation(const PaperTensor& x, const PaperTensor& scales, bool recomputed) {
    const OperatorWork work = works(true).activation(real(x.rows), real(x.columns), real(x.columns));
    const PaperTensor y = like(x);
    wide_copies(x.elements(), 1);
    return node(repeated_if(recomputed, work), y, x.trains() || scales.trains(), {x, scales}, {}, 3 * x.elements());
  }

  PaperTensor sum(const PaperTensor& a, const PaperTensor& b) {
    return differentiable({}, like(a), a.trains() || b.trains(),
                          [this, to_a = target(a), to_b = target(b)](const PaperMemory& grad) {
                            pass(to_a, grad);
                            pass(to_b, grad);
                          });
  }

  PaperTensor scaled_by_channel(const PaperTensor& x, bool trains) {
    return differentiable({}, like(x), x.trains() || trains,
                          [this, to_x = target(x), saved = trains ? x.memory : nullptr](const PaperMemory&) {
                            keep(saved);
                            ledger().touch(saved ? to_x.bytes() : 0);  // of the scale's gradient
                            pass(to_x, make(to_x.bytes()));
                          });
  }

  // Some rows of x, in another order, which `order` tells.
  PaperTensor copy(const PaperTensor& x, std::int64_t rows, std::int64_t columns, const OperatorWork& work = {},
                   const PaperMemory& order = {}) {
    return node(work, matrix(rows, columns, x.element_bytes), x.trains(), {target(x)}, {order});
  }

  // --- text

  // The first gradient clears the whole sum.
  PaperTensor embedding(std::int64_t tokens, std::int64_t hidden, std::int64_t vocab, bool trains) {
    const PaperTensor y = matrix(tokens, hidden);
    const PaperMemory ids = make(tokens * kIndex);
    if (!options_.on_gpu) ledger().touch(y.bytes());
    const Operators works = this->works(trains);
    const double elements = real(y.elements());
    Work cleared = stream_work(Operator::Stream, 4 * real(vocab) * real(hidden));
    cleared.when = When::FirstMicrobatch;
    const OperatorWork work = {works.stream(Operator::Rows, 2 * elements),
                               {stream_work(Operator::Rows, elements * (works.e() + 8), 3), cleared}};
    return node(work, y, trains, {}, {ids}, 3 * y.elements());
  }

  PaperTensor put_rows(const PaperTensor& x, const PaperTensor& rows) {
    const PaperMemory places = make((x.rows + rows.rows) * kIndex);
    return differentiable({}, like(x), x.trains() || rows.trains(),
                          [this, places, to_x = target(x), to_rows = target(rows)](const PaperMemory&) {
                            keep(places);
                            const PaperMemory x_grad = to_x.trains() ? make(to_x.bytes()) : nullptr;
                            if (to_rows.trains()) pass(to_rows, make(to_rows.bytes()));
                            pass(to_x, x_grad);
                          });
  }

  // Backward overwrites the logits with their gradient.
  PaperTensor cross_entropy(const PaperTensor& logits, std::int64_t ranks) {
    const bool one_table = options_.on_gpu && ranks == 1;  // the largest logit, the sum, the label's and the loss
    const PaperMemory row_sums = make((one_table ? 4 : 3) * logits.rows * wide());
    const std::int64_t of_block = std::min(std::int64_t{16} << 20, logits.elements());
    const auto scratch = [this, of_block] { wide_copies(of_block, 2); };
    scratch();
    PaperTensor loss = matrix(1, 1, wide());
    const Operators works = this->works(true);
    const OperatorWork work = {works.stream(Operator::CrossEntropy, real(logits.elements())),
                               works.stream(Operator::CrossEntropyBackward, 2 * real(logits.elements()))};
    return differentiable(work, loss, logits.trains(), [this, logits, row_sums, scratch](const PaperMemory&) {
      keep(row_sums);
      scratch();
      pass(logits, logits.memory);
    });
  }

  // --- collectives

  PaperTensor communicate(const PaperTensor& x, std::int64_t rows, std::int64_t columns, const PaperCall& call) {
    communicate(call, x.trains());
    return copy(x, rows, columns);
  }

  PaperTensor gather_and_multiply(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks,
                                  PaperCall call) {
    const std::int64_t own = x.value.rows, rows = own * ranks, gathered_bytes = rows * weight.in * element();
    const bool gathers_again = weight.trains && x.again && !weight.fp8;
    const bool needs_gradient = x.value.trains() || weight.trains;
    call.again = gathers_again;
    call.beside_products = weight.trains && !weight.fp8;
    communicate(call, needs_gradient);
    PaperMemory kept = make(gathered_bytes);
    const PaperTensor y = matrix(rows, weight.out);
    if (weight.fp8 && weight.trains) kept = fp8_columns(rows, weight.in);
    if (!weight.trains || gathers_again || !records()) kept.reset();
    return differentiable(
        work_of(weight, rows, x.value.trains()), y, needs_gradient,
        [=, this, again = gathers_again ? x.again : nullptr, to_x = target(x.value)](const PaperMemory&) {
          PaperMemory input = kept;
          if (again) {
            input = make(gathered_bytes);
            const PaperMemory own_rows = again();
          }
          const PaperMemory x_grad = to_x.trains() ? make(to_x.bytes()) : nullptr;
          const PaperMemory partial = to_x.trains() ? matrix(rows, weight.in).memory : nullptr;
          pass(to_x, x_grad);
        });
  }

  PaperTensor multiply_and_scatter(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks,
                                   const PaperCall& call) {
    const bool needs_gradient = x.value.trains() || weight.trains;
    communicate(call, needs_gradient);
    PaperTensor y = matrix(x.value.rows / ranks, weight.out);
    const PaperMemory columns =
        weight.fp8 && weight.trains && records() ? fp8_columns(x.value.rows, weight.in) : nullptr;
    { const PaperMemory partial = make(x.value.rows * weight.out * element()); }
    return differentiable(
        work_of(weight, x.value.rows, x.value.trains()), y, needs_gradient,
        [=, this, saved = x.saved_if(weight.trains && !weight.fp8), to_x = target(x.value)](const PaperMemory&) {
          keep(columns);
          const std::int64_t gathered_bytes = to_x.rows * weight.out * element();
          const PaperMemory arriving = make(gathered_bytes);
          const PaperMemory x_grad = to_x.trains() ? make(to_x.bytes()) : nullptr;
          const PaperMemory all = weight.trains ? make(gathered_bytes) : nullptr;
          const PaperMemory input = saved();
          pass(to_x, x_grad);
        });
  }

  // --- nn/recompute.h, tensor/recomputable.h

  // Backward makes the value again, from memory that is kept instead.
  template <class... Kept>
  PaperRecomputable recomputable(const PaperTensor& value, bool recomputed, const Kept&... kept) {
    if (!recomputed) return value;
    return {value, [this, bytes = value.bytes(), ... kept = kept] {
              keep(kept...);
              return make(bytes);
            }};
  }

  Tensors recompute(const std::function<Tensors(const Tensors&)>& function,
                    const std::vector<PaperRecomputable>& inputs, bool trains) {
    Tensors values;
    bool needs_gradient = trains;
    for (const PaperRecomputable& input : inputs) {
      values.push_back(input.value);
      needs_gradient = needs_gradient || input.value.trains();
    }
    if (!records() || !needs_gradient) return function(values);
    std::vector<PaperRecomputable::Function> saved;
    Tensors targets, outputs;
    for (const PaperRecomputable& input : inputs) {
      saved.push_back(input.saved_if(true));
      targets.push_back(target(input.value));
    }
    {
      const auto without_gradients = recording(false);
      outputs = function(values);
    }
    std::vector<std::shared_ptr<PaperMemory>> slots;
    for (PaperTensor& output : outputs) {
      output.gradient = std::make_shared<PaperMemory>();
      slots.push_back(output.gradient);
    }
    add([this, function, saved, targets, slots] {
      std::vector<PaperMemory> grads;  // the caller's, which outlive the inner backward
      for (const auto& slot : slots) grads.push_back(std::exchange(*slot, nullptr));
      Tensors again;
      for (std::size_t i = 0; i < saved.size(); ++i) {
        again.push_back(targets[i]);
        again.back().memory = saved[i]();
        if (targets[i].trains()) again.back().gradient = std::make_shared<PaperMemory>();
      }
      const auto with_gradients = recording(true);
      const auto in_second_run = second_run();
      const std::size_t before = size();
      const Tensors results = function(again);
      for (std::size_t i = 0; i < results.size(); ++i) pass(results[i], grads[i] ? grads[i] : make(results[i].bytes()));
      backward(before);
      for (std::size_t i = 0; i < again.size(); ++i)
        if (targets[i].trains()) pass(targets[i], std::exchange(*again[i].gradient, nullptr));
    });
    return outputs;
  }

 protected:
  static std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

  // What a node keeps of its inputs is captured whole; of the others it knows only where their gradients go.
  static PaperTensor target(const PaperTensor& x) { return x.without_memory(); }

  template <class... Memory>
  static void keep(const Memory&...) {}  // names what a closure has captured only to keep it

  // A node whose backward makes a gradient for each input, after a moment with `wide_numbers` in a wide dtype.
  PaperTensor node(const OperatorWork& work, const PaperTensor& y, bool needs_gradient, const Tensors& inputs,
                   const std::vector<PaperMemory>& kept, std::int64_t wide_numbers = 0) {
    return differentiable(work, y, needs_gradient, [=, this](const PaperMemory&) {
      keep(kept);
      wide_copies(wide_numbers, 1);
      for (const PaperTensor& x : inputs) pass(x, make(x.bytes()));
    });
  }

  // Copies in the dtype of the arithmetic, which ATen's operators make where kernels do not.
  void wide_copies(std::int64_t elements, int count) {
    if (!options_.on_gpu) ledger().touch(count * elements * wide());
  }

  const LayerOptions options_;
};

}  // namespace braid
