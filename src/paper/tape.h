// Tensors without values, and autograd over them. A layer that is written with them yields the events of its forward
// and backward (paper/stage.h): operators, collectives, and the memory of tensors, each of which counts from its making
// until nothing refers to it any more, as that of a real one. No libtorch here.
#pragma once

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

}  // namespace braid
