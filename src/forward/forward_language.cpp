// Forwards of language models. Sequences are assigned to replicas, and logits are assembled on rank 0.
#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones_like.h>

#include <optional>

#include "forward/rank_run.h"
#include "mimo/merge.h"
#include "models/decoder.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

// The tokens of one replica, padded to split evenly, and their range in the whole batch.
struct ReplicaBatch {
  std::int64_t begin, end;  // its tokens in the whole batch
  at::Tensor ids, labels;   // [T']
  std::vector<std::int64_t> offsets;
};

at::Tensor fill_up(const at::Tensor& tokens, std::int64_t length, std::int64_t value) {
  return at::constant_pad_nd(tokens, {0, length - tokens.size(0)}, value);
}

ReplicaBatch batch_of_replica(const TokenBatch& batch, const Grid& grid, int global_rank) {
  const std::int64_t multiple = grid.size_of("tp") * grid.size_of("cp");
  const auto [begin, end] = rows_of_replica(batch.offsets, grid, global_rank);
  ReplicaBatch mine{begin, end, {}, {}, {0}};
  for (const std::int64_t offset : batch.offsets)
    if (offset > mine.begin && offset <= mine.end) mine.offsets.push_back(offset - mine.begin);
  const std::int64_t tokens = mine.end - mine.begin;
  const std::int64_t length = (std::max<std::int64_t>(tokens, 1) + multiple - 1) / multiple * multiple;
  if (length > tokens) mine.offsets.push_back(length);
  mine.ids = fill_up(batch.ids.narrow(0, mine.begin, tokens), length, 0);
  if (batch.labels.defined()) mine.labels = fill_up(batch.labels.narrow(0, mine.begin, tokens), length, kIgnoredLabel);
  return mine;
}

// The slice of the logits that a rank holds, without padding.
std::vector<Box> logit_boxes(const TokenBatch& batch, std::int64_t vocab, const Grid& grid, int global_rank) {
  if (grid.coord(global_rank, "pp") != grid.size_of("pp") - 1) return {};
  const ReplicaBatch replica = batch_of_replica(batch, grid, global_rank);
  const std::int64_t rows = replica.ids.size(0) / grid.size_of("cp"), columns = vocab / grid.size_of("tp");
  const std::int64_t begin = replica.begin + grid.coord(global_rank, "cp") * rows;
  const std::int64_t end = std::min(begin + rows, replica.end);
  if (begin >= end) return {};
  return {{.global_begin = {begin, grid.coord(global_rank, "tp") * columns},
           .local_begin = {0, 0},
           .size = {end - begin, columns}}};
}

// A rank's pipeline stages of a language model, on its replica's tokens.
class LanguageWork : public StageWork {
 public:
  LanguageWork(const StageModels<Decoder>& models, std::int64_t width, const ReplicaBatch& batch,
               std::int64_t counted_labels, const RankRun& rank)
      : models_(models), width_(width), batch_(batch), counted_labels_(counted_labels), rank_(rank) {}

  // The sequences are the same for all stages.
  void load(const Stage& stage, int) override {
    if (!sequences_) sequences_ = pack_sequences(batch_.offsets, rank_.world.device());
    if (models_.of(stage).is_first_stage()) ids_ = own(batch_.ids);
    if (models_.of(stage).is_last_stage() && batch_.labels.defined()) labels_ = own(batch_.labels);
  }

  at::Tensor forward(const Stage& stage, int, const std::vector<at::Tensor>& inputs) override {
    const Decoder& model = models_.of(stage);
    const SequenceBatch sequences = {
        .sequences = *sequences_, .samples = 1, .aux_loss_scale = rank_.options.aux_loss_scale};
    const at::Tensor x = model.run_layers(model.is_first_stage() ? model.embed(ids_) : inputs.at(0), sequences);
    if (!model.is_last_stage()) return x;
    const at::Tensor scores = model.logits(x);
    logits = rank_.options.grads ? scores.detach().clone() : scores;  // backward overwrites them
    if (!batch_.labels.defined()) return scores;
    loss = model.token_losses(scores, labels_).sum() / static_cast<double>(counted_labels_);
    return loss;
  }

  at::Tensor gradient_of_last(int, const at::Tensor& output) override { return at::ones_like(output); }
  EdgeRows rows_over(int, int) const override { return {0, own_rows_of(batch_.ids.size(0), rank_.parallel), width_}; }

  at::Tensor logits{}, loss{};  // of the last stage

 private:
  at::Tensor own(const at::Tensor& tokens) const { return own_tokens(tokens, rank_.parallel).to(rank_.world.device()); }

  const StageModels<Decoder>& models_;
  const std::int64_t width_;
  const ReplicaBatch& batch_;
  const std::int64_t counted_labels_;
  const RankRun& rank_;
  std::optional<PackedSequences> sequences_;
  at::Tensor ids_, labels_;  // of the first and of the last stage
};

}  // namespace

ForwardResult forward_language(const LanguageConfig& config, const Fill& fill, const TokenBatch& batch,
                               const ForwardOptions& options, const Topology& topology, World& world) {
  const RankRun rank(options, topology, world);
  const std::vector<ParamSpec> specs = declare_parameters(config, stage_count(rank.module));
  const Parameters parameters = rank.make_parameters(specs, fill);
  const StageModels<Decoder> models(config, parameters, rank);
  const ReplicaBatch mine = batch_of_replica(batch, rank.module.dense, world.rank());
  const bool has_loss = batch.labels.defined();
  const std::int64_t vocab = vocab_of(config);
  LanguageWork work(models, hidden_of(config), mine,
                    has_loss ? (batch.labels != kIgnoredLabel).sum().item<std::int64_t>() : 0, rank);
  rank.run(work, options.grads && has_loss);

  const auto boxes_of = [&](int global_rank) { return logit_boxes(batch, vocab, rank.module.dense, global_rank); };
  if (const std::vector<Box> kept = boxes_of(world.rank()); !kept.empty())
    work.logits = work.logits.narrow(0, 0, kept[0].size[0]);
  const Group& everyone = rank.groups.world();
  ForwardResult whole;
  whole.output = assemble(work.logits, {batch.ids.size(0), vocab}, boxes_of, everyone, rank.tensor_options());
  if (has_loss) whole.loss = rank.sum_of_losses(work.loss);
  if (options.grads) whole.grads = rank.collect_gradients(specs, parameters);
  return whole;
}

}  // namespace braid
