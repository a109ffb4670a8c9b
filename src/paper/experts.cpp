// Operators on paper: the router, rows on their way to experts and back, experts in fp8.
#include "paper/ops.h"

namespace braid {

using namespace paper;

PaperOps::Routed PaperOps::router(const PaperRecomputable& input, std::int64_t experts, bool trains,
                                  std::size_t other_users) {
  const PaperTensor& x = input.value;
  Routed routed;
  routed.logits = tape_.matrix(x.rows, experts, wide());
  wide_copies(element() < wide() ? x.elements() : 0, 1);
  Tensors outputs(x.trains() ? other_users : 0, x);
  outputs.insert(outputs.begin(), routed.logits);
  outputs =
      tape_.differentiable(works(trains).router(real(x.rows), real(x.columns), real(experts)), std::move(outputs),
                           x.trains() || trains, [this, saved = input.saved_if(true), to_x = target(x)](const auto&) {
                             const PaperMemory tokens = saved();
                             wide_copies(to_x.elements(), element() < wide() ? 2 : 1);
                             if (to_x.trains()) tape_.pass(to_x, tape_.make(to_x.bytes()));
                           });
  routed.logits = outputs[0];
  routed.tokens.assign(outputs.begin() + 1, outputs.end());
  routed.tokens.resize(other_users, x);
  return routed;
}

PaperOps::Routing PaperOps::route(const PaperTensor& logits, std::int64_t top_k) {
  Routing routing;
  routing.scores = tape_.matrix(logits.rows, logits.columns, wide());
  routing.experts = tape_.make(logits.rows * top_k * kIndex);
  if (!device_.kernels) tape_.ledger().touch(logits.elements() * (2 * wide() + 2 * kIndex));
  routing.weights = tape_.matrix(logits.rows, top_k, wide());
  const Tensors outputs = tape_.differentiable(
      {}, {routing.scores, routing.weights}, logits.trains(),
      [this, to_logits = target(logits), scores = routing.scores.memory, experts = routing.experts](const auto&) {
        keep(scores, experts);
        wide_copies(to_logits.elements(), 2);
        tape_.pass(to_logits, tape_.make(to_logits.bytes()));
      });
  routing.scores = outputs[0];
  routing.weights = outputs[1];
  return routing;
}

PaperMemory PaperOps::expert_order(std::int64_t rows, std::int64_t experts) {
  const std::int64_t of_rows = 2 * tape_.ledger().rounded(rows * kIndex);
  if (!device_.kernels) tape_.ledger().touch(of_rows + 2 * rows * kIndex);
  return tape_.make(of_rows + tape_.ledger().rounded(experts * kIndex) + tape_.ledger().rounded(experts * kFloat));
}

PaperTensor PaperOps::permute(const PaperTensor& x, const PaperMemory& order, std::int64_t top_k) {
  const double elements = real(x.rows + x.rows * top_k) * real(x.columns);
  return tape_.differentiable(works(true).copied(Operator::Rows, elements), matrix(x.rows * top_k, x.columns),
                              x.trains(), [this, order, to_x = target(x), top_k](const PaperMemory&) {
                                keep(order);
                                if (!device_.kernels) tape_.ledger().touch((top_k + 1) * to_x.bytes());
                                tape_.pass(to_x, tape_.make(to_x.bytes()));
                              });
}

PaperTensor PaperOps::unpermute(const PaperTensor& rows, const PaperMemory& order, std::int64_t top_k,
                                const PaperTensor& added) {
  if (!device_.kernels) tape_.ledger().touch(rows.bytes());
  const double tokens = real(rows.rows / top_k), width = real(rows.columns);
  const OperatorWork work = {works(true).stream(Operator::Rows, (real(rows.rows) + 2 * tokens) * width),
                             works(true).stream(Operator::Rows, (real(rows.rows) + tokens) * width)};
  return tape_.differentiable(work, matrix(rows.rows / top_k, rows.columns), rows.trains() || added.trains(),
                              [this, order, to_rows = target(rows), to_added = target(added)](const PaperMemory& grad) {
                                keep(order);
                                if (to_rows.trains()) tape_.pass(to_rows, tape_.make(to_rows.bytes()));
                                tape_.pass(to_added, grad);
                              });
}

PaperTensor PaperOps::with_aux_loss(const PaperTensor& y, const PaperTensor& scores, std::int64_t samples) {
  const double elements = real(scores.elements());
  tape_.count({{stream_work(Operator::Stream, 8 * elements, 4)}, {stream_work(Operator::Stream, 12 * elements, 3)}},
              scores.trains());
  if (!tape_.records() || !scores.trains()) return y;
  const PaperMemory chosen = tape_.make((device_.kernels ? 2 : 1) * samples * scores.columns * wide());
  wide_copies(scores.elements(), 3);
  const auto reached = std::make_shared<bool>(false);
  tape_.add([this, scores, chosen, reached] {
    keep(chosen);
    wide_copies(scores.elements(), 3);
    if (*reached) tape_.pass(scores, tape_.make(scores.bytes()));
  });
  PaperTensor with_loss = y;
  with_loss.gradient = nullptr;
  return tape_.differentiable({}, with_loss, true, [this, to_y = target(y), reached](const PaperMemory& grad) {
    *reached = true;
    tape_.pass(to_y, grad);
  });
}

// --- experts in fp8

// ops/expert_mlp_fp8.cpp: rows are permuted, and activated, as they are quantized. A second run needs only what the
// backward reads.
OperatorWork PaperOps::work_of(const ExpertMlp& mlp, std::int64_t own_tokens, bool recomputed) const {
  const Operators works = this->works(mlp.fc1.trains);
  const bool trains = mlp.fc1.trains;
  const double hidden = real(mlp.fc1.in), ffn = real(mlp.fc1.out), experts = real(mlp.fc1.matrices), e = works.e();
  const double tokens = real(own_tokens), rows = tokens * real(mlp.top_k);
  const auto permuted = [&](bool columns) {
    return Works{stream_work(Operator::QuantizeRows, tokens * hidden * e + rows * hidden * (columns ? e + 2 : 1), 3)};
  };
  const OperatorWork fc1 = works.grouped(rows, experts, ffn, hidden, true),
                     fc2 = works.grouped(rows, experts, hidden, ffn, true);
  const auto activated = [&](bool columns) {
    return permuted(columns) + fc1.forward +
           Works{stream_work(Operator::QuantizeActivation, rows * ffn * (columns ? 2 * e + 2 : e + 1), 3)};
  };
  OperatorWork work = {activated(trains && !recomputed)};
  if (!tape_.in_second_run()) work.forward += fc2.forward + works.stream(Operator::Rows, (rows + 2 * tokens) * hidden);
  if (recomputed) work.backward = activated(trains);
  work.backward += permuted(trains) + fc2.backward +
                   Works{stream_work(Operator::QuantizeActivationBackward, rows * ffn * (4 * e + 2), 3)} +
                   fc1.backward + works.stream(Operator::Rows, (rows + tokens) * hidden);
  return work;
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
      work_of(mlp, tokens.value.rows, recomputed), y, tokens.value.trains() || weights.trains() || trains,
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
