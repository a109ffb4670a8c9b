// Operators on paper: the router, and rows on their way to experts and back.
#include "models/paper_nodes.h"
#include "models/paper_ops.h"

namespace braid {

using namespace paper;

PaperOps::Routed PaperOps::router(const PaperRecomputable& input, std::int64_t experts, bool trains,
                                  std::size_t other_users) {
  const PaperTensor& x = input.value;
  Routed routed;
  routed.logits = tape_.matrix(x.rows, experts, wide());
  wide_copies(element() < wide() ? x.elements() : 0, 1);
  routed.tokens.assign(other_users, x);
  if (!tape_.records() || !(x.trains() || trains)) return routed;
  routed.logits.gradient = std::make_shared<PaperMemory>();
  std::vector<std::shared_ptr<PaperMemory>> users;
  for (PaperTensor& user : routed.tokens) {
    if (x.trains()) user.gradient = std::make_shared<PaperMemory>();
    if (x.trains()) users.push_back(user.gradient);
  }
  tape_.add([this, saved = input.saved_if(true), to_x = target(x), users, experts, slot = routed.logits.gradient] {
    const PaperMemory grad = *slot ? std::exchange(*slot, nullptr) : tape_.make(to_x.rows * experts * wide());
    std::vector<PaperMemory> added;
    for (const auto& user : users) added.push_back(*user ? std::exchange(*user, nullptr) : tape_.make(to_x.bytes()));
    const PaperMemory tokens = saved();
    wide_copies(to_x.elements(), element() < wide() ? 2 : 1);
    if (to_x.trains()) tape_.pass(to_x, tape_.make(to_x.bytes()));
  });
  return routed;
}

PaperOps::Routing PaperOps::route(const PaperTensor& logits, std::int64_t top_k) {
  Routing routing;
  routing.scores = tape_.matrix(logits.rows, logits.columns, wide());
  routing.experts = tape_.make(logits.rows * top_k * kIndex);
  if (!device_.kernels) tape_.ledger().touch(logits.elements() * (2 * wide() + 2 * kIndex));
  routing.weights = tape_.matrix(logits.rows, top_k, wide());
  if (!tape_.records() || !logits.trains()) return routing;
  routing.scores.gradient = std::make_shared<PaperMemory>();
  routing.weights.gradient = std::make_shared<PaperMemory>();
  tape_.add([this, to_logits = target(logits), scores = routing.scores.memory, experts = routing.experts,
             of_scores = routing.scores.gradient, of_weights = routing.weights.gradient] {
    keep(scores, experts);
    const PaperMemory scores_grad = *of_scores ? std::exchange(*of_scores, nullptr) : tape_.make(to_logits.bytes());
    const PaperMemory weights_grad = std::exchange(*of_weights, nullptr);
    wide_copies(to_logits.elements(), 2);
    tape_.pass(to_logits, tape_.make(to_logits.bytes()));
  });
  return routing;
}

PaperMemory PaperOps::expert_order(std::int64_t rows, std::int64_t experts) {
  const std::int64_t of_rows = 2 * tape_.ledger().rounded(rows * kIndex);
  if (!device_.kernels) tape_.ledger().touch(of_rows + 2 * rows * kIndex);
  return tape_.make(of_rows + tape_.ledger().rounded(experts * kIndex) + tape_.ledger().rounded(experts * kFloat));
}

PaperTensor PaperOps::permute(const PaperTensor& x, const PaperMemory& order, std::int64_t top_k) {
  return tape_.differentiable(matrix(x.rows * top_k, x.columns), x.trains(),
                              [this, order, to_x = target(x), top_k](const PaperMemory&) {
                                keep(order);
                                if (!device_.kernels) tape_.ledger().touch((top_k + 1) * to_x.bytes());
                                tape_.pass(to_x, tape_.make(to_x.bytes()));
                              });
}

PaperTensor PaperOps::unpermute(const PaperTensor& rows, const PaperMemory& order, std::int64_t top_k,
                                const PaperTensor& added) {
  if (!device_.kernels) tape_.ledger().touch(rows.bytes());
  return tape_.differentiable(matrix(rows.rows / top_k, rows.columns), rows.trains() || added.trains(),
                              [this, order, to_rows = target(rows), to_added = target(added)](const PaperMemory& grad) {
                                keep(order);
                                if (to_rows.trains()) tape_.pass(to_rows, tape_.make(to_rows.bytes()));
                                tape_.pass(to_added, grad);
                              });
}

PaperTensor PaperOps::with_aux_loss(const PaperTensor& y, const PaperTensor& scores, std::int64_t samples) {
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
  return tape_.differentiable(with_loss, true, [this, to_y = target(y), reached](const PaperMemory& grad) {
    *reached = true;
    tape_.pass(to_y, grad);
  });
}

}  // namespace braid
