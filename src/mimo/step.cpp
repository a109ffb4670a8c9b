#include "mimo/step.h"
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include "comm/collectives.h"
#include "comm/world.h"
#include "nn/moe.h"

namespace braid {
namespace {

// Runs of consecutive tokens with a label in one sub-sequence.
struct Answers {
  std::int64_t count = 0;
  at::Tensor answer_of;  // [T]: the answer that a token's label belongs to; -1 where there is none
};

Answers answers_in(const LanguageBatch& text) {
  Answers answers = {0, at::empty_like(text.labels)};
  const auto* labels = text.labels.const_data_ptr<std::int64_t>();
  auto* answer_of = answers.answer_of.data_ptr<std::int64_t>();
  for (std::size_t s = 0; s + 1 < text.offsets.size(); ++s)
    for (std::int64_t i = text.offsets[s]; i < text.offsets[s + 1]; ++i) {
      const bool counts = labels[i] != kIgnoredLabel;
      const bool starts = counts && (i == text.offsets[s] || labels[i - 1] == kIgnoredLabel);
      answers.count += starts;
      answer_of[i] = counts ? answers.count - 1 : -1;
    }
  return answers;
}

}  // namespace

class Step::Impl : public StageWork {
 public:
  Impl(const MimoModel& model, const StepPlan& plan, const StepBatches& batches, const StepInput& input)
      : model_(model), plan_(plan), batches_(batches), input_(input),
        samples_(std::int64_t{input.micro_batch} * model.topology().language().dense.size_of("dp")),
        bridge_(model.topology(), plan.edges, samples_), tensor_options_(model.tensor_options()),
        media_(index(plan.options.microbatches)), participates_(model.topology().modules().size()),
        totals_(at::zeros({5}, tensor_options_.dtype(at::kDouble))),
        executor_(plan, model.topology(), model.groups(), tensor_options_, *this) {
    for (auto& of_microbatch : media_) of_microbatch.resize(participates_.size());
    for (int m = 0; m < static_cast<int>(participates_.size()); ++m)
      if (module(m).is_encoder) encoders_.push_back(m);
    for (const auto& local : model.local_stages())
      if (local->language) texts_.emplace_back(local->stage, std::vector<Text>(media_.size()));
  }

  void run(const Op& op) { executor_.run(op); }
  void await(const Op& op) { executor_.await(op); }

  at::Tensor finish() {
    executor_.finish();
    if (input_.activations) input_.activations->write();
    at::Tensor mixing = at::zeros({2}, totals_.options());  // load balancing loss, and the number of forwards in it
    for (const auto& local : model_.local_stages())
      for (Moe* moe : local->language ? local->language->moe_layers() : std::vector<Moe*>()) {
        mixing[0] += moe->take_aux_loss().to(at::kDouble);
        if (local->is_first_of_stage) mixing[1] += plan_.options.microbatches;
      }
    return at::cat({totals_, mixing, upload(at::tensor(participates_, at::kDouble), totals_.device())});
  }

  const at::Tensor& choices() const { return choices_; }

  // --- the work of stages

  void load(const Stage& stage, int microbatch) override {
    const MimoModel::LocalStage& local = model_.local_stage(stage);
    is_encoder(stage) ? load_media(local, microbatch) : load_text(local, microbatch);
  }

  at::Tensor forward(const Stage& stage, int microbatch, const std::vector<at::Tensor>& inputs) override {
    const MimoModel::LocalStage& local = model_.local_stage(stage);
    return is_encoder(stage) ? forward_encoder(local, microbatch, inputs) : forward_language(local, microbatch, inputs);
  }

  at::Tensor gradient_of_last(int, const at::Tensor& loss) override { return at::full_like(loss, input_.loss_scale); }

  EdgeRows rows_over(int e, int microbatch) const override {
    const Edge& edge = plan_.edges[index(e)];
    const std::int64_t language_width = hidden_of(model_.provider().language);
    if (edge.crosses_modules()) {
      const EmbeddingSlice slice = slice_over(e, microbatch);
      return {slice.begin, slice.rows, language_width};
    }
    if (!is_encoder(edge.to)) return {0, own_rows_of(text(microbatch).offsets.back(), parallel()), language_width};
    const EncoderModel& encoder = model_.encoder_config(edge.to.module).model;
    const auto rows = [&](const Extent& extent) { return hidden_rows_of(encoder, extent); };
    return {0, sum_of<std::int64_t>(media(edge.to.module, microbatch).extents, rows), hidden_of(encoder)};
  }

 private:
  // Media loaded for a forward.
  struct Media {
    at::Tensor values;
    Pending arrival{};
  };
  struct Text {
    PackedSequences sequences{};
    at::Tensor ids{};                // on the first stage: 0 in place of media tokens
    std::vector<RowPlaces> media{};  // on the first stage: by encoder
    CountedLabels labels{};          // on the last stage
  };

  Text& text_of(const Stage& stage, int microbatch) {
    for (auto& [language_stage, texts] : texts_)
      if (language_stage == stage) return texts[index(microbatch)];
    throw_check_failed(__FILE__, __LINE__, "not a stage of the language model on this rank");
  }
  const Module& module(int m) const { return model_.topology().module(m); }
  bool is_encoder(const Stage& stage) const { return module(stage.module).is_encoder; }
  at::Device device() const { return model_.world().device(); }
  const LanguageBatch& text(int microbatch) const { return batches_.language[index(microbatch)]; }
  const EncoderBatch& media(int m, int microbatch) const { return batches_.encoders[index(m)][index(microbatch)]; }

  // The groups of the language model on this rank, the same for all its stages.
  const Parallel& parallel() const {
    for (const auto& local : model_.local_stages())
      if (local->language) return local->parallel;
    throw_check_failed(__FILE__, __LINE__, "no stage of the language model is on this rank");
  }

  void load_media(const MimoModel::LocalStage& local, int microbatch) {
    const EncoderBatch& batch = media(local.stage.module, microbatch);
    if (batch.extents.empty()) return;
    const auto rows = sum_of<std::int64_t>(batch.extents, [](const Extent& extent) { return input_rows(extent); });
    Media& loaded = media_[index(microbatch)][index(local.stage.module)];
    loaded.values = local.is_first_of_stage
                        ? batch.values.to(device(), /*non_blocking=*/true)
                        : at::empty({rows, features_of(local.config->model)}, batch.values.options().device(device()));
    const Group& sharers = local.parallel.tp_cp;
    if (sharers.size() > 1) loaded.arrival = sharers.start_broadcast(loaded.values, 0);
  }

  // Does everything that the host computes from tokens, so that forward only queues work.
  void load_text(const MimoModel::LocalStage& local, int microbatch) {
    const LanguageBatch& batch = text(microbatch);
    Text& loaded = text_of(local.stage, microbatch);
    loaded.sequences = pack_sequences(batch.offsets, device());
    if (local.position.is_last()) loaded.labels = counted_labels(own_tokens(batch.labels, local.parallel), device());
    if (!local.position.is_first()) return;
    at::Tensor ids = batch.ids;
    for (const int m : encoders_) {
      const at::Tensor is_media = batch.ids == token_of(m);
      loaded.media.push_back(find_media(is_media, local.parallel, device()));
      ids = ids.masked_fill(is_media, 0);
    }
    loaded.ids = upload(own_tokens(ids, local.parallel), device());
  }

  at::Tensor forward_encoder(const MimoModel::LocalStage& local, int microbatch,
                             const std::vector<at::Tensor>& inputs) {
    const int m = local.stage.module;
    const EncoderBatch& batch = media(m, microbatch);
    if (local.is_first_of_stage && local.position.is_last() && !batch.extents.empty()) participates_[index(m)] = 1;
    Media loaded = std::exchange(media_[index(microbatch)][index(m)], {});
    if (local.position.is_first()) loaded.arrival.wait();
    const at::Tensor given =
        local.encoder->forward(local.position.is_first() ? loaded.values : inputs.at(0), batch.extents);
    if (input_.activations && local.is_first_of_stage && local.position.is_last() && !batch.extents.empty())
      input_.activations->add(module(m).name == "images" ? "vision_proj" : module(m).name + "_proj",
                              first_row_of(m, microbatch), given);
    return given;
  }

  // Embeddings of an encoder before those of this rank's samples of the microbatch, over the whole step.
  std::int64_t first_row_of(int m, int microbatch) const {
    const std::int64_t sample = microbatch * samples_ + bridge_.samples_of(m, model_.world().rank()).begin;
    const auto first = batches_.rows[index(m)].begin();
    return std::accumulate(first, first + sample, std::int64_t{0});
  }

  // The ranks of a replica have equal, consecutive shares of its tokens; without sequence parallelism, its tp ranks
  // have the same.
  void add_combined(const MimoModel::LocalStage& local, int microbatch, const at::Tensor& combined) {
    const Parallel& shared = local.parallel;
    const std::int64_t tokens = text(microbatch).offsets.back(), rows = own_rows_of(tokens, shared);
    if (!shared.sequence_parallel && shared.tp.rank() > 0) return;
    const std::int64_t place =
        shared.sequence_parallel ? shared.cp.rank() * shared.tp.size() + shared.tp.rank() : shared.cp.rank();
    const std::int64_t sample =
        microbatch * samples_ + bridge_.samples_of(local.stage.module, model_.world().rank()).begin;
    input_.activations->add("combined_embeddings", sample * (tokens / input_.micro_batch) + place * rows, combined);
  }

  at::Tensor forward_language(const MimoModel::LocalStage& local, int microbatch,
                              const std::vector<at::Tensor>& inputs) {
    Text loaded = std::exchange(text_of(local.stage, microbatch), {});
    at::Tensor x = local.position.is_first() ? merge(local, microbatch, loaded, inputs) : inputs.at(0);
    const SequenceBatch batch = {
        .sequences = std::move(loaded.sequences),
        .samples = input_.micro_batch,
        .aux_loss_scale = input_.loss_scale * static_cast<double>(text(microbatch).offsets.back())};
    x = local.language->run_layers(x, batch);
    if (!local.position.is_last()) return x;
    if (plan_.options.forward_only) return judge(local, microbatch, x, loaded.labels);
    const Decoder& model = *local.language;
    const at::Tensor loss = model.token_losses(model.logits(x, loaded.labels.rows), loaded.labels.labels).sum();
    if (local.parallel.tp.rank() == 0) {  // every tp rank has the same loss; it counts once
      totals_[0] += loss.detach();
      totals_[1] += static_cast<double>(loaded.labels.rows.size(0));
    }
    return loss;
  }

  // Returns the loss, and counts the tokens and answers for which the model's first choice is right.
  at::Tensor judge(const MimoModel::LocalStage& local, int microbatch, const at::Tensor& x,
                   const CountedLabels& labels) {
    const at::Tensor logits = local.language->logits(x, labels.rows);
    const at::Tensor loss = local.language->token_losses(logits, labels.labels).sum();
    const at::Tensor choices = local.language->choices(logits);
    if (input_.keep_choices) keep_choices(local, microbatch, labels.rows, choices);
    const Answers answers = answers_in(text(microbatch));
    const at::Tensor answer_of = upload(own_tokens(answers.answer_of, local.parallel), device());
    const at::Tensor hits = choices == labels.labels;
    at::Tensor misses = at::zeros({answers.count}, totals_.options());
    misses.index_add_(0, answer_of.index_select(0, labels.rows), hits.logical_not().to(at::kDouble));
    if (local.parallel.cp.size() > 1) local.parallel.cp.all_reduce(misses);
    if (local.parallel.tp.rank() != 0) return loss;
    totals_[0] += loss;
    totals_[1] += static_cast<double>(labels.rows.size(0));
    totals_[2] += hits.sum();
    if (local.parallel.cp.rank() == 0) {
      totals_[3] += static_cast<double>(answers.count);
      totals_[4] += (misses == 0).sum();
    }
    return loss;
  }

  // `own` has the choices for some of this rank's tokens; the others keep 0.
  void keep_choices(const MimoModel::LocalStage& local, int microbatch, const at::Tensor& rows, const at::Tensor& own) {
    const std::int64_t tokens = text(microbatch).offsets.back();
    at::Tensor all = at::zeros({tokens}, own.options());
    const at::Tensor places = upload(own_tokens(at::arange(tokens, at::kLong), local.parallel), device());
    all.index_copy_(0, places.index_select(0, rows), own);
    if (local.parallel.cp.size() > 1) local.parallel.cp.all_reduce(all);
    if (local.parallel.tp_cp.rank() != 0) return;
    const std::int64_t length = tokens / input_.micro_batch;
    if (!choices_.defined()) choices_ = at::full({plan_.options.microbatches * samples_, length}, -1, own.options());
    const SampleRange samples = bridge_.samples_of(local.stage.module, model_.world().rank());
    choices_.narrow(0, microbatch * samples_ + samples.begin, samples.size()).copy_(all.view({-1, length}));
  }

  // --- text and embeddings

  at::Tensor merge(const MimoModel::LocalStage& local, int microbatch, const Text& loaded,
                   const std::vector<at::Tensor>& inputs) {
    std::vector<Broadcast> embeddings;  // broadcast while the text is embedded
    for (const int m : encoders_)
      embeddings.emplace_back(received_embeddings(local, m, microbatch, inputs), 0, local.parallel.tp_cp);
    at::Tensor merged = local.language->embed(loaded.ids);
    for (std::size_t k = 0; k < encoders_.size(); ++k)
      merged = put_embeddings(merged, embeddings[k].await(), loaded.media[k]);
    if (input_.activations) add_combined(local, microbatch, merged);
    return merged;
  }

  int token_of(int m) const { return model_.encoder_config(m).token_id; }

  // An encoder's embeddings for this replica's samples. Only the leader, which has received them, knows their values.
  at::Tensor received_embeddings(const MimoModel::LocalStage& local, int m, int microbatch,
                                 const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> pieces;
    const std::vector<int> edges = edges_into(plan_.edges, local.stage, model_.world().rank());
    for (std::size_t i = 0; i < edges.size(); ++i)
      if (plan_.edges[index(edges[i])].from.module == m) pieces.push_back(inputs[i]);
    const SampleRange own = bridge_.samples_of(local.stage.module, model_.world().rank());
    const auto first = batches_.rows[index(m)].begin() + microbatch * samples_ + own.begin;
    const std::int64_t rows = std::accumulate(first, first + own.size(), std::int64_t{0});
    const Stage last = {m, stage_count(module(m)) - 1};
    if (pieces.empty())
      return at::empty({rows, hidden_of(model_.provider().language)}, tensor_options_)
          .requires_grad_(is_trained(model_.topology(), plan_.options, last));
    return pieces.size() == 1 ? pieces[0] : at::cat(pieces);
  }

  // The slice of the encoder replica's embeddings that goes over an edge.
  EmbeddingSlice slice_over(int e, int microbatch) const {
    const Edge& edge = plan_.edges[index(e)];
    const SampleRange own = bridge_.samples_of(edge.from.module, edge.from_rank);
    const auto first = batches_.rows[index(edge.from.module)].begin() + microbatch * samples_ + own.begin;
    return bridge_.slice(e, {first, first + own.size()});
  }

  const MimoModel& model_;
  const StepPlan& plan_;
  const StepBatches& batches_;
  const StepInput input_;
  const std::int64_t samples_;  // per microbatch, over all language replicas
  const Bridge bridge_;
  const at::TensorOptions tensor_options_;
  std::vector<int> encoders_;                               // module indices
  std::vector<std::vector<Media>> media_;                   // by microbatch and encoder module, from load to forward
  std::vector<std::pair<Stage, std::vector<Text>>> texts_;  // by language stage and microbatch, from load to forward
  std::vector<double> participates_;  // by module: 1 on the leader of a replica that had any media
  at::Tensor totals_;                 // loss sum, counted tokens, right tokens, answers, right answers
  at::Tensor choices_{};
  Executor executor_;
};

Step::Step(const MimoModel& model, const StepPlan& plan, const StepBatches& batches, const StepInput& input)
    : impl_(std::make_unique<Impl>(model, plan, batches, input)) {}
Step::~Step() = default;
void Step::run(const Op& op) { impl_->run(op); }
void Step::await(const Op& op) { impl_->await(op); }
at::Tensor Step::finish() { return impl_->finish(); }
at::Tensor Step::choices() const { return impl_->choices(); }

StepTotals::StepTotals(std::span<const double> sums)
    : loss_sum(sums[0]), num_tokens(sums[1]), right_tokens(sums[2]), answers(sums[3]), right_answers(sums[4]),
      participants(sums.begin() + kFixed, sums.end()) {
  if (sums[6] > 0) load_balancing_loss = sums[5] / sums[6];
}

}  // namespace braid
