#include "forward/forward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include "dist/world.h"
#include "mimo/executor.h"
#include "mimo/merge.h"
#include "models/audio_encoder.h"
#include "models/clip.h"
#include "models/hybrid_lm.h"
#include "models/llama.h"
#include "models/providers.h"
#include "models/radio.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

// The tokens of one replica, padded to split evenly, and their range in the whole batch.
struct ReplicaBatch {
  std::int64_t begin, end;  // its tokens in the whole batch
  at::Tensor ids, labels;   // [T']
  std::vector<std::int64_t> offsets;
};

struct Range {
  std::int64_t begin, end;
};

// Which of `count` sequences (or images, or clips) a replica gets: in order, as evenly as possible.
Range share_of_replica(std::size_t count, const Grid& grid, int global_rank) {
  const std::int64_t all = static_cast<std::int64_t>(count), replicas = grid.size_of("dp");
  const std::int64_t replica = grid.coord(global_rank, "dp");
  return {all * replica / replicas, all * (replica + 1) / replicas};
}

// The rows of these sequences; `offsets` has the first row of each.
Range rows_of_replica(const std::vector<std::int64_t>& offsets, const Grid& grid, int global_rank) {
  const auto [first, last] = share_of_replica(offsets.size() - 1, grid, global_rank);
  return {offsets[static_cast<std::size_t>(first)], offsets[static_cast<std::size_t>(last)]};
}

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

// An encoder's input: pieces (images, clips) concatenated, each with its rows of the input and of the features.
template <class Piece>
struct PieceBatch {
  at::Tensor input, feature_grads;
  std::vector<Piece> pieces;
  std::vector<std::int64_t> input_offsets, feature_offsets;  // of the pieces: 0 ... number of rows
  std::int64_t feature_width;
};

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths, std::int64_t divisor = 1) {
  std::vector<std::int64_t> offsets = {0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length / divisor);
  return offsets;
}

PieceBatch<PatchGrid> encoder_batch(const ImageBatch& batch, std::int64_t hidden) {
  std::vector<std::int64_t> patches;
  for (const PatchGrid& image : batch.images) patches.push_back(image.patches());
  const std::vector<std::int64_t> offsets = offsets_of(patches);
  return {batch.patches, batch.feature_grads, batch.images, offsets, offsets, hidden};
}

// Every tp rank of the last pipeline stage has its replica's features; tp rank 0 contributes them.
std::vector<Box> feature_boxes(const std::vector<std::int64_t>& offsets, std::int64_t width, const Grid& grid,
                               int global_rank) {
  if (grid.coord(global_rank, "pp") != grid.size_of("pp") - 1 || grid.coord(global_rank, "tp") != 0) return {};
  const auto [begin, end] = rows_of_replica(offsets, grid, global_rank);
  if (begin == end) return {};
  return {{.global_begin = {begin, 0}, .local_begin = {0, 0}, .size = {end - begin, width}}};
}

// One rank of a run: its process groups and its shards. The topology's only module is the model.
struct RankRun {
  RankRun(const ForwardOptions& options, const Topology& topology, World& world)
      : options(options),
        topology(topology),
        module(topology.language()),
        groups(world, topology),
        parallel(make_parallel(groups, module.name, options.sequence_parallel)),
        pp(groups.get(module.name, "pp")),
        world(world) {}

  Parameters make_parameters(const std::vector<ParamSpec>& specs, const Fill& fill) const {
    Parameters parameters(specs, pp.rank(), shard_coordinates(module, world.rank()), options.dtype, world.device());
    fill(parameters);
    return parameters;
  }

  at::TensorOptions tensor_options() const { return at::TensorOptions(options.dtype).device(world.device()); }

  // One microbatch through all pipeline stages, and its backward if requested.
  void run(StageWork& work, bool backward) const {
    const StepPlan plan(topology, {.microbatches = 1, .forward_only = !backward});
    Executor executor(plan, topology, groups.world(), tensor_options(), work);
    for (const Op& op : plan.schedule.ranks[static_cast<std::size_t>(world.rank())])
      if (op.computes() || op.kind == Op::Load || op.kind == Op::Exchange) executor.run(op);
    executor.finish();
  }

  NamedTensors collect_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters) const {
    const Group& everyone = groups.world();
    if (!options.take_gradient) return assemble_gradients(specs, parameters, module, everyone, tensor_options());
    assemble_gradients(specs, parameters, module, everyone, tensor_options(), options.take_gradient);
    return {};
  }

  // Every tp rank of the last pipeline stage has the same loss; it counts once.
  at::Tensor sum_of_losses(const at::Tensor& mine) const {
    const bool counts = mine.defined() && parallel.tp.rank() == 0;
    at::Tensor sum = counts ? mine.detach().to(at::kDouble) : at::zeros({}, tensor_options().dtype(at::kDouble));
    groups.world().all_reduce(sum);
    return world.rank() == 0 ? sum : at::Tensor();
  }

  const ForwardOptions& options;
  const Topology& topology;
  const Module& module;
  const Groups groups;
  const Parallel parallel;
  const Group pp;
  World& world;
};

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

// A rank's only pipeline stage of a language model, on its replica's tokens.
template <class Model>
class LanguageWork : public StageWork {
 public:
  LanguageWork(const Model& model, std::int64_t width, const ReplicaBatch& batch, std::int64_t counted_labels,
               const RankRun& rank)
      : model_(model), width_(width), batch_(batch), counted_labels_(counted_labels), rank_(rank) {}

  void load(const Stage&, int) override {}

  at::Tensor forward(const Stage&, int, const std::vector<at::Tensor>& inputs) override {
    const SequenceBatch sequences = {.sequences = pack_sequences(batch_.offsets, rank_.world.device()),
                                     .samples = 1,
                                     .aux_loss_scale = rank_.options.aux_loss_scale};
    const at::Tensor x =
        model_.run_layers(model_.is_first_stage() ? model_.embed(own(batch_.ids)) : inputs.at(0), sequences);
    if (!model_.is_last_stage()) return x;
    const at::Tensor scores = model_.logits(x);
    logits = rank_.options.grads ? scores.detach().clone() : scores;  // backward overwrites them
    if (!batch_.labels.defined()) return scores;
    loss = model_.token_losses(scores, own(batch_.labels)).sum() / static_cast<double>(counted_labels_);
    return loss;
  }

  at::Tensor gradient_of_last(int, const at::Tensor& output) override { return at::ones_like(output); }
  EdgeRows rows_over(int, int) const override { return {0, own_rows_of(batch_.ids.size(0), rank_.parallel), width_}; }

  at::Tensor logits{}, loss{};  // of the last stage

 private:
  at::Tensor own(const at::Tensor& tokens) const { return own_tokens(tokens, rank_.parallel).to(rank_.world.device()); }

  const Model& model_;
  const std::int64_t width_;
  const ReplicaBatch& batch_;
  const std::int64_t counted_labels_;
  const RankRun& rank_;
};

template <class Model, class Config>
ForwardResult run_language(const Config& config, const Fill& fill, const TokenBatch& batch,
                           const ForwardOptions& options, const Topology& topology, World& world) {
  const RankRun rank(options, topology, world);
  const std::vector<ParamSpec> specs = declare_parameters(config, rank.pp.size());
  const Parameters parameters = rank.make_parameters(specs, fill);
  const Model model(config, parameters, rank.parallel, rank.pp.rank(), rank.pp.size(), options.recompute);
  const ReplicaBatch mine = batch_of_replica(batch, rank.module.dense, world.rank());
  const bool has_loss = batch.labels.defined();
  LanguageWork<Model> work(model, config.hidden, mine,
                           has_loss ? (batch.labels != kIgnoredLabel).sum().item<std::int64_t>() : 0, rank);
  rank.run(work, options.grads && has_loss);

  const auto boxes_of = [&](int global_rank) {
    return logit_boxes(batch, config.vocab, rank.module.dense, global_rank);
  };
  if (const std::vector<Box> kept = boxes_of(world.rank()); !kept.empty())
    work.logits = work.logits.narrow(0, 0, kept[0].size[0]);
  const Group& everyone = rank.groups.world();
  ForwardResult whole;
  whole.output = assemble(work.logits, {batch.ids.size(0), config.vocab}, boxes_of, everyone, rank.tensor_options());
  if (has_loss) whole.loss = rank.sum_of_losses(work.loss);
  if (options.grads) whole.grads = rank.collect_gradients(specs, parameters);
  return whole;
}

std::vector<std::int64_t> extent_of(const PatchGrid& image) { return {image.rows, image.columns}; }
std::vector<std::int64_t> extent_of(std::int64_t length) { return {length}; }

// A rank's only pipeline stage of an encoder, on its replica's pieces.
template <class Model, class Piece>
class EncoderWork : public StageWork {
 public:
  EncoderWork(const Model& model, const EncoderModel& config, const PieceBatch<Piece>& batch, const RankRun& rank)
      : model_(model), config_(config), batch_(batch), rank_(rank) {
    const auto [first, last] = share_of_replica(batch.pieces.size(), rank.module.dense, rank.world.rank());
    pieces_.assign(batch.pieces.begin() + first, batch.pieces.begin() + last);
  }

  void load(const Stage&, int) override {}

  at::Tensor forward(const Stage&, int, const std::vector<at::Tensor>& inputs) override {
    const at::Tensor x = model_.run_layers(
        model_.is_first_stage() ? model_.embed(own(batch_.input, batch_.input_offsets), pieces_) : inputs.at(0),
        pieces_);
    if (!model_.is_last_stage()) return x;
    const at::Tensor own_features = model_.features(x, pieces_);
    features = own_features.detach();
    loss = (batch_.feature_grads.defined()
                ? own_features * own(batch_.feature_grads, batch_.feature_offsets).to(own_features.options())
                : own_features)
               .sum();
    return loss;
  }

  // Every tp rank computes the same loss from the same features; the sum over tp must count it once.
  at::Tensor gradient_of_last(int, const at::Tensor& output) override {
    return at::full_like(output, 1.0 / rank_.parallel.tp.size());
  }

  EdgeRows rows_over(int, int) const override {
    std::int64_t rows = 0;
    for (const Piece& piece : pieces_) rows += hidden_rows_of(config_, extent_of(piece));
    return {0, rows, hidden_of(config_)};
  }

  at::Tensor features{}, loss{};  // of the last stage

 private:
  at::Tensor own(const at::Tensor& all, const std::vector<std::int64_t>& offsets) const {
    const auto [begin, end] = rows_of_replica(offsets, rank_.module.dense, rank_.world.rank());
    return all.slice(0, begin, end).to(rank_.world.device());
  }

  const Model& model_;
  const EncoderModel config_;
  const PieceBatch<Piece>& batch_;
  const RankRun& rank_;
  std::vector<Piece> pieces_;
};

template <class Model, class Config, class Piece>
ForwardResult run_encoder(const Config& config, const Fill& fill, const PieceBatch<Piece>& batch,
                          const ForwardOptions& options, const Topology& topology, World& world) {
  const RankRun rank(options, topology, world);
  const std::vector<ParamSpec> specs = declare_parameters(config, rank.pp.size());
  const Parameters parameters = rank.make_parameters(specs, fill);
  const Model model(config, parameters, rank.parallel, rank.pp.rank(), rank.pp.size(), options.recompute);
  EncoderWork<Model, Piece> work(model, config, batch, rank);
  rank.run(work, options.grads);

  const auto boxes_of = [&](int global_rank) {
    return feature_boxes(batch.feature_offsets, batch.feature_width, rank.module.dense, global_rank);
  };
  const Group& everyone = rank.groups.world();
  ForwardResult whole;
  whole.output = assemble(work.features, {batch.feature_offsets.back(), batch.feature_width}, boxes_of, everyone,
                          rank.tensor_options());
  if (options.grads) {
    whole.loss = rank.sum_of_losses(work.loss);
    whole.grads = rank.collect_gradients(specs, parameters);
  }
  return whole;
}

}  // namespace

ForwardResult forward_language(const HybridLmConfig& config, const Fill& fill, const TokenBatch& batch,
                               const ForwardOptions& options, const Topology& topology, World& world) {
  return run_language<HybridLm>(config, fill, batch, options, topology, world);
}

ForwardResult forward_language(const LlamaConfig& config, const Fill& fill, const TokenBatch& batch,
                               const ForwardOptions& options, const Topology& topology, World& world) {
  return run_language<Llama>(config, fill, batch, options, topology, world);
}

ForwardResult forward_vision(const RadioConfig& config, const Fill& fill, const ImageBatch& batch,
                             const ForwardOptions& options, const Topology& topology, World& world) {
  return run_encoder<Radio>(config, fill, encoder_batch(batch, config.hidden), options, topology, world);
}

ForwardResult forward_vision(const ClipConfig& config, const Fill& fill, const ImageBatch& batch,
                             const ForwardOptions& options, const Topology& topology, World& world) {
  return run_encoder<Clip>(config, fill, encoder_batch(batch, config.hidden), options, topology, world);
}

ForwardResult forward_audio(const AudioConfig& config, const Fill& fill, const AudioBatch& batch,
                            const ForwardOptions& options, const Topology& topology, World& world) {
  const PieceBatch<std::int64_t> clips = {batch.frames,
                                          batch.feature_grads,
                                          batch.lengths,
                                          offsets_of(batch.lengths),
                                          offsets_of(batch.lengths, config.frames_per_token()),
                                          config.feature_width()};
  return run_encoder<AudioEncoder>(config, fill, clips, options, topology, world);
}

}  // namespace braid
