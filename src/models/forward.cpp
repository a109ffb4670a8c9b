#include "models/forward.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "dist/collectives.h"
#include "dist/world.h"
#include "models/hybrid_lm.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

// The tokens of one replica, filled up to split evenly, and where they came from.
struct ReplicaBatch {
  std::int64_t begin, end;  // its tokens in the whole batch
  at::Tensor ids, labels;   // [T']
  std::vector<std::int64_t> offsets;
};

// Which tokens a replica gets: whole sequences, as many to each as they go.
std::pair<std::int64_t, std::int64_t> tokens_of_replica(const std::vector<std::int64_t>& offsets, int replica,
                                                        int replicas) {
  const auto sequences = static_cast<std::int64_t>(offsets.size()) - 1;
  const auto first = [&](int r) { return offsets[static_cast<std::size_t>(sequences * r / replicas)]; };
  return {first(replica), first(replica + 1)};
}

at::Tensor fill_up(const at::Tensor& tokens, std::int64_t length, std::int64_t value) {
  return at::constant_pad_nd(tokens, {0, length - tokens.size(0)}, value);
}

ReplicaBatch batch_of_replica(const TokenBatch& batch, int replica, int replicas, std::int64_t multiple) {
  ReplicaBatch mine;
  std::tie(mine.begin, mine.end) = tokens_of_replica(batch.offsets, replica, replicas);
  mine.offsets = {0};
  for (const std::int64_t offset : batch.offsets)
    if (offset > mine.begin && offset <= mine.end) mine.offsets.push_back(offset - mine.begin);
  const std::int64_t tokens = mine.end - mine.begin;
  const std::int64_t length = (std::max<std::int64_t>(tokens, 1) + multiple - 1) / multiple * multiple;
  if (length > tokens) mine.offsets.push_back(length);
  mine.ids = fill_up(batch.ids.narrow(0, mine.begin, tokens), length, 0);
  if (batch.labels.defined()) mine.labels = fill_up(batch.labels.narrow(0, mine.begin, tokens), length, kIgnoredLabel);
  return mine;
}

// One rank's part of forward_language.
class LanguageRun {
 public:
  LanguageRun(const HybridLmConfig& config, const Fill& fill, const TokenBatch& batch, const ForwardOptions& options,
              const Topology& topology, World& world)
      : config_(config),
        batch_(batch),
        options_(options),
        module_(topology.language()),
        groups_(world, topology),
        parallel_(make_parallel(groups_, module_.name, options.sequence_parallel)),
        pp_(groups_.get(module_.name, "pp")),
        specs_(declare_parameters(config, pp_.size())),
        parameters_(specs_, pp_.rank(), shard_place(module_, world.rank()), options.dtype, world.device()),
        model_(config, parameters_, parallel_, pp_.rank(), pp_.size(), options.recompute),
        world_(world) {
    fill(parameters_);
  }

  ForwardResult run() {
    at::AutoGradMode grad_mode(options_.grads);
    const ReplicaBatch mine = replica_batch(world_.rank());
    const SequenceBatch sequences = {.sequences = pack_sequences(mine.offsets, world_.device()),
                                     .samples = 1,
                                     .aux_loss_scale = options_.aux_loss_scale};
    const at::Tensor input = model_.is_first_stage() ? model_.embed(cp_part(mine.ids)) : receive(pp_.rank() - 1, pp_);
    const at::Tensor hidden = model_.run_layers(input, sequences);
    ForwardResult result;
    at::Tensor objective, logits;  // what backward starts from
    if (model_.is_last_stage()) {
      logits = model_.logits(hidden);
      result.output = logits.detach().clone();
      if (mine.labels.defined()) {
        objective = model_.token_losses(logits, cp_part(mine.labels)).sum() / counted_labels();
        result.loss = objective.detach();
      }
    } else {
      objective = send(hidden, pp_.rank() + 1, pp_);
    }
    if (options_.grads) objective.backward();
    return collect(result);
  }

 private:
  ReplicaBatch replica_batch(int global_rank) const {
    const Grid& grid = module_.dense;
    return batch_of_replica(batch_, grid.coord(global_rank, "dp"), grid.size_of("dp"),
                            grid.size_of("tp") * grid.size_of("cp"));
  }

  at::Tensor cp_part(const at::Tensor& tokens) const {
    const std::int64_t rows = tokens.size(0) / parallel_.cp.size();
    return tokens.narrow(0, parallel_.cp.rank() * rows, rows).to(world_.device());
  }

  double counted_labels() const { return (batch_.labels != kIgnoredLabel).sum().item<double>(); }

  ForwardResult collect(ForwardResult mine) {
    const at::TensorOptions options = at::TensorOptions(options_.dtype).device(world_.device());
    ForwardResult whole;
    const std::vector<Box> kept = logit_boxes(world_.rank());
    if (!kept.empty()) mine.output = mine.output.narrow(0, 0, kept[0].size[0]);
    whole.output = assemble(
        mine.output, {batch_.ids.size(0), config_.vocab}, [this](int rank) { return logit_boxes(rank); },
        groups_.world(), options);
    if (batch_.labels.defined()) {
      // Every tp rank has the same loss; it counts once.
      const bool counts = mine.loss.defined() && parallel_.tp.rank() == 0;
      at::Tensor sum = counts ? mine.loss.to(at::kDouble) : at::zeros({}, options.dtype(at::kDouble));
      groups_.world().all_reduce(sum);
      if (world_.rank() == 0) whole.loss = sum;
    }
    if (options_.grads) whole.grads = assemble_gradients(specs_, parameters_, module_, groups_.world(), options);
    return whole;
  }

  // The part of the logits that a rank has, without what was filled up.
  std::vector<Box> logit_boxes(int global_rank) const {
    const Grid& grid = module_.dense;
    const int tp = grid.coord(global_rank, "tp"), cp = grid.coord(global_rank, "cp");
    if (grid.coord(global_rank, "pp") != grid.size_of("pp") - 1) return {};
    const ReplicaBatch batch = replica_batch(global_rank);
    const std::int64_t rows = batch.ids.size(0) / grid.size_of("cp"), columns = config_.vocab / grid.size_of("tp");
    const std::int64_t begin = batch.begin + cp * rows, end = std::min(begin + rows, batch.end);
    if (begin >= end) return {};
    return {{.global_begin = {begin, tp * columns}, .local_begin = {0, 0}, .size = {end - begin, columns}}};
  }

  const HybridLmConfig& config_;
  const TokenBatch& batch_;
  const ForwardOptions& options_;
  const Module& module_;
  const Groups groups_;
  const Parallel parallel_;
  const Group pp_;
  const std::vector<ParamSpec> specs_;
  Parameters parameters_;
  HybridLm model_;
  World& world_;
};

}  // namespace

ForwardResult forward_language(const HybridLmConfig& config, const Fill& fill, const TokenBatch& batch,
                               const ForwardOptions& options, const Topology& topology, World& world) {
  return LanguageRun(config, fill, batch, options, topology, world).run();
}

}  // namespace braid
