#include "nn/linear.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include "base/error.h"
#include "ops/experts_fp8.h"
#include "ops/linear.h"
#include "ops/rows.h"

namespace braid {
namespace {

Recomputable gathered(const Recomputable& x, const Parallel& parallel) {
  return x.then([&parallel](const at::Tensor& own) { return gather_sequence(own, parallel); });
}

// The pieces of a sequence of which every rank holds `rows` rows.
class SequencePieces {
 public:
  SequencePieces(std::int64_t rows, const Parallel& parallel)
      : tp_(parallel.tp), rows_(rows), count_(std::min<std::int64_t>(parallel.overlap.tp_pieces, rows)) {}

  const Group& tp() const { return tp_; }
  std::int64_t count() const { return count_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t all_rows() const { return rows_ * tp_.size(); }
  // The rows of a piece in this rank's share, and in the shares of all ranks; both are views.
  at::Tensor of_own(const at::Tensor& own, std::int64_t piece) const {  // [t, F] -> [m, F]
    return own.narrow(0, begin(piece), begin(piece + 1) - begin(piece));
  }
  at::Tensor of_all(const at::Tensor& all, std::int64_t piece) const {  // [tp t, F] -> [tp, m, F]
    return all.unflatten(0, {tp_.size(), rows_}).narrow(1, begin(piece), begin(piece + 1) - begin(piece));
  }

  // Copies a gathered piece to its rows of all, with one contiguous copy per rank: they are as fast as memory, one copy
  // of strided rows is not.
  void put(const at::Tensor& all, std::int64_t piece, const at::Tensor& gathered) const {
    const at::Tensor rows = of_all(all, piece);
    for (std::int64_t rank = 0; rank < tp_.size(); ++rank) rows.select(0, rank).copy_(gathered.select(0, rank));
  }

 private:
  std::int64_t begin(std::int64_t piece) const { return rows_ * piece / count_; }

  Group tp_;
  std::int64_t rows_, count_;
};

at::Tensor empty_rows(std::int64_t rows, std::int64_t features, const at::Tensor& like) {
  return at::empty({rows, features}, like.options().requires_grad(false));
}

// The pieces of all ranks' shares. All gathers start at once: one that starts later would wait for the products that
// the device has been given before it.
class GatheredPieces {
 public:
  GatheredPieces(const at::Tensor& own, const SequencePieces& pieces) : ranks_(pieces.tp().size()) {
    for (std::int64_t i = 0; i < pieces.count(); ++i) {
      const at::Tensor sent = pieces.of_own(own, i);
      gathered_.push_back(empty_rows(pieces.tp().size() * sent.size(0), sent.size(1), sent));
      pending_.push_back(pieces.tp().start_all_gather(gathered_.back(), sent));
    }
  }

  at::Tensor take(std::int64_t piece) {  // [tp, m, F]
    pending_[piece].wait();
    const at::Tensor rows = std::exchange(gathered_[piece], {});
    return rows.unflatten(0, {ranks_, rows.size(0) / ranks_});
  }

 private:
  std::int64_t ranks_;
  Tensors gathered_;
  std::vector<Pending> pending_;
};

// The sums over all ranks of what each has for the whole sequence; a rank gets those of its share.
class ScatteredPieces {
 public:
  ScatteredPieces(at::Tensor own, const SequencePieces& pieces) : own_(std::move(own)), pieces_(pieces) {}

  void start(std::int64_t piece, const at::Tensor& partial) {  // [tp, m, F]
    at::Tensor sum = pieces_.of_own(own_, piece);
    pending_.push_back(pieces_.tp().start_reduce_scatter(sum, partial.flatten(0, 1)));
  }

  at::Tensor await() {  // [t, F]
    for (Pending& pending : pending_) pending.wait();
    return own_;
  }

 private:
  at::Tensor own_;
  const SequencePieces& pieces_;
  std::vector<Pending> pending_;
};

// In fp8 a product has a place of its own.   rows: [tp m, F], into: [tp, m, F] or undefined
at::Tensor put_piece(const at::Tensor& rows, std::int64_t ranks, at::Tensor into) {
  const at::Tensor piece = rows.unflatten(0, {ranks, rows.size(0) / ranks});
  return into.defined() ? into.copy_(piece) : piece;
}

// The outputs of a piece, and the gradients of its inputs, in a new tensor if there is none to write them into. The
// pieces of a tensor of all rows are one batched product: [tp, m, features].
at::Tensor outputs_of(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const LinearNeeds& needs,
                      const at::Tensor& into = {}) {
  if (!weight.fp8) return products(x, weight.value.flatten(1).t(), bias, into);
  const auto y = linear_fp8_forward(x.flatten(0, 1), weight, bias, needs, /*weight_wants_gradient=*/false);
  return put_piece(y.output, x.size(0), into);
}

at::Tensor input_gradients_of(const at::Tensor& grad, const Weight& weight, const at::Tensor& into = {}) {
  if (!weight.fp8) return products(grad, weight.value.flatten(1), {}, into);
  return put_piece(linear_fp8_backward(grad.flatten(0, 1), {}, weight, {.x_grad = true})[0], grad.size(0), into);
}

// What the weight's gradient needs of all rows of the input: themselves, or their columns in fp8. Undefined: it is not
// kept.
struct KeptInput {
  at::Tensor rows{};
  Fp8Matrix columns{};
};

KeptInput kept_for(const Weight& weight, const at::Tensor& rows) {
  if (weight.fp8 && rows.defined()) return {.columns = quantize(rows, {.columns = true}).columns};
  return {.rows = rows};
}

// The gradients of a map's input, which a caller adds, its weight and its bias.
Tensors weight_gradients(const at::Tensor& grad, const KeptInput& kept, const Weight& weight, bool bias_grad) {
  const LinearNeeds needs = {.x_grad = false, .bias_grad = bias_grad};
  return weight.fp8 ? linear_fp8_backward(grad, kept.columns, weight, needs)
                    : linear_backward(grad, kept.rows, weight, needs);
}

std::int64_t outputs(const Weight& weight) { return weight.value.size(0); }
std::int64_t inputs(const Weight& weight) { return weight.value.numel() / weight.value.size(0); }

OutputAndSaved<KeptInput> gathered_forward(const at::Tensor& x, const Weight& weight, const at::Tensor& bias,
                                           const LinearNeeds& needs, bool keeps_input, const SequencePieces& pieces) {
  GatheredPieces arriving(x.contiguous(), pieces);
  if (pieces.count() == 1) {  // which is in the order of the tokens
    const at::Tensor all = arriving.take(0);
    return {outputs_of(all, weight, bias, needs).flatten(0, 1),
            kept_for(weight, keeps_input ? all.flatten(0, 1) : at::Tensor())};
  }
  const at::Tensor y = empty_rows(pieces.all_rows(), outputs(weight), x);
  const at::Tensor all = keeps_input ? empty_rows(pieces.all_rows(), inputs(weight), x) : at::Tensor();
  for (std::int64_t i = 0; i < pieces.count(); ++i) {
    const at::Tensor piece = arriving.take(i);
    outputs_of(piece, weight, bias, needs, pieces.of_all(y, i));
    if (all.defined()) pieces.put(all, i, piece);
  }
  return {y, kept_for(weight, all)};
}

// again(): this rank's rows of an input that is not kept, which are gathered again; may be empty.
Tensors gathered_backward(const at::Tensor& grad, KeptInput kept, const Recomputable::Function& again,
                          const Weight& weight, const LinearNeeds& needs, const SequencePieces& pieces) {
  Pending input;
  if (again) {
    kept.rows = empty_rows(pieces.all_rows(), inputs(weight), grad);
    input = pieces.tp().start_all_gather(kept.rows, again().contiguous());
  }
  ScatteredPieces x_grad(needs.x_grad ? empty_rows(pieces.rows(), inputs(weight), grad) : at::Tensor(), pieces);
  if (needs.x_grad)
    for (std::int64_t i = 0; i < pieces.count(); ++i)
      x_grad.start(i, input_gradients_of(pieces.of_all(grad, i), weight));
  input.wait();
  Tensors grads = weight_gradients(grad, kept, weight, needs.bias_grad);
  grads[0] = x_grad.await();
  return grads;
}

at::Tensor scattered_forward(const at::Tensor& x, const Weight& weight, const LinearNeeds& needs,
                             const SequencePieces& pieces) {
  ScatteredPieces y(empty_rows(pieces.rows(), outputs(weight), x), pieces);
  for (std::int64_t i = 0; i < pieces.count(); ++i) y.start(i, outputs_of(pieces.of_all(x, i), weight, {}, needs));
  return y.await();
}

Tensors scattered_backward(const at::Tensor& grad, const Recomputable::Function& input, KeptInput kept, bool trains,
                           const Weight& weight, const LinearNeeds& needs, const SequencePieces& pieces) {
  GatheredPieces arriving(grad.contiguous(), pieces);
  const at::Tensor x_grad = needs.x_grad ? empty_rows(pieces.all_rows(), inputs(weight), grad) : at::Tensor();
  const at::Tensor all = trains ? empty_rows(pieces.all_rows(), outputs(weight), grad) : at::Tensor();
  for (std::int64_t i = 0; i < pieces.count(); ++i) {
    const at::Tensor piece = arriving.take(i);
    if (needs.x_grad) input_gradients_of(piece, weight, pieces.of_all(x_grad, i));
    if (trains) pieces.put(all, i, piece);
  }
  kept.rows = input();
  Tensors grads = weight_gradients(all, kept, weight, /*bias_grad=*/false);
  grads[0] = x_grad;
  return grads;
}

}  // namespace

bool is_cut(std::int64_t rows, const Parallel& parallel) {
  return parallel.sequence_parallel && std::min<std::int64_t>(parallel.overlap.tp_pieces, rows) > 1;
}

at::Tensor gather_and_multiply(const Recomputable& x, const Weight& weight, const at::Tensor& bias,
                               const Parallel& parallel) {
  BRAID_CHECK_EQ(x.value.dim(), 2, "x of a linear map is [tokens, features]");
  const SequencePieces pieces(x.value.size(0), parallel);
  const LinearNeeds needs = {x.value.requires_grad(), bias.defined() && bias.requires_grad()};
  const bool trains = needs_gradient({weight.value}), gathers_again = trains && x.again && !weight.fp8;
  return differentiable(
      "GatherAndMultiplyBackward", {x.value, weight.value, bias},
      [&] { return gathered_forward(x.value, weight, bias, needs, trains && !gathers_again, pieces); },
      [again = gathers_again ? x.saved_if(true) : nullptr, weight, needs, pieces](const at::Tensor& grad,
                                                                                  const KeptInput& kept) {
        return gathered_backward(grad, kept, again, weight, needs, pieces);
      });
}

at::Tensor multiply_and_scatter(const Recomputable& x, const Weight& weight, const Parallel& parallel, Result result) {
  BRAID_CHECK_EQ(x.value.dim(), 2, "x of a linear map is [tokens, features]");
  BRAID_CHECK_EQ(x.value.size(0) % parallel.tp.size(), 0, "rows to split over {}", parallel.tp.name());
  const SequencePieces pieces(x.value.size(0) / parallel.tp.size(), parallel);
  const LinearNeeds needs = {.x_grad = x.value.requires_grad()};
  const bool trains = needs_gradient({weight.value});
  return differentiable(
      "MultiplyAndScatterBackward", {x.value, weight.value, at::Tensor()},
      [&] {
        const at::Tensor y = result == Result::Needed ? scattered_forward(x.value, weight, needs, pieces)
                                                      : empty_rows(pieces.rows(), outputs(weight), x.value);
        return OutputAndSaved<KeptInput>{y,
                                         weight.fp8 ? kept_for(weight, trains ? x.value : at::Tensor()) : KeptInput{}};
      },
      [input = x.saved_if(trains && !weight.fp8), trains, weight, needs, pieces](const at::Tensor& grad,
                                                                                 const KeptInput& kept) {
        return scattered_backward(grad, input, kept, trains, weight, needs, pieces);
      });
}

at::Tensor Linear::operator()(const Recomputable& x) const {
  if (split_ == Split::Columns) {
    // A whole map in fp8 reads a factor once for both of its forms; its communication is not hidden.
    const bool in_one_piece = parallel_->sequence_parallel && x.value.size(0) > 0 && !weight_.fp8;
    return in_one_piece || is_cut(x.value.size(0), *parallel_) ? gather_and_multiply(x, weight_, bias_, *parallel_)
                                                               : linear(gathered(x, *parallel_), weight_, bias_);
  }
  if (parallel_->tp.size() == 1) return linear(x, weight_, bias_);  // the product adds the bias
  return branch(x).value();
}

Branch Linear::branch(const Recomputable& x, Result result) const {
  BRAID_CHECK(split_ == Split::Rows, "only a map of all ranks' features gives a branch");
  if (is_cut(x.value.size(0) / parallel_->tp.size(), *parallel_))
    return {multiply_and_scatter(x, weight_, *parallel_, result), bias_};
  return {reduce_to_sequence(linear(x, weight_, {}, result), *parallel_, result), bias_};
}

Branch Linear::gelu_branch(const Recomputable& x, const Linear& fc1, const Linear& fc2, Activation form,
                           bool recomputed, Result output) {
  if (is_cut(x.value.size(0), *fc1.parallel_)) {  // a piece's product cannot include the GELU
    const at::Tensor inner = fc1(x);
    return fc2.branch(recomputable([inner, form] { return activation(inner, form); }, recomputed), output);
  }
  const Recomputable input = gathered(x, *fc1.parallel_);
  LinearAndGelu result;
  Recomputable::Function again;
  if (recomputed) {  // from `inner`, which is rounded: the value that backward gets must be the one used here
    result.inner = linear(input, fc1.weight_, fc1.bias_);
    again = [inner = result.inner.detach(), form] { return activation_forward(inner, form); };
    result.activated = again();
  } else {
    result = linear_with_gelu(input, fc1.weight_, fc1.bias_, form);
  }
  const at::Tensor y = linear_of_gelu(result.inner, {result.activated, again}, form, fc2.weight_, {}, output);
  return {reduce_to_sequence(y, *fc2.parallel_, output), fc2.bias_};
}

at::Tensor Linear::of_rows(const at::Tensor& x, const at::Tensor& rows) const {
  BRAID_CHECK(split_ == Split::Columns, "only a map of whole tokens has rows to leave out");
  return linear(select_rows(gather_sequence(x, *parallel_), rows), weight_, bias_);
}

at::Tensor embed(const at::Tensor& ids, const Weight& weight, const Parallel& parallel) {
  return reduce_to_sequence(embedding(ids, weight, {parallel.tp.rank(), parallel.tp.size()}), parallel);
}

GroupedLinear::GroupedLinear(const Parameters& parameters, const std::string& prefix, Split split, int pieces)
    : weight_(parameters.weight(prefix + "weight")) {
  weight_.gradient_parts = pieces;
  const ParamSpec& spec = parameters.spec(prefix + "weight");
  BRAID_CHECK(spec.expert && spec.tp_dim == (split == Split::Columns ? 1 : 2), "{} is not split as its layer",
              spec.name);
}

at::Tensor GroupedLinear::operator()(const Recomputable& rows, const ExpertRows& experts, Result result) const {
  return weight_.fp8 ? grouped_linear_fp8(rows.value, weight_, experts, result)
                     : grouped_linear(rows, weight_, experts, result);
}

}  // namespace braid
