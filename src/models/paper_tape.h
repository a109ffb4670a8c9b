// Tensors without values, and autograd over them: a layer that is written with them tells how much memory it takes, and
// when. A tensor's memory counts from its making until nothing refers to it any more, as that of a real one. No
// libtorch here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

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

// tensor/autograd.h
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

class PaperTape {
 public:
  explicit PaperTape(std::int64_t unit) : ledger_(unit) {}

  MemoryLedger& ledger() { return ledger_; }
  bool records() const { return records_; }

  PaperMemory make(std::int64_t bytes) {
    return bytes > 0 ? std::make_shared<const PaperBlock>(ledger_, bytes) : nullptr;
  }
  PaperTensor matrix(std::int64_t rows, std::int64_t columns, std::int64_t element_bytes) {
    return {rows, columns, element_bytes, make(rows * columns * element_bytes)};
  }
  PaperTensor like(const PaperTensor& x) { return matrix(x.rows, x.columns, x.element_bytes); }

  // The output of a node, whose backward is called with the output's gradient; libtorch runs nodes from the newest to
  // the oldest. What `backward` has captured exists until it has run.
  template <class Backward>  // (const PaperMemory& gradient)
  PaperTensor differentiable(PaperTensor output, bool needs_gradient, Backward backward) {
    if (!records_ || !needs_gradient) {
      output.gradient = nullptr;
      return output;
    }
    output.gradient = std::make_shared<PaperMemory>();
    add([this, slot = output.gradient, bytes = output.bytes(), backward = std::move(backward)] {
      const PaperMemory gradient = *slot ? std::exchange(*slot, nullptr) : make(bytes);
      backward(gradient);
    });
    return output;
  }
  void add(std::function<void()> node) { nodes_.push_back(std::move(node)); }

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
    while (nodes_.size() > size) {
      const std::function<void()> node = std::move(nodes_.back());
      nodes_.pop_back();
      node();
    }
  }

  // Nothing is recorded, or everything is, as long as it lives.
  class Mode {
   public:
    Mode(PaperTape& tape, bool records) : tape_(tape), before_(std::exchange(tape.records_, records)) {}
    ~Mode() { tape_.records_ = before_; }
    Mode(const Mode&) = delete;

   private:
    PaperTape& tape_;
    const bool before_;
  };

 private:
  MemoryLedger ledger_;  // outlives the nodes
  std::vector<std::function<void()>> nodes_;
  bool records_ = true;
};

}  // namespace braid
