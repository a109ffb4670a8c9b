// Parts of layers on tensors without values (models/paper_ops.h), for models/language_memory.cpp and
// models/encoder_memory.cpp: the residual stream, linear maps with their groups, the measurement of a stage. No
// libtorch here.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "models/paper_ops.h"
#include "models/stage_memory.h"

namespace braid {

// nn/layer.h
class PaperResidual {
 public:
  PaperResidual(PaperOps& ops, PaperTensor x) : ops_(&ops), x_(std::move(x)) {}

  void add(PaperTensor branch) {
    value();
    pending_ = std::move(branch);
  }
  const PaperTensor& value() {
    if (pending_) x_ = ops_->sum(x_, *std::exchange(pending_, std::nullopt));
    return x_;
  }
  // Sets the pending branch's memory free, as the real one does, before the caller goes on.
  PaperRecomputable normed(bool trains, bool has_mean, bool recomputed) {
    PaperTensor result;
    if (pending_) {
      auto [sum, normed] = ops_->add_norm(x_, *pending_, trains, has_mean);
      pending_.reset();
      x_ = std::move(sum);
      result = std::move(normed);
    } else {
      result = ops_->norm(x_, trains, has_mean);
    }
    if (!recomputed) return result;
    return {result, [ops = ops_, x = x_.memory, rows = x_.rows, columns = x_.columns] {
              return ops->norm_again(rows, columns);
            }};
  }

 private:
  PaperOps* ops_;
  PaperTensor x_;
  std::optional<PaperTensor> pending_;
};

// nn/layer.h: add_layer()
template <class Add>
void add_layer(PaperOps& ops, PaperResidual& stream, const Add& add, bool recomputed, bool trains) {
  if (!recomputed) return add(stream);
  const auto layer = [&ops, add](const PaperOps::Tensors& in) -> PaperOps::Tensors {
    PaperResidual input(ops, in[0]);
    add(input);
    return {input.value()};
  };
  stream = PaperResidual(ops, ops.recompute(layer, {PaperRecomputable(stream.value())}, trains)[0]);
}

// nn/linear.h, with the groups of nn/parallel.h.
class PaperMaps {
 public:
  PaperMaps(PaperOps& ops, std::int64_t tp, std::int64_t cp, bool sequence_parallel, std::int64_t pieces)
      : ops_(ops), tp_(tp), cp_(cp), sequence_parallel_(sequence_parallel && tp > 1), pieces_(pieces) {}

  bool sequence_parallel() const { return sequence_parallel_; }
  std::int64_t cp() const { return cp_; }

  PaperTensor columns(const PaperRecomputable& x, PaperWeight weight) const {
    weight.out /= tp_;
    const bool in_one_piece = sequence_parallel_ && x.value.rows > 0 && !weight.fp8;
    return in_one_piece || is_cut(x.value.rows) ? ops_.gather_and_multiply(x, weight, tp_)
                                                : ops_.linear(gathered(x), weight);
  }
  PaperTensor rows(const PaperRecomputable& x, PaperWeight weight) const {
    weight.in /= tp_;
    if (is_cut(x.value.rows / tp_)) return ops_.multiply_and_scatter(x, weight, tp_);
    return reduce_to_sequence(ops_.linear(x, weight));
  }
  PaperTensor reduce_to_sequence(const PaperTensor& partial) const {
    if (tp_ == 1) return partial;
    return sequence_parallel_ ? ops_.reduce_scatter(partial, tp_) : ops_.all_reduce(partial);
  }
  PaperRecomputable gathered(const PaperRecomputable& x) const {
    if (!sequence_parallel_) return x;
    const PaperTensor all = ops_.all_gather(x.value, tp_);
    if (!x.again) return all;
    return {all, [ops = &ops_, again = x.again, bytes = all.bytes()] {
              const PaperMemory own = again();
              return ops->tape().make(bytes);
            }};
  }
  PaperTensor gather_features(const PaperTensor& x) const { return tp_ == 1 ? x : ops_.gather_columns(x, tp_); }
  std::int64_t own_rows(std::int64_t rows) const { return tp_ == 1 || sequence_parallel_ ? rows : rows / tp_; }
  PaperTensor all_rows(const PaperTensor& own) const {
    return tp_ == 1 || sequence_parallel_ ? own : ops_.all_gather(own, tp_);
  }
  // A rank's rows of all its columns become all rows of its share of the columns, `copies` times as many; and back.
  PaperTensor sequence_to_heads(const PaperTensor& x, std::int64_t columns) const {
    if (cp_ == 1) return x;
    const PaperTensor by_rank = ops_.copy(x, x.rows, columns * cp_);
    return ops_.exchange(by_rank, x.rows * cp_, columns);
  }
  PaperTensor heads_to_sequence(const PaperTensor& x) const {
    if (cp_ == 1) return x;
    const PaperTensor by_rank = ops_.exchange(x, x.rows, x.columns);
    return ops_.copy(by_rank, x.rows / cp_, x.columns * cp_);
  }

 private:
  bool is_cut(std::int64_t rows) const { return sequence_parallel_ && std::min(pieces_, rows) > 1; }

  PaperOps& ops_;
  const std::int64_t tp_, cp_;
  const bool sequence_parallel_;
  const std::int64_t pieces_;
};

// ops/packed_sequences.cpp: the tables of a microbatch, in one tensor
inline std::int64_t table_bytes(const PaperSequences& sequences) {
  constexpr std::int64_t kScanChunk = 128, kInt = 4;
  return kInt * (4 * sequences.chunks_of(kScanChunk) + (sequences.count + 2) / 2 * 2 + 4 * sequences.tokens);
}

// Runs a stage's forward, and its backward if it has one. `forward`: () -> the output
template <class Forward>
StageMemory measured(PaperOps& ops, const Forward& forward) {
  PaperTape& tape = ops.tape();
  const MemoryLedger& ledger = tape.ledger();
  StageMemory memory;
  PaperTensor output = forward();
  memory.output = output.bytes();
  memory.forward = ledger.peak();
  memory.saved = ledger.live();
  if (!output.trains()) return memory;
  tape.ledger().forget_peak();
  tape.pass(output, tape.make(output.bytes()));
  tape.backward(0);
  memory.backward = ledger.peak();
  return memory;
}

}  // namespace braid
