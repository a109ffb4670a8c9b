#include "models/forward.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

#include "dist/collectives.h"
#include "dist/world.h"
#include "models/audio_encoder.h"
#include "models/clip.h"
#include "models/hybrid_lm.h"
#include "models/llama.h"
#include "models/radio.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

// The tokens of one replica, filled up to split evenly, and where they came from.
struct ReplicaBatch {
  std::int64_t begin, end;  // its tokens in the whole batch
  at::Tensor ids, labels;   // [T']
  std::vector<std::int64_t> offsets;
};

struct Range {
  std::int64_t begin, end;
};

// Which of `count` sequences (or images, or clips) a replica gets: in order, as evenly as they go.
Range share_of_replica(std::size_t count, const Grid& grid, int global_rank) {
  const std::int64_t all = static_cast<std::int64_t>(count), replicas = grid.size_of("dp");
  const std::int64_t replica = grid.coord(global_rank, "dp");
  return {all * replica / replicas, all * (replica + 1) / replicas};
}

// And which rows they are, by the offsets of all of them.
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

// What an encoder gets: pieces (images, clips) end to end, each some rows of the input and of the features.
template <class Piece>
struct EncoderBatch {
  at::Tensor input, feature_grads;
  std::vector<Piece> pieces;
  std::vector<std::int64_t> input_offsets, feature_offsets;  // of the pieces, 0 ... all rows
  std::int64_t feature_width;
};

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths, std::int64_t divisor = 1) {
  std::vector<std::int64_t> offsets = {0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length / divisor);
  return offsets;
}

EncoderBatch<PatchGrid> encoder_batch(const ImageBatch& batch, std::int64_t hidden) {
  std::vector<std::int64_t> patches;
  for (const PatchGrid& image : batch.images) patches.push_back(image.patches());
  const std::vector<std::int64_t> offsets = offsets_of(patches);
  return {batch.patches, batch.feature_grads, batch.images, offsets, offsets, hidden};
}

// Every tp rank of the last stage has its replica's features; the first speaks for them.
std::vector<Box> feature_boxes(const std::vector<std::int64_t>& offsets, std::int64_t width, const Grid& grid,
                               int global_rank) {
  if (grid.coord(global_rank, "pp") != grid.size_of("pp") - 1 || grid.coord(global_rank, "tp") != 0) return {};
  const auto [begin, end] = rows_of_replica(offsets, grid, global_rank);
  if (begin == end) return {};
  return {{.global_begin = {begin, 0}, .local_begin = {0, 0}, .size = {end - begin, width}}};
}

// One rank of a run: its groups and its shards. The topology's only module is the model.
struct RankRun {
  RankRun(const ForwardOptions& options, const Topology& topology, World& world)
      : options(options),
        module(topology.language()),
        groups(world, topology),
        parallel(make_parallel(groups, module.name, options.sequence_parallel)),
        pp(groups.get(module.name, "pp")),
        world(world) {}

  Parameters make_parameters(const std::vector<ParamSpec>& specs, const Fill& fill) const {
    Parameters parameters(specs, pp.rank(), shard_place(module, world.rank()), options.dtype, world.device());
    fill(parameters);
    return parameters;
  }

  at::TensorOptions tensor_options() const { return at::TensorOptions(options.dtype).device(world.device()); }

  // Backward from the loss of the last stage, stage by stage: those before it receive their gradients.
  void run_backward(const at::Tensor& loss_or_sent) const {
    if (options.grads && loss_or_sent.defined()) loss_or_sent.backward();
  }

  NamedTensors collect_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters) const {
    const Group& everyone = groups.world();
    if (!options.take_gradient) return assemble_gradients(specs, parameters, module, everyone, tensor_options());
    assemble_gradients(specs, parameters, module, everyone, tensor_options(), options.take_gradient);
    return {};
  }

  // A loss that every tp rank of the last stage has counts once.
  at::Tensor sum_of_losses(const at::Tensor& mine) const {
    const bool counts = mine.defined() && parallel.tp.rank() == 0;
    at::Tensor sum = counts ? mine.detach().to(at::kDouble) : at::zeros({}, tensor_options().dtype(at::kDouble));
    groups.world().all_reduce(sum);
    return world.rank() == 0 ? sum : at::Tensor();
  }

  const ForwardOptions& options;
  const Module& module;
  const Groups groups;
  const Parallel parallel;
  const Group pp;
  World& world;
};

// The part of the logits that a rank has, without what was filled up.
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

template <class Model, class Config>
ForwardResult run_language(const Config& config, const Fill& fill, const TokenBatch& batch,
                           const ForwardOptions& options, const Topology& topology, World& world) {
  at::AutoGradMode grad_mode(options.grads);
  const RankRun rank(options, topology, world);
  const std::vector<ParamSpec> specs = declare_parameters(config, rank.pp.size());
  const Parameters parameters = rank.make_parameters(specs, fill);
  const Model model(config, parameters, rank.parallel, rank.pp.rank(), rank.pp.size(), options.recompute);
  const ReplicaBatch mine = batch_of_replica(batch, rank.module.dense, world.rank());
  const SequenceBatch sequences = {.sequences = pack_sequences(mine.offsets, world.device()),
                                   .samples = 1,
                                   .aux_loss_scale = options.aux_loss_scale};
  const auto cp_part = [&](const at::Tensor& tokens) {
    const Group& cp = rank.parallel.cp;
    return tokens.chunk(cp.size(), 0)[static_cast<std::size_t>(cp.rank())].to(world.device());
  };
  at::Tensor x = model.is_first_stage() ? model.embed(cp_part(mine.ids)) : receive(rank.pp.rank() - 1, rank.pp);
  x = model.run_layers(x, sequences);
  at::Tensor logits, loss, sent;
  if (model.is_last_stage()) {
    const at::Tensor scores = model.logits(x);
    logits = options.grads ? scores.detach().clone() : scores;  // backward overwrites them
    if (mine.labels.defined())
      loss =
          model.token_losses(scores, cp_part(mine.labels)).sum() / (batch.labels != kIgnoredLabel).sum().item<double>();
  } else {
    sent = send(x, rank.pp.rank() + 1, rank.pp);
  }
  rank.run_backward(loss.defined() ? loss : sent);

  const auto boxes_of = [&](int global_rank) {
    return logit_boxes(batch, config.vocab, rank.module.dense, global_rank);
  };
  if (const std::vector<Box> kept = boxes_of(world.rank()); !kept.empty())
    logits = logits.narrow(0, 0, kept[0].size[0]);
  const Group& everyone = rank.groups.world();
  ForwardResult whole;
  whole.output = assemble(logits, {batch.ids.size(0), config.vocab}, boxes_of, everyone, rank.tensor_options());
  if (batch.labels.defined()) whole.loss = rank.sum_of_losses(loss);
  if (options.grads) whole.grads = rank.collect_gradients(specs, parameters);
  return whole;
}

template <class Model, class Config, class Piece>
ForwardResult run_encoder(const Config& config, const Fill& fill, const EncoderBatch<Piece>& batch,
                          const ForwardOptions& options, const Topology& topology, World& world) {
  at::AutoGradMode grad_mode(options.grads);
  const RankRun rank(options, topology, world);
  const Grid& grid = rank.module.dense;
  const std::vector<ParamSpec> specs = declare_parameters(config, rank.pp.size());
  const Parameters parameters = rank.make_parameters(specs, fill);
  const Model model(config, parameters, rank.parallel, rank.pp.rank(), rank.pp.size(), options.recompute);
  const auto [first, last] = share_of_replica(batch.pieces.size(), grid, world.rank());
  const std::vector<Piece> pieces(batch.pieces.begin() + first, batch.pieces.begin() + last);
  const auto own_rows = [&](const at::Tensor& all, const std::vector<std::int64_t>& offsets) {
    const auto [begin, end] = rows_of_replica(offsets, grid, world.rank());
    return all.slice(0, begin, end).to(world.device());
  };
  at::Tensor x = model.is_first_stage() ? model.embed(own_rows(batch.input, batch.input_offsets), pieces)
                                        : receive(rank.pp.rank() - 1, rank.pp);
  x = model.run_layers(x, pieces);
  at::Tensor features, loss, sent;
  if (model.is_last_stage()) {
    const at::Tensor own = model.features(x, pieces);
    features = own.detach();
    loss = (batch.feature_grads.defined() ? own * own_rows(batch.feature_grads, batch.feature_offsets).to(own.options())
                                          : own)
               .sum();
  } else {
    sent = send(x, rank.pp.rank() + 1, rank.pp);
  }
  // Every tp rank computes the same loss from the same features; together they count it once.
  rank.run_backward(loss.defined() ? loss / rank.parallel.tp.size() : sent);

  const auto boxes_of = [&](int global_rank) {
    return feature_boxes(batch.feature_offsets, batch.feature_width, grid, global_rank);
  };
  const Group& everyone = rank.groups.world();
  ForwardResult whole;
  whole.output = assemble(features, {batch.feature_offsets.back(), batch.feature_width}, boxes_of, everyone,
                          rank.tensor_options());
  if (options.grads) {
    whole.loss = rank.sum_of_losses(loss);
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
  const EncoderBatch<std::int64_t> clips = {batch.frames,
                                            batch.feature_grads,
                                            batch.lengths,
                                            offsets_of(batch.lengths),
                                            offsets_of(batch.lengths, config.frames_per_token()),
                                            config.feature_width()};
  return run_encoder<AudioEncoder>(config, fill, clips, options, topology, world);
}

}  // namespace braid
