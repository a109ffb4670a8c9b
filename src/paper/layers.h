// Parts of layers on tensors without values (paper/ops.h): the residual stream, linear maps with their groups, the
// measurement of a stage's memory. No libtorch here.
#pragma once

#include "paper/mixers.h"
#include "paper/stage.h"

namespace braid {

// nn/residual.h. The sum at the end of a stage counts in the first norm of the next one.
class PaperResidual {
 public:
  enum class Of { Stage, Layer };  // Layer: one that runs again in backward, whose sum is its own

  PaperResidual(PaperOps& ops, PaperTensor x, Of of, bool first_norm_adds)
      : ops_(&ops), x_(std::move(x)), of_(of), counts_sum_(first_norm_adds) {}

  void add(PaperTensor branch) {
    value();
    pending_ = std::move(branch);
  }
  const PaperTensor& value() {
    if (!pending_) return x_;
    if (of_ == Of::Layer) ops_->count(ops_->works(true).add(real(x_.rows), real(x_.columns)), false);
    x_ = ops_->sum(x_, *std::exchange(pending_, std::nullopt));
    return x_;
  }
  // Sets the pending branch's memory free, as the real one does, before the caller goes on.
  PaperRecomputable normed(bool trains, bool has_mean, bool recomputed) {
    PaperTensor result;
    PaperOps::Norm norm = {.trains = trains, .has_mean = has_mean, .recomputed = recomputed};
    if (pending_) {
      auto [sum, normed] = ops_->add_norm(x_, *pending_, norm);
      pending_.reset();
      x_ = std::move(sum);
      result = std::move(normed);
    } else {
      norm.counts_sum = counts_sum_;
      result = ops_->norm(x_, norm);
    }
    if (!recomputed) return result;
    return {result, [ops = ops_, x = x_.memory, rows = x_.rows, columns = x_.columns] {
              return ops->norm_again(rows, columns);
            }};
  }

 private:
  PaperOps* ops_;
  PaperTensor x_;
  Of of_;
  bool counts_sum_;
  std::optional<PaperTensor> pending_;
};

// nn/recompute.h: add_layer()
struct PaperRecomputation {
  bool recomputed = false, trains = true;
  bool first_norm_adds = false;  // in a layer that runs again
};
template <class Add>
void add_layer(PaperOps& ops, PaperResidual& stream, const Add& add, const PaperRecomputation& how) {
  ops.begin_layer();
  if (!how.recomputed) return add(stream);
  const auto layer = [&ops, add, how](const PaperOps::Tensors& in) -> PaperOps::Tensors {
    PaperResidual input(ops, in[0], PaperResidual::Of::Layer, how.first_norm_adds);
    add(input);
    return {input.value()};
  };
  stream = PaperResidual(ops, ops.recompute(layer, {PaperRecomputable(stream.value())}, how.trains)[0],
                         PaperResidual::Of::Stage, true);
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
    const std::int64_t own = x.value.rows;
    const bool in_one_piece = sequence_parallel_ && own > 0 && !weight.fp8;
    if (!in_one_piece && !is_cut(own)) return ops_.linear(gathered(x), weight);
    return ops_.gather_and_multiply(x, weight, tp_,
                                    {call("all_gather", own * tp_ * weight.in, std::min(pieces_, own))});
  }
  PaperTensor rows(const PaperRecomputable& x, PaperWeight weight) const {
    weight.in /= tp_;
    const std::int64_t own = x.value.rows / tp_;
    if (!is_cut(own)) return reduce_to_sequence(ops_.linear(x, weight), weight.ends_layer);
    return ops_.multiply_and_scatter(
        x, weight, tp_,
        {.call = call("reduce_scatter", x.value.rows * weight.out, std::min(pieces_, own)), .once = weight.ends_layer});
  }
  PaperTensor reduce_to_sequence(const PaperTensor& partial, bool ends_layer = false) const {
    if (tp_ == 1) return partial;
    return ops_.communicate(
        partial, sequence_parallel_ ? partial.rows / tp_ : partial.rows, partial.columns,
        {.call = call(sequence_parallel_ ? "reduce_scatter" : "all_reduce", partial.elements()), .once = ends_layer});
  }
  PaperRecomputable gathered(const PaperRecomputable& x) const {
    if (!sequence_parallel_) return x;
    const PaperTensor all =
        ops_.communicate(x.value, x.value.rows * tp_, x.value.columns, {call("all_gather", x.value.elements() * tp_)});
    if (!x.again) return all;
    return {all, [ops = &ops_, again = x.again, bytes = all.bytes()] {
              const PaperMemory own = again();
              return ops->make(bytes);
            }};
  }
  // It gathers rows of the transposed matrix.
  PaperTensor gather_features(const PaperTensor& x) const {
    if (tp_ == 1) return x;
    ops_.ledger().touch(x.bytes() * (tp_ + 1));
    return ops_.communicate(x, x.rows, x.columns * tp_, {call("all_gather", x.elements() * tp_)});
  }
  std::int64_t own_rows(std::int64_t rows) const { return tp_ == 1 || sequence_parallel_ ? rows : rows / tp_; }
  // At the end of a layer.
  PaperTensor all_rows(const PaperTensor& own) const {
    if (tp_ == 1 || sequence_parallel_) return own;
    return ops_.communicate(own, own.rows * tp_, own.columns,
                            {.call = call("all_gather", own.elements() * tp_), .once = true});
  }
  // From a rank's rows to all rows of its share of the columns, and back. Both copy rows around the all-to-all.
  PaperTensor sequence_to_heads(const PaperTensor& x, std::int64_t columns) const {
    if (cp_ == 1) return x;
    const PaperTensor by_rank = ops_.copy(x, x.rows, columns * cp_, around_exchange(x));
    return ops_.communicate(by_rank, x.rows * cp_, columns, {exchange(by_rank)});
  }
  PaperTensor heads_to_sequence(const PaperTensor& x) const {
    if (cp_ == 1) return x;
    const PaperTensor by_rank = ops_.communicate(x, x.rows, x.columns, {exchange(x)});
    return ops_.copy(by_rank, x.rows / cp_, x.columns * cp_, around_exchange(x));
  }

 private:
  bool is_cut(std::int64_t rows) const { return sequence_parallel_ && std::min(pieces_, rows) > 1; }
  Collective call(const char* operation, std::int64_t elements, std::int64_t pieces = 1) const {
    return {"tp", operation, elements * ops_.element(), pieces};
  }
  Collective exchange(const PaperTensor& x) const { return {"cp", "all_to_all", x.bytes()}; }
  OperatorWork around_exchange(const PaperTensor& x) const {
    return ops_.works(true).copied(Operator::Stream, 4 * real(x.elements()));
  }

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
  const MemoryLedger& ledger = ops.ledger();
  StageMemory memory;
  PaperTensor output = forward();
  memory.output = output.bytes();
  memory.forward = ledger.peak();
  memory.saved = ledger.live();
  if (!output.trains()) return memory;
  ops.ledger().forget_peak();
  ops.pass(output, ops.make(output.bytes()));
  ops.backward(0);
  memory.backward = ledger.peak();
  return memory;
}

}  // namespace braid
