#include "mimo/step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "dist/collectives.h"
#include "dist/world.h"
#include "mimo/bridge.h"
#include "mimo/merge.h"
#include "nn/moe.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::vector<std::int64_t> to_vector(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  return {host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel()};
}

// What a microbatch has left in a stage until it is needed again.
struct StageState {
  at::Tensor input{};  // from the stage before; after backward, its gradient
  at::Tensor output{}, output_grad{};
  std::vector<std::int64_t> counts{};  // of an encoder: rows that each sample of this replica becomes
};

// What a language leader has of an encoder's rows for a microbatch.
struct EncoderRows {
  std::map<int, std::vector<std::int64_t>> counts{};  // by edge: rows of each sample
  std::map<int, at::Tensor> parts{};                  // by edge
  at::Tensor rows{};                                  // all of them; after backward, their gradient
  std::size_t edges_done = 0;                         // over which the gradient has gone back
};

// The samples of one language replica, end to end.
struct Texts {
  std::vector<at::Tensor> ids;  // by sample
  at::Tensor all_ids, all_labels;
  std::vector<std::int64_t> offsets = {0};
};

class Step {
 public:
  Step(const MimoModel& model, const StepPlan& plan, const StepInput& input)
      : model_(model),
        plan_(plan),
        input_(input),
        samples_(std::int64_t{input.micro_batch} * model.topology().language().dense.size_of("dp")),
        bridge_(model.topology(), plan.edges, samples_),
        options_(model.tensor_options()),
        states_(model.topology().modules().size(), std::vector<StageState>(index(plan.options.microbatches))),
        texts_(index(plan.options.microbatches)),
        arrived_(states_.size(), std::vector<EncoderRows>(index(plan.options.microbatches))),
        participates_(states_.size()),
        totals_(at::zeros({2}, options_.dtype(at::kDouble))) {}

  void run(StepObserver& observer) {
    for (const Op& op : plan_.schedule.ranks[index(rank())]) {
      if (op.kind == Op::Forward && op.microbatch == 0) observer.before_first_forward(op.module);
      if (op.kind == Op::Backward && op.microbatch + 1 == plan_.options.microbatches)
        observer.before_last_backward(op.module);
      const auto scope = observer.around(op);
      run(op);
    }
  }

  StepTotals totals() {
    at::Tensor mixing = at::zeros({2}, totals_.options());  // load balancing loss, how many forwards it is of
    const MimoModel::Part* part = model_.part(language());
    for (Moe* moe : part ? part->language->moe_layers() : std::vector<Moe*>()) {
      mixing[0] += moe->take_aux_loss().to(at::kDouble);
      if (part->leads) mixing[1] += plan_.options.microbatches;
    }
    at::Tensor all = at::cat({totals_, mixing, at::tensor(participates_, at::kDouble).to(totals_.device())});
    model_.groups().world().all_reduce(all);
    all = all.cpu();
    const double* values = all.data_ptr<double>();
    StepTotals totals = {.loss_sum = values[0], .num_tokens = values[1]};
    if (values[3] > 0) totals.load_balancing_loss = values[2] / values[3];
    totals.participants.assign(values + 4, values + all.numel());
    return totals;
  }

 private:
  const Module& module(int m) const { return model_.topology().modules()[index(m)]; }
  int language() const { return static_cast<int>(&model_.topology().language() - model_.topology().modules().data()); }
  const Edge& edge(int e) const { return plan_.edges[index(e)]; }
  int rank() const { return model_.world().rank(); }
  at::Device device() const { return model_.world().device(); }
  std::int64_t first_of(int microbatch) const { return input_.first_sample + microbatch * samples_; }
  StageState& state(int m, int microbatch) { return states_[index(m)][index(microbatch)]; }
  bool is_trained(int m, int stage) const { return braid::is_trained(model_.topology(), plan_.options, m, stage); }

  void run(const Op& op) {
    if (op.kind == Op::Exchange)
      exchange(op.transfers);
    else if (op.kind == Op::Forward)
      module(op.module).is_encoder ? forward_encoder(op.module, op.microbatch) : forward_language(op.microbatch);
    else
      backward(op.module, op.microbatch);
  }

  void backward(int m, int microbatch) {
    StageState& s = state(m, microbatch);
    if (module(m).is_encoder) take_gradients_within(m, microbatch);
    // A rank that did not hear of a gradient has a replica's leader that did: every tp rank has the same output, and
    // the gradient of one of them is the whole gradient.
    if (!s.output_grad.defined()) s.output_grad = at::zeros_like(s.output);
    s.output.backward(s.output_grad);
    s = {.input = s.input.defined() ? s.input.grad() : at::Tensor(), .counts = s.counts};
    for (auto& from_encoder : arrived_)
      if (m == language() && from_encoder[index(microbatch)].rows.defined())
        from_encoder[index(microbatch)].rows = from_encoder[index(microbatch)].rows.grad();
  }

  // --- encoders

  void forward_encoder(int m, int microbatch) {
    const MimoModel::Part& part = *model_.part(m);
    StageState& s = state(m, microbatch);
    const SampleRange mine = bridge_.samples_of(m, rank());
    std::vector<MediaItem> items;
    for (std::int64_t sample = mine.begin; sample < mine.end; ++sample) {
      s.counts.push_back(0);
      for (MediaItem& item : input_.data.media(part.config->name, first_of(microbatch) + sample)) {
        s.counts.back() += rows_of(*part.config, item.extent);
        items.push_back(std::move(item));
      }
    }
    if (part.leads && part.place.is_last() && !items.empty()) participates_[index(m)] = 1;
    const bool trains = is_trained(m, part.place.stage);
    at::AutoGradMode grad_mode(trains);
    s.output = part.encoder->forward(s.input, items);
    if (!trains) s.input.reset();
    if (!trains && part.place.is_last() && !part.leads) s.output.reset();  // nobody asks for it
  }

  // --- the language model

  const Texts& texts_of(int microbatch) {
    std::optional<Texts>& known = texts_[index(microbatch)];
    if (known) return *known;
    Texts& texts = known.emplace();
    const SampleRange mine = bridge_.samples_of(language(), rank());
    std::vector<at::Tensor> labels;
    for (std::int64_t sample = mine.begin; sample < mine.end; ++sample) {
      const Tokens tokens = input_.data.tokens(first_of(microbatch) + sample);
      texts.ids.push_back(tokens.ids);
      labels.push_back(tokens.labels);
      texts.offsets.push_back(texts.offsets.back() + tokens.ids.size(0));
    }
    texts.all_ids = at::cat(texts.ids);
    texts.all_labels = at::cat(labels);
    return texts;
  }

  void forward_language(int microbatch) {
    const MimoModel::Part& part = *model_.part(language());
    StageState& s = state(language(), microbatch);
    const Texts texts = texts_of(microbatch);
    texts_[index(microbatch)].reset();
    const SequenceBatch batch = {.sequences = pack_sequences(texts.offsets, device()),
                                 .samples = input_.micro_batch,
                                 .aux_loss_scale = input_.loss_scale * static_cast<double>(texts.offsets.back())};
    at::Tensor x = part.place.is_first() ? merge(microbatch, texts) : s.input;
    s.output = part.language->run_layers(x, batch);
    if (!part.place.is_last()) return;
    const at::Tensor labels = own_tokens(texts.all_labels, part.parallel);
    s.output = part.language->token_losses(s.output, labels.to(device())).sum();
    s.output_grad = at::full_like(s.output, input_.loss_scale);
    if (part.parallel.tp.rank() != 0) return;  // every tp rank has the same loss; it counts once
    totals_[0] += s.output.detach();
    totals_[1] += (labels != kIgnoredLabel).sum();
  }

  at::Tensor merge(int microbatch, const Texts& texts) {
    const MimoModel::Part& part = *model_.part(language());
    at::Tensor is_text = at::ones_like(texts.all_ids, at::kBool);
    for (int m = 0; m < static_cast<int>(states_.size()); ++m)
      if (module(m).is_encoder) is_text = is_text.logical_and(texts.all_ids != token_of(m));
    const at::Tensor ids = texts.all_ids.masked_fill(is_text.logical_not(), 0);
    at::Tensor merged = part.language->embed(own_tokens(ids, part.parallel).to(device()));
    for (int m = 0; m < static_cast<int>(states_.size()); ++m)
      if (module(m).is_encoder)
        merged = put_rows(merged, shared_rows(m, microbatch, texts), texts.all_ids == token_of(m), part.parallel);
    return merged;
  }

  int token_of(int m) const { return token_id(model_.provider(), model_.encoder_config(m), std::nullopt); }

  // The rows of an encoder for this replica's samples, on all its ranks.
  at::Tensor shared_rows(int m, int microbatch, const Texts& texts) {
    const MimoModel::Part& part = *model_.part(language());
    at::Tensor& rows = arrived_[index(m)][index(microbatch)].rows;
    if (part.leads) rows = gather_rows(m, microbatch, texts);
    const Group& sharers = part.parallel.tp_cp;
    return sharers.size() > 1 ? broadcast(rows, 0, sharers) : rows;
  }

  // On a leader: a leaf, whose gradient goes back to the encoder.
  at::Tensor gather_rows(int m, int microbatch, const Texts& texts) {
    EncoderRows& arrived = arrived_[index(m)][index(microbatch)];
    take_rows_within(m, microbatch);
    std::vector<at::Tensor> parts = {at::zeros({0, hidden_of(model_.provider().language)}, options_)};
    std::vector<std::int64_t> counts;
    for (const int e : bridge_.edges_into(rank(), m)) {
      counts.insert(counts.end(), arrived.counts.at(e).begin(), arrived.counts.at(e).end());
      parts.push_back(arrived.parts.at(e));
    }
    check_counts(m, microbatch, texts, counts);
    arrived.parts.clear();
    return at::cat(parts).detach().requires_grad_(is_trained(m, module(m).dense.size_of("pp") - 1));
  }

  void check_counts(int m, int microbatch, const Texts& texts, const std::vector<std::int64_t>& counts) const {
    const std::int64_t first = first_of(microbatch) + bridge_.samples_of(language(), rank()).begin;
    const std::string& name = module(m).name;
    for (std::size_t i = 0; i < texts.ids.size(); ++i) {
      const auto tokens = (texts.ids[i] == token_of(m)).sum().item<std::int64_t>();
      if (tokens == counts[i]) continue;
      throw DataError(fmt::format("sample {} has {} tokens for {}, but what its encoder looks at gives {} rows",
                                  first + static_cast<std::int64_t>(i), tokens, name, counts[i]));
    }
  }

  // --- between modules

  // Over edges that begin and end here.
  void take_rows_within(int m, int microbatch) {
    for (const int e : bridge_.edges_within(rank(), m)) {
      StageState& from = state(m, microbatch);
      const RowSlice slice = bridge_.slice(e, from.counts);
      arrived_[index(m)][index(microbatch)].counts[e] = slice.counts;
      arrived_[index(m)][index(microbatch)].parts[e] = from.output.detach().narrow(0, slice.begin, slice.rows);
      if (!is_trained(m, model_.part(m)->place.stage)) from.output.reset();
    }
  }
  void take_gradients_within(int m, int microbatch) {
    for (const int e : bridge_.edges_within(rank(), m)) {
      put_gradient(e, microbatch, gradient_over(e, microbatch));
      forget_gradient(e, microbatch);
    }
  }

  // The gradient of the rows that came over an edge, on the language leader.
  at::Tensor gradient_over(int e, int microbatch) const {
    const EncoderRows& arrived = arrived_[index(edge(e).from_module)][index(microbatch)];
    std::int64_t begin = 0;
    for (const int other : bridge_.edges_into(rank(), edge(e).from_module)) {
      if (other == e) break;
      begin += sum(arrived.counts.at(other));
    }
    return arrived.rows.narrow(0, begin, sum(arrived.counts.at(e)));
  }

  // Of an edge over which the gradient has gone; that of all rows goes with the last of their edges.
  void forget_gradient(int e, int microbatch) {
    EncoderRows& arrived = arrived_[index(edge(e).from_module)][index(microbatch)];
    if (++arrived.edges_done == arrived.counts.size()) arrived.rows.reset();
  }

  void put_gradient(int e, int microbatch, const at::Tensor& gradient) {
    StageState& from = state(edge(e).from_module, microbatch);
    if (!from.output_grad.defined()) from.output_grad = at::zeros_like(from.output);
    const RowSlice slice = bridge_.slice(e, from.counts);
    from.output_grad.narrow(0, slice.begin, slice.rows).copy_(gradient);
  }

  // --- transfers

  // Counts first, which are small and whose number both sides know; then the rows.
  void exchange(const std::vector<Transfer>& transfers) {
    at::NoGradGuard guard;
    std::vector<at::Tensor> headers, payloads;
    for (const Transfer& t : transfers) headers.push_back(t.outgoing ? header_to_send(t) : empty_header(t));
    move(transfers, headers);
    std::vector<std::vector<std::int64_t>> counts;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      counts.push_back(transfers[i].outgoing ? std::vector<std::int64_t>() : to_vector(headers[i]));
      payloads.push_back(transfers[i].outgoing ? payload_to_send(transfers[i]).contiguous()
                                               : empty_payload(transfers[i], counts[i]));
    }
    move(transfers, payloads);
    for (std::size_t i = 0; i < transfers.size(); ++i)
      transfers[i].outgoing ? forget(transfers[i]) : take(transfers[i], counts[i], payloads[i]);
  }

  void move(const std::vector<Transfer>& transfers, std::vector<at::Tensor>& tensors) const {
    std::vector<Group::Transfer> moves;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const Edge& e = edge(transfers[i].edge);
      const int peer = e.from_rank == rank() ? e.to_rank : e.from_rank;
      if (tensors[i].numel() > 0) moves.push_back({tensors[i], peer, transfers[i].outgoing});
    }
    if (!moves.empty()) model_.groups().world().exchange(moves);
  }

  // Rows that come, by sample or in all; nothing where the receiver knows.
  std::int64_t header_size(const Transfer& t) const {
    if (t.kind == Transfer::Gradient || edge(t.edge).from_module == language()) return 0;
    return edge(t.edge).crosses_modules() ? bridge_.shared_samples(t.edge).size() : 1;
  }
  at::Tensor empty_header(const Transfer& t) const {
    return at::zeros({header_size(t)}, at::TensorOptions(at::kLong).device(device()));
  }
  at::Tensor header_to_send(const Transfer& t) {
    if (header_size(t) == 0) return empty_header(t);
    const StageState& from = state(edge(t.edge).from_module, t.microbatch);
    const std::vector<std::int64_t> counts = edge(t.edge).crosses_modules()
                                                 ? bridge_.slice(t.edge, from.counts).counts
                                                 : std::vector<std::int64_t>{from.output.size(0)};
    return at::tensor(counts, at::kLong).to(device());
  }

  at::Tensor payload_to_send(const Transfer& t) {
    const Edge& e = edge(t.edge);
    if (t.kind == Transfer::Gradient)
      return e.crosses_modules() ? gradient_over(t.edge, t.microbatch) : state(e.to_module, t.microbatch).input;
    const StageState& from = state(e.from_module, t.microbatch);
    if (!e.crosses_modules()) return from.output;
    const RowSlice slice = bridge_.slice(t.edge, from.counts);
    return from.output.narrow(0, slice.begin, slice.rows);
  }

  at::Tensor empty_payload(const Transfer& t, const std::vector<std::int64_t>& counts) {
    const Edge& e = edge(t.edge);
    const StageState& from = state(e.from_module, t.microbatch);
    if (t.kind == Transfer::Gradient) {
      const std::int64_t rows = e.crosses_modules() ? bridge_.slice(t.edge, from.counts).rows : from.output.size(0);
      return at::empty({rows, from.output.size(1)}, options_);
    }
    if (module(e.to_module).is_encoder)
      return at::empty({sum(counts), hidden_of(model_.encoder_config(e.to_module).model)}, options_);
    const std::int64_t rows =
        e.crosses_modules() ? sum(counts)
                            : own_rows_of(texts_of(t.microbatch).offsets.back(), model_.part(e.to_module)->parallel);
    return at::empty({rows, hidden_of(model_.provider().language)}, options_);
  }

  // What was sent and is needed no more: a gradient, or the output of a stage that does not train.
  void forget(const Transfer& t) {
    const Edge& e = edge(t.edge);
    const int stage = module(e.from_module).dense.coord(e.from_rank, "pp");
    if (t.kind == Transfer::Gradient && e.crosses_modules())
      forget_gradient(t.edge, t.microbatch);
    else if (t.kind == Transfer::Gradient)
      state(e.to_module, t.microbatch).input.reset();
    else if (!is_trained(e.from_module, stage) && bridge_.edges_within(rank(), e.from_module).empty())
      state(e.from_module, t.microbatch).output.reset();
  }

  void take(const Transfer& t, const std::vector<std::int64_t>& counts, const at::Tensor& payload) {
    const Edge& e = edge(t.edge);
    if (e.crosses_modules() && t.kind == Transfer::Gradient) return put_gradient(t.edge, t.microbatch, payload);
    if (e.crosses_modules()) {
      EncoderRows& arrived = arrived_[index(e.from_module)][index(t.microbatch)];
      arrived.counts[t.edge] = counts;
      arrived.parts[t.edge] = payload;
    } else if (t.kind == Transfer::Gradient) {
      state(e.from_module, t.microbatch).output_grad = payload;
    } else {
      const int stage = module(e.from_module).dense.coord(e.from_rank, "pp");
      state(e.to_module, t.microbatch).input = at::Tensor(payload).requires_grad_(is_trained(e.from_module, stage));
    }
  }

  const MimoModel& model_;
  const StepPlan& plan_;
  const StepInput& input_;
  const std::int64_t samples_;  // of a microbatch, over all language replicas
  const Bridge bridge_;
  const at::TensorOptions options_;
  std::vector<std::vector<StageState>> states_;    // by module and microbatch
  std::vector<std::optional<Texts>> texts_;        // by microbatch, until its forward
  std::vector<std::vector<EncoderRows>> arrived_;  // by encoder module and microbatch, on a language leader
  std::vector<double> participates_;               // by module: 1 on the leader of a replica that had anything to see
  at::Tensor totals_;                              // loss sum, counted tokens
};

}  // namespace

StepPlan::StepPlan(const Topology& topology, const ScheduleOptions& options)
    : options(options), edges(make_edges(topology)), schedule(verified_schedule(topology, options)) {}

StepTotals run_step(const MimoModel& model, const StepPlan& plan, const StepInput& input, StepObserver& observer) {
  Step step(model, plan, input);
  step.run(observer);
  const auto scope = observer.around_end();
  return step.totals();
}

}  // namespace braid
