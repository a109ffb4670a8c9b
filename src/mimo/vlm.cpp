#include "mimo/vlm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "dist/collectives.h"
#include "dist/world.h"
#include "nn/moe.h"
#include "ops/cross_entropy.h"
#include "plan/row_transfers.h"

namespace braid {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

// Where a rank stands in a module.
struct Place {
  Place(const Module& module, int global_rank)
      : stage(module.dense.coord(global_rank, "pp")),
        pp(module.dense.size_of("pp")),
        leads(module.dense.coord(global_rank, "tp") == 0 && module.dense.coord(global_rank, "cp") == 0) {}
  int stage, pp;
  bool leads;  // speaks for its replica's ranks of this stage
};

}  // namespace

// The stage of an encoder that this rank runs: the vision transformer's, and on the last one the projector.
struct Vlm::EncoderPart {
  EncoderPart(const Provider& provider, const Place& place, Parallel groups, const Parameters& vision,
              const Parameters* projection, const VlmOptions& options, bool is_trained)
      : parallel(std::move(groups)),
        trained(is_trained),
        pixels(std::int64_t{provider.vision.channels} * provider.vision.patch * provider.vision.patch),
        radio(provider.vision, vision, parallel, place.stage, place.pp, options.recompute) {
    if (projection) projector.emplace(provider.projector, *projection, parallel);
  }

  at::Tensor forward(const at::Tensor& input, const std::vector<Image>& images,
                     const at::TensorOptions& options) const {
    std::vector<PatchGrid> grids;
    std::vector<at::Tensor> patches = {at::empty({0, pixels}, at::kDouble)};
    for (const Image& image : images) {
      grids.push_back(image.grid);
      patches.push_back(image.patches);
    }
    at::Tensor x = radio.is_first_stage() ? radio.embed(at::cat(patches).to(options), grids) : input;
    x = radio.run_layers(x, grids);
    return radio.is_last_stage() ? projector->forward(braid::pixel_shuffle(radio.features(x, grids), grids)) : x;
  }

  const Parallel parallel;
  const bool trained;
  const std::int64_t pixels;
  const Radio radio;
  std::optional<Projector> projector;
};

struct Vlm::LanguagePart {
  LanguagePart(const Provider& provider, const Place& place, Parallel groups, const Parameters& parameters,
               const VlmOptions& options)
      : parallel(std::move(groups)),
        leads(place.leads),
        model(provider.language, parameters, parallel, place.stage, place.pp, options.recompute) {}

  const Parallel parallel;
  const bool leads;
  const HybridLm model;
};

Vlm::Vlm(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
         const VlmOptions& options)
    : provider_(provider),
      topology_(topology),
      groups_(groups),
      world_(world),
      options_(options),
      image_token_id_(image_token_id(provider, std::nullopt)),
      edges_(make_edges(topology)) {
  encoders_.resize(topology.modules().size());
  for (int m = 0; m < static_cast<int>(topology.modules().size()); ++m) {
    const Module& module = topology.modules()[index(m)];
    if (!module.dense.contains(world.rank())) continue;
    const Place place(module, world.rank());
    const bool trained = is_trained(m);
    if (!module.is_encoder) {
      const Parameters& parameters =
          add_set(module.name, m, declare_parameters(provider.language, place.pp), place.stage, true);
      language_ = std::make_unique<LanguagePart>(
          provider, place, make_parallel(groups, module.name, options.sequence_parallel), parameters, options);
      continue;
    }
    const Parameters& vision =
        add_set(module.name + ".vision", m, declare_parameters(provider.vision, place.pp), place.stage, trained);
    const bool is_last = place.stage == place.pp - 1;
    const Parameters* projection =
        is_last ? &add_set(module.name + ".projector", m, declare_parameters(provider.projector), 0, trained) : nullptr;
    encoders_[index(m)] = std::make_unique<EncoderPart>(provider, place, make_parallel(groups, module.name, false),
                                                        vision, projection, options, trained);
  }
}

Vlm::~Vlm() = default;

bool Vlm::is_trained(int module) const {
  const std::string& name = topology_.modules()[index(module)].name;
  return std::find(options_.frozen.begin(), options_.frozen.end(), name) == options_.frozen.end();
}

const Parameters& Vlm::add_set(const std::string& name, int module, const std::vector<ParamSpec>& specs, int stage,
                               bool trained) {
  const ShardPlace place = shard_place(topology_.modules()[index(module)], world_.rank());
  sets_.push_back(std::make_unique<ParameterSet>(
      ParameterSet{name, module, specs, Parameters(specs, stage, place, options_.dtype, world_.device())}));
  Parameters& parameters = sets_.back()->parameters;
  parameters.initialize(options_.seed);
  if (!trained)
    for (const Parameters::Entry& entry : parameters.entries()) at::Tensor(entry.value).requires_grad_(false);
  return parameters;
}

// One step on this rank: what each microbatch has left behind until it is needed again.
class Vlm::Step {
 public:
  Step(const Vlm& vlm, const DataSource& data, std::int64_t first_sample, int micro_batch,
       const ScheduleOptions& options)
      : vlm_(vlm),
        data_(data),
        first_sample_(first_sample),
        samples_(std::int64_t{micro_batch} * vlm.topology_.language().dense.size_of("dp")),
        micro_batch_(micro_batch),
        options_(at::TensorOptions(vlm.options_.dtype).device(vlm.world_.device())),
        encoded_(vlm.topology_.modules().size(), std::vector<Encoded>(index(options.microbatches))),
        spoken_(index(options.microbatches)),
        arrived_(index(options.microbatches)),
        totals_(at::zeros({2}, options_.dtype(at::kDouble))) {}

  void run(const std::vector<Op>& ops, const BeforeLastBackward& before_last_backward) {
    for (const Op& op : ops) {
      const bool last = op.microbatch + 1 == static_cast<int>(spoken_.size());
      if (op.kind == Op::Backward && last && before_last_backward) before_last_backward(op.module);
      const bool language = op.kind != Op::Exchange && !module(op.module).is_encoder;
      if (op.kind == Op::Exchange)
        exchange(op.transfers);
      else if (op.kind == Op::Forward)
        language ? speak(op.microbatch) : encode(op.module, op.microbatch);
      else
        language ? speak_back(op.microbatch) : encode_back(op.module, op.microbatch);
    }
  }

  StepLosses totals() {
    vlm_.groups_.world().all_reduce(totals_);
    return {totals_[0].item<double>(), totals_[1].item<double>()};
  }

 private:
  // A microbatch in an encoder stage.
  struct Encoded {
    std::vector<std::int64_t> counts{};           // rows each sample of this replica becomes
    at::Tensor input{}, output{}, output_grad{};  // input: of the stage before; output_grad: of a leader
  };
  // A microbatch in a language stage.
  struct Spoken {
    at::Tensor input{};   // hidden states of the stage before, or a leader's image rows
    at::Tensor output{};  // hidden states, or the sum of token losses
    at::Tensor output_grad{};
  };
  struct Rows {
    std::vector<std::int64_t> counts;
    at::Tensor rows;
  };

  const Module& module(int m) const { return vlm_.topology_.modules()[index(m)]; }
  const Edge& edge(int e) const { return vlm_.edges_[index(e)]; }
  int rank() const { return vlm_.world_.rank(); }
  std::int64_t first_of(int microbatch) const { return first_sample_ + microbatch * samples_; }
  RowRange samples_of(int m, int global_rank) const { return rows_of(module(m), global_rank, samples_); }

  // --- encoders

  void encode(int m, int microbatch) {
    const EncoderPart& part = *vlm_.encoders_[index(m)];
    Encoded& state = encoded_[index(m)][index(microbatch)];
    const RowRange mine = samples_of(m, rank());
    std::vector<Image> images;
    for (std::int64_t sample = mine.begin; sample < mine.end; ++sample) {
      const std::vector<Image> own = data_.images(first_of(microbatch) + sample);
      state.counts.push_back(0);
      for (const Image& image : own) state.counts.back() += image.grid.patches() / 4;
      images.insert(images.end(), own.begin(), own.end());
    }
    at::AutoGradMode grad_mode(part.trained);
    state.output = part.forward(state.input, images, options_);
  }

  void encode_back(int m, int microbatch) {
    Encoded& state = encoded_[index(m)][index(microbatch)];
    take_local_gradients(m, microbatch);
    // Every tp rank has the same output; the gradient of one of them is the whole gradient.
    if (!state.output_grad.defined()) state.output_grad = at::zeros_like(state.output);
    state.output.backward(state.output_grad);
    const at::Tensor input_grad = state.input.defined() ? state.input.grad() : at::Tensor();
    state = {.counts = state.counts, .input = input_grad};
  }

  // --- the language model

  void speak(int microbatch) {
    const LanguagePart& part = *vlm_.language_;
    Spoken& state = spoken_[index(microbatch)];
    const RowRange mine = samples_of(language_index(), rank());
    std::vector<at::Tensor> ids, labels;
    std::vector<std::int64_t> offsets = {0};
    for (std::int64_t sample = mine.begin; sample < mine.end; ++sample) {
      const Tokens tokens = data_.tokens(first_of(microbatch) + sample);
      ids.push_back(tokens.ids);
      labels.push_back(tokens.labels);
      offsets.push_back(offsets.back() + tokens.ids.size(0));
    }
    const at::Tensor all_ids = at::cat(ids), all_labels = at::cat(labels);
    const SequenceBatch batch = {.sequences = pack_sequences(offsets, vlm_.world_.device()),
                                 .samples = micro_batch_,
                                 .aux_loss_scale = static_cast<double>(offsets.back())};
    at::Tensor x = part.model.is_first_stage() ? merge(microbatch, ids, all_ids) : state.input;
    x = part.model.run_layers(x, batch);
    if (!part.model.is_last_stage()) {
      state.output = x;
      return;
    }
    const at::Tensor own_labels = cp_part(all_labels);
    state.output = part.model.token_losses(part.model.logits(x), own_labels.to(vlm_.world_.device())).sum();
    if (part.parallel.tp.rank() != 0) return;  // every tp rank has the same loss; it counts once
    totals_[0] += state.output.detach();
    totals_[1] += (own_labels != kIgnoredLabel).sum();
  }

  void speak_back(int microbatch) {
    Spoken& state = spoken_[index(microbatch)];
    if (vlm_.language_->model.is_last_stage())
      state.output.backward();
    else
      state.output.backward(state.output_grad);
    state = {.input = state.input.defined() ? state.input.grad() : at::Tensor()};
  }

  int language_index() const { return static_cast<int>(&vlm_.topology_.language() - vlm_.topology_.modules().data()); }

  at::Tensor cp_part(const at::Tensor& tokens) const {
    const Group& cp = vlm_.language_->parallel.cp;
    return tokens.chunk(cp.size(), 0)[index(cp.rank())];
  }

  // The one place where a replica's tokens are split over its ranks: text rows from the embedding, image rows where the
  // image tokens stand.
  at::Tensor merge(int microbatch, const std::vector<at::Tensor>& ids, const at::Tensor& all_ids) {
    const LanguagePart& part = *vlm_.language_;
    Spoken& state = spoken_[index(microbatch)];
    if (part.leads) state.input = gather_rows(microbatch, ids);
    const Group& sharers = part.parallel.tp_cp;
    const at::Tensor rows = sharers.size() > 1 ? broadcast(state.input, 0, sharers) : state.input;

    const at::Tensor is_image = all_ids == vlm_.image_token_id_;
    const at::Tensor text = part.model.embed(cp_part(all_ids.masked_fill(is_image, 0)).to(vlm_.world_.device()));
    const std::int64_t own = text.size(0), tokens = all_ids.size(0);
    const std::int64_t first = part.parallel.cp.rank() * (tokens / part.parallel.cp.size()) +
                               (part.parallel.sequence_parallel ? part.parallel.tp.rank() * own : 0);
    const at::Tensor here = is_image.narrow(0, first, own).nonzero().squeeze(1);
    const at::Tensor row_of = is_image.cumsum(0).narrow(0, first, own).index_select(0, here) - 1;
    // Also without image tokens here: backward is run together by all who share the rows.
    if (!rows.requires_grad() && here.numel() == 0) return text;
    const at::Device device = vlm_.world_.device();
    return text.index_put({here.to(device)}, rows.index_select(0, row_of.to(device)));
  }

  // A leader's rows from all encoders, in the order of its samples, as a leaf whose gradient goes back to them.
  at::Tensor gather_rows(int microbatch, const std::vector<at::Tensor>& ids) {
    std::vector<at::Tensor> parts = {at::zeros({0, vlm_.provider_.language.hidden}, options_)};
    std::vector<std::int64_t> counts;
    bool trained = false;
    for (const int e : edges_into_language()) {
      const Rows& rows = rows_over(e, microbatch);
      counts.insert(counts.end(), rows.counts.begin(), rows.counts.end());
      parts.push_back(rows.rows);
      trained = trained || vlm_.is_trained(edge(e).from_module);
    }
    check_counts(microbatch, ids, counts);
    return at::cat(parts).detach().requires_grad_(trained);
  }

  void check_counts(int microbatch, const std::vector<at::Tensor>& ids, const std::vector<std::int64_t>& counts) const {
    const std::int64_t first = first_of(microbatch) + samples_of(language_index(), rank()).begin;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto tokens = (ids[i] == vlm_.image_token_id_).sum().item<std::int64_t>();
      const std::int64_t rows = i < counts.size() ? counts[i] : 0;
      if (tokens != rows)
        throw DataError(fmt::format("sample {} has {} image tokens, but its images give {} rows",
                                    first + static_cast<std::int64_t>(i), tokens, rows));
    }
  }

  // --- between modules

  // In the order of their samples: edges of one encoder are made replica by replica.
  std::vector<int> edges_into_language() const {
    std::vector<int> found;
    for (int e = 0; e < static_cast<int>(vlm_.edges_.size()); ++e)
      if (edge(e).crosses_modules() && edge(e).to_rank == rank()) found.push_back(e);
    return found;
  }

  // The samples that both ends of an edge have, and where they lie in the encoder's.
  RowRange shared_samples(int e) const {
    const RowRange from = samples_of(edge(e).from_module, edge(e).from_rank),
                   to = samples_of(edge(e).to_module, edge(e).to_rank);
    return {std::max(from.begin, to.begin), std::min(from.end, to.end)};
  }

  // What the encoder's end of an edge sends, or takes back, of a replica's rows.
  struct Slice {
    std::vector<std::int64_t> counts;
    std::int64_t begin, rows;
  };
  Slice slice_of(int e, int microbatch) const {
    const Encoded& state = encoded_[index(edge(e).from_module)][index(microbatch)];
    const RowRange shared = shared_samples(e);
    const auto offset = shared.begin - samples_of(edge(e).from_module, edge(e).from_rank).begin;
    const auto first = state.counts.begin() + offset;
    std::vector<std::int64_t> counts(first, first + (shared.end - shared.begin));
    return {counts, sum({state.counts.begin(), first}), sum(counts)};
  }

  const Rows& rows_over(int e, int microbatch) {
    if (edge(e).from_rank == edge(e).to_rank) {
      const Slice slice = slice_of(e, microbatch);
      const at::Tensor& output = encoded_[index(edge(e).from_module)][index(microbatch)].output;
      arrived_[index(microbatch)][e] = {slice.counts, output.detach().narrow(0, slice.begin, slice.rows)};
    }
    return arrived_[index(microbatch)].at(e);
  }

  // The gradient of the rows that came over an edge, on the language leader.
  at::Tensor gradient_over(int e, int microbatch) const {
    std::int64_t begin = 0;
    for (const int other : edges_into_language()) {
      if (other == e) break;
      begin += sum(arrived_[index(microbatch)].at(other).counts);
    }
    return spoken_[index(microbatch)].input.narrow(0, begin, sum(arrived_[index(microbatch)].at(e).counts));
  }

  void put_gradient(int e, int microbatch, const at::Tensor& gradient) {
    Encoded& state = encoded_[index(edge(e).from_module)][index(microbatch)];
    if (!state.output_grad.defined()) state.output_grad = at::zeros_like(state.output);
    const Slice slice = slice_of(e, microbatch);
    state.output_grad.narrow(0, slice.begin, slice.rows).copy_(gradient);
  }

  void take_local_gradients(int m, int microbatch) {
    for (int e = 0; e < static_cast<int>(vlm_.edges_.size()); ++e)
      if (edge(e).crosses_modules() && edge(e).from_module == m && edge(e).from_rank == rank() &&
          edge(e).to_rank == rank())
        put_gradient(e, microbatch, gradient_over(e, microbatch));
  }

  // --- transfers

  // Counts and shapes first, which are small and whose sizes both sides know; then the rows.
  void exchange(const std::vector<Transfer>& transfers) {
    at::NoGradGuard guard;
    std::vector<at::Tensor> headers, payloads;
    for (const Transfer& t : transfers) headers.push_back(t.outgoing ? header_to_send(t) : empty_header(t));
    move(transfers, headers);
    for (std::size_t i = 0; i < transfers.size(); ++i)
      payloads.push_back(transfers[i].outgoing ? payload_to_send(transfers[i]).contiguous()
                                               : empty_payload(transfers[i], headers[i]));
    move(transfers, payloads);
    for (std::size_t i = 0; i < transfers.size(); ++i)
      if (!transfers[i].outgoing) take(transfers[i], headers[i], payloads[i]);
  }

  void move(const std::vector<Transfer>& transfers, std::vector<at::Tensor>& tensors) const {
    std::vector<Group::Transfer> moves;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const Edge& e = edge(transfers[i].edge);
      const int peer = e.from_rank == rank() ? e.to_rank : e.from_rank;
      if (tensors[i].numel() > 0) moves.push_back({tensors[i], peer, transfers[i].outgoing});
    }
    vlm_.groups_.world().exchange(moves);
  }

  std::int64_t header_size(const Transfer& t) const {
    const RowRange shared = edge(t.edge).crosses_modules() ? shared_samples(t.edge) : RowRange{0, 1};
    return t.kind == Transfer::Activation ? shared.end - shared.begin : 0;  // a gradient's size is known
  }
  at::Tensor empty_header(const Transfer& t) const {
    return at::zeros({header_size(t)}, at::TensorOptions(at::kLong).device(vlm_.world_.device()));
  }
  at::Tensor header_to_send(const Transfer& t) const {
    if (t.kind == Transfer::Gradient) return empty_header(t);
    if (edge(t.edge).crosses_modules())
      return at::tensor(slice_of(t.edge, t.microbatch).counts, at::kLong).to(vlm_.world_.device());
    return at::full({1}, output_of(t).size(0), at::kLong).to(vlm_.world_.device());
  }

  const at::Tensor& output_of(const Transfer& t) const {
    const int m = edge(t.edge).from_module;
    return module(m).is_encoder ? encoded_[index(m)][index(t.microbatch)].output : spoken_[index(t.microbatch)].output;
  }

  at::Tensor payload_to_send(const Transfer& t) const {
    const Edge& e = edge(t.edge);
    if (t.kind == Transfer::Activation) {
      if (!e.crosses_modules()) return output_of(t);
      const Slice slice = slice_of(t.edge, t.microbatch);
      return output_of(t).narrow(0, slice.begin, slice.rows);
    }
    if (e.crosses_modules()) return gradient_over(t.edge, t.microbatch);
    return module(e.to_module).is_encoder ? encoded_[index(e.to_module)][index(t.microbatch)].input
                                          : spoken_[index(t.microbatch)].input;
  }

  at::Tensor empty_payload(const Transfer& t, const at::Tensor& header) const {
    const Edge& e = edge(t.edge);
    if (t.kind == Transfer::Gradient && !e.crosses_modules()) return at::empty_like(output_of(t));
    if (t.kind == Transfer::Gradient)
      return at::empty({slice_of(t.edge, t.microbatch).rows, vlm_.provider_.language.hidden}, options_);
    const bool inside_encoder = !e.crosses_modules() && module(e.to_module).is_encoder;
    return at::empty({header.sum().item<std::int64_t>(),
                      inside_encoder ? vlm_.provider_.vision.hidden : vlm_.provider_.language.hidden},
                     options_);
  }

  void take(const Transfer& t, const at::Tensor& header, const at::Tensor& payload) {
    const Edge& e = edge(t.edge);
    if (e.crosses_modules()) {
      if (t.kind == Transfer::Gradient) return put_gradient(t.edge, t.microbatch, payload);
      const at::Tensor host = header.cpu();
      const auto* counts = host.data_ptr<std::int64_t>();
      arrived_[index(t.microbatch)][t.edge] = {{counts, counts + host.numel()}, payload};
      return;
    }
    const bool encoder = module(e.to_module).is_encoder;
    Encoded* encoded = encoder ? &encoded_[index(e.to_module)][index(t.microbatch)] : nullptr;
    Spoken* spoken = encoder ? nullptr : &spoken_[index(t.microbatch)];
    if (t.kind == Transfer::Gradient)
      (encoder ? encoded->output_grad : spoken->output_grad) = payload;
    else
      (encoder ? encoded->input : spoken->input) = at::Tensor(payload).requires_grad_(vlm_.is_trained(e.from_module));
  }

  const Vlm& vlm_;
  const DataSource& data_;
  const std::int64_t first_sample_, samples_, micro_batch_;
  const at::TensorOptions options_;
  std::vector<std::vector<Encoded>> encoded_;  // by module and microbatch
  std::vector<Spoken> spoken_;                 // by microbatch
  std::vector<std::map<int, Rows>> arrived_;   // by microbatch and edge: image rows on a language leader
  at::Tensor totals_;                          // loss sum, counted tokens
};

StepLosses Vlm::run_step(const DataSource& data, std::int64_t first_sample, int micro_batch, const Schedule& schedule,
                         const ScheduleOptions& options, const BeforeLastBackward& before_last_backward) {
  Step step(*this, data, first_sample, micro_batch, options);
  step.run(schedule.ranks[index(world_.rank())], before_last_backward);
  return step.totals();
}

void Vlm::update_expert_bias() {
  if (!language_) return;
  for (Moe* moe : language_->model.moe_layers())
    moe->update_expert_bias(groups_.get(topology_.language().name, "dp-cp-tp"));
}

}  // namespace braid
