#include "mimo/step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <deque>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "dist/collectives.h"
#include "dist/world.h"
#include "mimo/merge.h"
#include "nn/moe.h"
#include "ops/cross_entropy.h"
#include "plan/bridge.h"

namespace braid {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

// What this rank sends and receives at once, until it has.
struct Moving {
  std::vector<at::Tensor> tensors;
  Pending pending;
};

// A microbatch in a stage, from its first tensor to its last.
struct StageState {
  std::shared_ptr<Moving> arriving{};  // with the input or the gradient of the output
  at::Tensor loaded{};                 // of a first stage: values of media, or token ids
  at::Tensor labels{};
  at::Tensor input{};  // from the stage before; after backward, its gradient
  at::Tensor output{}, output_grad{};
};

// The embeddings of an encoder for a microbatch, on a language leader.
struct Embeddings {
  std::vector<std::shared_ptr<Moving>> arriving{};
  std::map<int, at::Tensor> parts{};  // by edge
  at::Tensor whole{};                 // all of them; after backward, their gradient
  std::size_t edges_done = 0;         // over which the gradient has gone back
};

}  // namespace

class Step::Impl {
 public:
  Impl(const MimoModel& model, const StepPlan& plan, const StepBatches& batches, const StepInput& input)
      : model_(model),
        plan_(plan),
        batches_(batches),
        input_(input),
        samples_(std::int64_t{input.micro_batch} * model.topology().language().dense.size_of("dp")),
        bridge_(model.topology(), plan.edges, samples_),
        tensor_options_(model.tensor_options()),
        states_(model.parts().size(), std::vector<StageState>(index(plan.options.microbatches))),
        embeddings_(model.topology().modules().size(), std::vector<Embeddings>(index(plan.options.microbatches))),
        participates_(embeddings_.size()),
        totals_(at::zeros({2}, tensor_options_.dtype(at::kDouble))) {}

  void run(const Op& op) {
    switch (op.kind) {
      case Op::Load: return load(op);
      case Op::Forward: return is_encoder(op.stage) ? forward_encoder(op) : forward_language(op);
      case Op::Backward: return backward(op);
      case Op::Exchange: return exchange(op.transfers);
      default: throw_check_failed(__FILE__, __LINE__, "not an op of the model");
    }
  }

  at::Tensor finish() {
    for (const auto& moving : moving_) moving->pending.wait();
    at::Tensor mixing = at::zeros({2}, totals_.options());  // load balancing loss, how many forwards it is of
    for (const auto& part : model_.parts())
      for (Moe* moe : part->language ? part->language->moe_layers() : std::vector<Moe*>()) {
        mixing[0] += moe->take_aux_loss().to(at::kDouble);
        if (part->leads) mixing[1] += plan_.options.microbatches;
      }
    return at::cat({totals_, mixing, at::tensor(participates_, at::kDouble).to(totals_.device())});
  }

 private:
  const Module& module(int m) const { return model_.topology().modules()[index(m)]; }
  bool is_encoder(const Stage& stage) const { return module(stage.module).is_encoder; }
  const Edge& edge(int e) const { return plan_.edges[index(e)]; }
  int rank() const { return model_.world().rank(); }
  at::Device device() const { return model_.world().device(); }
  bool is_trained(const Stage& stage) const { return braid::is_trained(model_.topology(), plan_.options, stage); }
  const LanguageBatch& text(int microbatch) const { return batches_.language[index(microbatch)]; }
  const EncoderBatch& media(int m, int microbatch) const { return batches_.encoders[index(m)][index(microbatch)]; }

  StageState& state(const Stage& stage, int microbatch) {
    for (std::size_t i = 0; i < states_.size(); ++i)
      if (model_.parts()[i]->stage == stage) return states_[i][index(microbatch)];
    throw_check_failed(__FILE__, __LINE__, fmt::format("stage {} is not here", stage.index));
  }

  void await(std::shared_ptr<Moving>& moving) {
    if (moving) moving->pending.wait();
    moving.reset();
  }

  // --- forwards and backwards

  void load(const Op& op) {
    const MimoModel::Part& part = model_.part(op.stage);
    StageState& s = state(op.stage, op.microbatch);
    if (!is_encoder(op.stage)) {
      const LanguageBatch& batch = text(op.microbatch);
      if (part.place.is_last())
        s.labels = own_tokens(batch.labels, part.parallel).to(device(), /*non_blocking=*/true);
      return;
    }
    const EncoderBatch& batch = media(op.stage.module, op.microbatch);
    if (batch.extents.empty()) return;
    std::int64_t rows = 0;
    for (const Extent& extent : batch.extents)
      rows += std::accumulate(extent.begin(), extent.end(), std::int64_t{1}, std::multiplies<>());
    s.loaded = part.leads ? batch.values.to(device(), /*non_blocking=*/true)
                          : at::empty({rows, features_of(part.config->model)}, batch.values.options().device(device()));
    const Group& sharers = part.parallel.tp_cp;
    if (sharers.size() > 1) sharers.broadcast(s.loaded, 0);
  }

  void forward_encoder(const Op& op) {
    const MimoModel::Part& part = model_.part(op.stage);
    StageState& s = state(op.stage, op.microbatch);
    await(s.arriving);
    const EncoderBatch& batch = media(op.stage.module, op.microbatch);
    if (part.leads && part.place.is_last() && !batch.extents.empty()) participates_[index(op.stage.module)] = 1;
    const bool trains = is_trained(op.stage);
    at::AutoGradMode grad_mode(trains);
    s.output = part.encoder->forward(part.place.is_first() ? s.loaded : s.input, batch.extents);
    s.loaded.reset();
    if (!trains) s.input.reset();
    if (!trains && part.place.is_last() && !part.leads) s.output.reset();  // nobody asks for it
  }

  void forward_language(const Op& op) {
    const MimoModel::Part& part = model_.part(op.stage);
    StageState& s = state(op.stage, op.microbatch);
    await(s.arriving);
    at::AutoGradMode grad_mode(!plan_.options.forward_only);
    const std::vector<std::int64_t>& offsets = text(op.microbatch).offsets;
    const SequenceBatch batch = {.sequences = pack_sequences(offsets, device()),
                                 .samples = input_.micro_batch,
                                 .aux_loss_scale = input_.loss_scale * static_cast<double>(offsets.back())};
    s.output = part.language->run_layers(part.place.is_first() ? merge(part, op.microbatch) : s.input, batch);
    if (!part.place.is_last()) return;
    s.output = part.language->token_losses(s.output, s.labels).sum();
    s.output_grad = at::full_like(s.output, input_.loss_scale);
    if (part.parallel.tp.rank() == 0) {  // every tp rank has the same loss; it counts once
      totals_[0] += s.output.detach();
      totals_[1] += (s.labels != kIgnoredLabel).sum();
    }
    s.labels.reset();
  }

  void backward(const Op& op) {
    StageState& s = state(op.stage, op.microbatch);
    await(s.arriving);
    if (is_encoder(op.stage)) take_gradients_within(op.stage, op.microbatch);
    // A rank that did not hear of a gradient has a replica's leader that did: every tp rank has the same output, and
    // the gradient of one of them is the whole gradient.
    if (!s.output_grad.defined()) s.output_grad = at::zeros_like(s.output);
    s.output.backward(s.output_grad);
    s = {.input = s.input.defined() ? s.input.grad() : at::Tensor()};
    if (is_encoder(op.stage) || op.stage.index > 0) return;
    for (auto& from_encoder : embeddings_)
      if (at::Tensor& whole = from_encoder[index(op.microbatch)].whole; whole.defined()) whole = whole.grad();
  }

  // --- text and embeddings

  at::Tensor merge(const MimoModel::Part& part, int microbatch) {
    const at::Tensor& all_ids = text(microbatch).ids;
    at::Tensor is_text = at::ones_like(all_ids, at::kBool);
    for (int m = 0; m < static_cast<int>(embeddings_.size()); ++m)
      if (module(m).is_encoder) is_text = is_text.logical_and(all_ids != token_of(m));
    const at::Tensor ids = all_ids.masked_fill(is_text.logical_not(), 0);
    at::Tensor merged = part.language->embed(own_tokens(ids, part.parallel).to(device()));
    for (int m = 0; m < static_cast<int>(embeddings_.size()); ++m)
      if (module(m).is_encoder)
        merged = put_rows(merged, shared_embeddings(part, m, microbatch), all_ids == token_of(m), part.parallel);
    return merged;
  }

  int token_of(int m) const { return token_id(model_.provider(), model_.encoder_config(m), std::nullopt); }

  // The embeddings of an encoder for this replica's samples, on all its ranks.
  at::Tensor shared_embeddings(const MimoModel::Part& part, int m, int microbatch) {
    at::Tensor& whole = embeddings_[index(m)][index(microbatch)].whole;
    if (part.leads) whole = gather_embeddings(m, microbatch);
    const Group& sharers = part.parallel.tp_cp;
    return sharers.size() > 1 ? broadcast(whole, 0, sharers) : whole;
  }

  // On a leader: a leaf, whose gradient goes back to the encoder.
  at::Tensor gather_embeddings(int m, int microbatch) {
    Embeddings& all = embeddings_[index(m)][index(microbatch)];
    for (auto& moving : all.arriving) await(moving);
    all.arriving.clear();
    const Stage last = {m, stage_count(module(m)) - 1};
    for (const int e : bridge_.edges_within(rank(), m)) {
      StageState& from = state(last, microbatch);
      const RowSlice slice = slice_over(e, microbatch);
      all.parts[e] = from.output.detach().narrow(0, slice.begin, slice.rows);
      if (!is_trained(last)) from.output.reset();
    }
    std::vector<at::Tensor> parts = {at::zeros({0, hidden_of(model_.provider().language)}, tensor_options_)};
    for (const int e : bridge_.edges_into(rank(), m)) parts.push_back(all.parts.at(e));
    all.parts.clear();
    return at::cat(parts).detach().requires_grad_(is_trained(last));
  }

  // Which of the encoder replica's embeddings go over an edge.
  RowSlice slice_over(int e, int microbatch) const {
    const SampleRange own = bridge_.samples_of(edge(e).from.module, edge(e).from_rank);
    const auto first = batches_.rows[index(edge(e).from.module)].begin() + microbatch * samples_ + own.begin;
    return bridge_.slice(e, {first, first + own.size()});
  }

  void take_gradients_within(const Stage& stage, int microbatch) {
    if (!model_.part(stage).place.is_last()) return;
    for (const int e : bridge_.edges_within(rank(), stage.module)) {
      put_gradient(e, microbatch, gradient_over(e, microbatch));
      forget_gradient(e, microbatch);
    }
  }

  // The gradient of the embeddings that came over an edge, on the language leader.
  at::Tensor gradient_over(int e, int microbatch) const {
    std::int64_t begin = 0;
    for (const int other : bridge_.edges_into(rank(), edge(e).from.module)) {
      if (other == e) break;
      begin += slice_over(other, microbatch).rows;
    }
    return embeddings_[index(edge(e).from.module)][index(microbatch)].whole.narrow(0, begin,
                                                                                   slice_over(e, microbatch).rows);
  }

  // Of an edge over which the gradient has gone; that of all embeddings goes with the last of their edges.
  void forget_gradient(int e, int microbatch) {
    Embeddings& all = embeddings_[index(edge(e).from.module)][index(microbatch)];
    if (++all.edges_done == bridge_.edges_into(rank(), edge(e).from.module).size()) all.whole.reset();
  }

  void put_gradient(int e, int microbatch, const at::Tensor& gradient) {
    const RowSlice slice = slice_over(e, microbatch);
    gradient_to_fill(e, microbatch).narrow(0, slice.begin, slice.rows).copy_(gradient);
  }
  at::Tensor& gradient_to_fill(int e, int microbatch) {
    StageState& from = state(edge(e).from, microbatch);
    if (!from.output_grad.defined()) from.output_grad = at::zeros_like(from.output);
    return from.output_grad;
  }

  // --- transfers

  void exchange(const std::vector<Transfer>& transfers) {
    at::NoGradGuard guard;
    // What was sent before the last exchange has been received by now, or is about to be; its memory is wanted back.
    while (moving_.size() > 1) {
      moving_.front()->pending.wait();
      moving_.pop_front();
    }
    const auto moving = std::make_shared<Moving>();
    for (const Transfer& t : transfers) moving->tensors.push_back(t.outgoing ? tensor_to_send(t) : place_for(t, moving));
    std::vector<Group::Transfer> moves;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const Edge& e = edge(transfers[i].edge);
      const int peer = e.from_rank == rank() ? e.to_rank : e.from_rank;
      if (moving->tensors[i].numel() > 0) moves.push_back({moving->tensors[i], peer, transfers[i].outgoing});
      if (transfers[i].outgoing) forget(transfers[i]);
    }
    if (!moves.empty()) moving->pending = model_.groups().world().start_exchange(moves);
    moving_.push_back(moving);
  }

  at::Tensor tensor_to_send(const Transfer& t) {
    const Edge& e = edge(t.edge);
    if (t.kind == Transfer::Gradient)
      return (e.crosses_modules() ? gradient_over(t.edge, t.microbatch) : state(e.to, t.microbatch).input).contiguous();
    const at::Tensor& output = state(e.from, t.microbatch).output;
    if (!e.crosses_modules()) return output.detach().contiguous();
    const RowSlice slice = slice_over(t.edge, t.microbatch);
    return output.detach().narrow(0, slice.begin, slice.rows).contiguous();
  }

  // Where a tensor that comes in goes; whoever reads it waits for it there.
  at::Tensor place_for(const Transfer& t, const std::shared_ptr<Moving>& moving) {
    const Edge& e = edge(t.edge);
    if (t.kind == Transfer::Gradient) {
      StageState& from = state(e.from, t.microbatch);
      from.arriving = moving;
      if (!e.crosses_modules()) return from.output_grad = at::empty_like(from.output);
      const RowSlice slice = slice_over(t.edge, t.microbatch);
      return gradient_to_fill(t.edge, t.microbatch).narrow(0, slice.begin, slice.rows);
    }
    if (e.crosses_modules()) {
      Embeddings& all = embeddings_[index(e.from.module)][index(t.microbatch)];
      all.arriving.push_back(moving);
      return all.parts[t.edge] = at::empty(
                 {slice_over(t.edge, t.microbatch).rows, hidden_of(model_.provider().language)}, tensor_options_);
    }
    StageState& to = state(e.to, t.microbatch);
    to.arriving = moving;
    to.input = at::empty({rows_between_stages(e.to, t.microbatch), width_between_stages(e.to)}, tensor_options_)
                   .requires_grad_(is_trained(e.from));
    return to.input.detach();
  }

  std::int64_t rows_between_stages(const Stage& to, int microbatch) const {
    if (!is_encoder(to)) return own_rows_of(text(microbatch).offsets.back(), model_.part(to).parallel);
    std::int64_t rows = 0;
    for (const Extent& extent : media(to.module, microbatch).extents)
      rows += hidden_rows_of(model_.encoder_config(to.module).model, extent);
    return rows;
  }
  std::int64_t width_between_stages(const Stage& to) const {
    return is_encoder(to) ? hidden_of(model_.encoder_config(to.module).model) : hidden_of(model_.provider().language);
  }

  // What is sent and needed no more here: a gradient, or the output of a stage that does not train.
  void forget(const Transfer& t) {
    const Edge& e = edge(t.edge);
    if (t.kind == Transfer::Gradient && e.crosses_modules())
      forget_gradient(t.edge, t.microbatch);
    else if (t.kind == Transfer::Gradient)
      state(e.to, t.microbatch).input.reset();
    else if (!is_trained(e.from) && bridge_.edges_within(rank(), e.from.module).empty() && is_last_use(t))
      state(e.from, t.microbatch).output.reset();
  }
  // An encoder's output may go to several language replicas in one exchange.
  bool is_last_use(const Transfer& t) const {
    for (int other = t.edge + 1; other < static_cast<int>(plan_.edges.size()); ++other)
      if (edge(other).from_rank == rank() && edge(other).from == edge(t.edge).from) return false;
    return true;
  }

  const MimoModel& model_;
  const StepPlan& plan_;
  const StepBatches& batches_;
  const StepInput input_;
  const std::int64_t samples_;  // of a microbatch, over all language replicas
  const Bridge bridge_;
  const at::TensorOptions tensor_options_;
  std::vector<std::vector<StageState>> states_;      // by part of the model and microbatch
  std::vector<std::vector<Embeddings>> embeddings_;  // by encoder module and microbatch, on a language leader
  std::deque<std::shared_ptr<Moving>> moving_;       // oldest first
  std::vector<double> participates_;                 // by module: 1 on the leader of a replica that had anything to see
  at::Tensor totals_;                                // loss sum, counted tokens
};

StepPlan::StepPlan(const Topology& topology, const ScheduleOptions& options)
    : options(options), edges(make_edges(topology)), schedule(verified_schedule(topology, options)) {}

Step::Step(const MimoModel& model, const StepPlan& plan, const StepBatches& batches, const StepInput& input)
    : impl_(std::make_unique<Impl>(model, plan, batches, input)) {}
Step::~Step() = default;
void Step::run(const Op& op) { impl_->run(op); }
at::Tensor Step::finish() { return impl_->finish(); }

StepTotals::StepTotals(std::span<const double> sums)
    : loss_sum(sums[0]), num_tokens(sums[1]), participants(sums.begin() + 4, sums.end()) {
  if (sums[3] > 0) load_balancing_loss = sums[2] / sums[3];
}

}  // namespace braid
