#include "forward/forward.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include "comm/world.h"
#include "data/batches/batch.h"
#include "mimo/executor.h"
#include "mimo/mimo_model.h"
#include "models/decoder.h"
#include "ops/cross_entropy.h"
#include "plan/pipeline.h"
#include "plan/schedule.h"

namespace braid {
namespace {

// --- whole tensors on rank 0

// The shape of a rank's shard, which its boxes tile.
std::vector<std::int64_t> extent(const std::vector<Box>& boxes) {
  std::vector<std::int64_t> shape(boxes.front().size.size(), 0);
  for (const Box& box : boxes)
    for (std::size_t dim = 0; dim < shape.size(); ++dim)
      shape[dim] = std::max(shape[dim], box.local_begin[dim] + box.size[dim]);
  return shape;
}

// A rank's shard of a tensor; no boxes: nothing.
using BoxesOf = std::function<std::vector<Box>(int global_rank)>;

// Adds every rank's `local` into a tensor of `shape` on rank 0, at the rank's boxes; undefined on other ranks. Boxes
// that several ranks hold are summed. Collective over `everyone`.
at::Tensor assemble(const at::Tensor& local, const std::vector<std::int64_t>& shape, const BoxesOf& boxes_of,
                    const Group& everyone, const at::TensorOptions& options) {
  at::NoGradGuard guard;
  if (everyone.rank() != 0) {
    if (!boxes_of(everyone.rank()).empty()) everyone.send(local.contiguous(), 0);
    return {};
  }
  at::Tensor whole = at::zeros(shape, options);
  for (int rank = 0; rank < everyone.size(); ++rank) {
    const std::vector<Box> boxes = boxes_of(rank);
    if (boxes.empty()) continue;
    at::Tensor part = rank == 0 ? local : at::empty(extent(boxes), options);
    if (rank != 0) everyone.receive(part, rank);
    for (const Box& box : boxes)
      box_of(whole, box.global_begin, box.size).add_(box_of(part, box.local_begin, box.size));
  }
  return whole;
}

// --- one rank

// One rank of a forward. The topology's only module is the model.
struct RankRun {
  RankRun(const ForwardOptions& options, const Topology& topology, World& world)
      : options(options), topology(topology), module(topology.language()), groups(world, topology),
        parallel(make_parallel(groups, module.name, options.sequence_parallel, options.overlap)), world(world) {}

  at::TensorOptions tensor_options() const { return at::TensorOptions(options.dtype).device(world.device()); }

  const ForwardOptions& options;
  const Topology& topology;
  const Module& module;
  const Groups groups;
  const Parallel parallel;
  World& world;
};

// The range of `count` sequences (or images, or clips) that a replica gets, in order and as evenly as possible.
SampleRange share_of_replica(std::size_t count, const Grid& grid, int global_rank) {
  const std::int64_t all = static_cast<std::int64_t>(count), replicas = grid.size_of("dp");
  const std::int64_t replica = grid.coord(global_rank, "dp");
  return {all * replica / replicas, all * (replica + 1) / replicas};
}

// The rows of these sequences; `offsets` has the first row of each.
SampleRange rows_of_replica(const std::vector<std::int64_t>& offsets, const Grid& grid, int global_rank) {
  const auto [first, last] = share_of_replica(offsets.size() - 1, grid, global_rank);
  return {offsets[first], offsets[last]};
}

bool is_in_last_stage(const Grid& grid, int global_rank) {
  return grid.coord(global_rank, "pp") == grid.size_of("pp") - 1;
}

// A rank's pipeline stages of a model, on its replica's share of a batch. All arguments must outlive it.
template <class Model>
class ModelWork : public StageWork {
 public:
  template <class Config>
  ModelWork(const Config& config, const Parameters& parameters, const RankRun& rank, std::vector<std::int64_t> shape,
            bool has_loss)
      : shape(std::move(shape)), has_loss(has_loss), rank_(rank), width_(hidden_of(config)) {
    for (const Stage& stage : stages_of(rank.topology, rank.world.rank()))
      models_.emplace_back(stage.index, std::make_unique<Model>(config, parameters, rank.parallel, stage.index,
                                                                stage_count(rank.module), rank.options.recompute));
  }

  const std::vector<std::int64_t> shape;  // of the output of all ranks
  const bool has_loss;
  at::Tensor output{}, loss{};  // of the last stage

 protected:
  const Model& model_of(const Stage& stage) const {
    const auto found = std::ranges::find(models_, stage.index, [](const auto& model) { return model.first; });
    BRAID_CHECK(found != models_.end(), "stage {} is not on this rank", stage.index);
    return *found->second;
  }

  const RankRun& rank_;
  const std::int64_t width_;

 private:
  std::vector<std::pair<int, std::unique_ptr<Model>>> models_;
};

// --- language models

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

class LanguageWork : public ModelWork<Decoder> {
 public:
  LanguageWork(const LanguageConfig& config, const Parameters& parameters, const TokenBatch& batch, const RankRun& rank)
      : ModelWork(config, parameters, rank, {batch.ids.size(0), vocab_of(config)}, batch.labels.defined()),
        whole_(batch), batch_(batch_of_replica(batch, rank.module.dense, rank.world.rank())),
        counted_labels_(has_loss ? (batch.labels != kIgnoredLabel).sum().item<std::int64_t>() : 0) {}

  // The sequences are the same for all stages.
  void load(const Stage& stage, int) override {
    if (!sequences_) sequences_ = pack_sequences(batch_.offsets, rank_.world.device());
    if (model_of(stage).is_first_stage()) ids_ = own(batch_.ids);
    if (model_of(stage).is_last_stage() && has_loss) labels_ = own(batch_.labels);
  }

  at::Tensor forward(const Stage& stage, int, const std::vector<at::Tensor>& inputs) override {
    const Decoder& model = model_of(stage);
    const SequenceBatch sequences = {
        .sequences = *sequences_, .samples = 1, .aux_loss_scale = rank_.options.aux_loss_scale};
    const at::Tensor x = model.run_layers(model.is_first_stage() ? model.embed(ids_) : inputs.at(0), sequences);
    if (!model.is_last_stage()) return x;
    const at::Tensor scores = model.logits(x);
    output = rank_.options.grads ? scores.detach().clone() : scores;  // backward overwrites them
    if (!has_loss) return scores;
    loss = model.token_losses(scores, labels_).sum() / static_cast<double>(counted_labels_);
    return loss;
  }

  at::Tensor gradient_of_last(int, const at::Tensor& last) override { return at::ones_like(last); }
  EdgeRows rows_over(int, int) const override { return {0, own_rows_of(batch_.ids.size(0), rank_.parallel), width_}; }

  // The slice of the logits that a rank holds, without padding.
  std::vector<Box> boxes(int global_rank) const {
    const Grid& grid = rank_.module.dense;
    if (!is_in_last_stage(grid, global_rank)) return {};
    const ReplicaBatch replica = batch_of_replica(whole_, grid, global_rank);
    const std::int64_t rows = replica.ids.size(0) / grid.size_of("cp"), columns = shape[1] / grid.size_of("tp");
    const std::int64_t begin = replica.begin + grid.coord(global_rank, "cp") * rows;
    const std::int64_t end = std::min(begin + rows, replica.end);
    if (begin >= end) return {};
    return {{.global_begin = {begin, grid.coord(global_rank, "tp") * columns},
             .local_begin = {0, 0},
             .size = {end - begin, columns}}};
  }

 private:
  at::Tensor own(const at::Tensor& tokens) const { return own_tokens(tokens, rank_.parallel).to(rank_.world.device()); }

  const TokenBatch& whole_;
  const ReplicaBatch batch_;
  const std::int64_t counted_labels_;
  std::optional<PackedSequences> sequences_;
  at::Tensor ids_, labels_;  // of the first and of the last stage
};

// --- encoders

int feature_width(const EncoderModel& config) {
  const auto* audio = std::get_if<AudioConfig>(&config);
  return audio ? audio->feature_width() : hidden_of(config);
}

// The first row of each item, and the number of rows; `divisor`: of an item's patches or frames.
std::vector<std::int64_t> offsets_of(const Extents& items, std::int64_t divisor = 1) {
  std::vector<std::int64_t> offsets = {0};
  for (const auto& extent : items) offsets.push_back(offsets.back() + input_rows(extent) / divisor);
  return offsets;
}

std::vector<std::int64_t> feature_offsets(const EncoderModel& config, const Extents& items) {
  const auto* audio = std::get_if<AudioConfig>(&config);
  return offsets_of(items, audio ? audio->frames_per_token() : 1);
}

class EncoderWork : public ModelWork<Encoder> {
 public:
  EncoderWork(const EncoderModel& config, const Parameters& parameters, const ItemBatch& batch, const RankRun& rank)
      : ModelWork(config, parameters, rank, {feature_offsets(config, batch.items).back(), feature_width(config)},
                  rank.options.grads),
        config_(config), batch_(batch), feature_offsets_(feature_offsets(config, batch.items)) {
    const auto [first, last] = share_of_replica(batch.items.size(), rank.module.dense, rank.world.rank());
    items_.assign(batch.items.begin() + first, batch.items.begin() + last);
  }

  void load(const Stage& stage, int) override {
    if (model_of(stage).is_first_stage()) input_ = own(batch_.values, offsets_of(batch_.items));
  }

  at::Tensor forward(const Stage& stage, int, const std::vector<at::Tensor>& inputs) override {
    const Encoder& model = model_of(stage);
    const at::Tensor x = model.run_layers(model.is_first_stage() ? model.embed(input_, items_) : inputs.at(0), items_);
    if (!model.is_last_stage()) return x;
    const at::Tensor own_features = model.features(x, items_);
    output = own_features.detach();
    loss = (batch_.feature_grads.defined()
                ? own_features * own(batch_.feature_grads, feature_offsets_).to(own_features.options())
                : own_features)
               .sum();
    return loss;
  }

  // Every tp rank computes the same loss from the same features; the sum over tp must count it once.
  at::Tensor gradient_of_last(int, const at::Tensor& last) override {
    return at::full_like(last, 1.0 / rank_.parallel.tp.size());
  }

  EdgeRows rows_over(int, int) const override {
    return {0, sum_of<std::int64_t>(items_, [&](auto& extent) { return hidden_rows_of(config_, extent); }), width_};
  }

  // Every tp rank of the last pipeline stage has its replica's features; tp rank 0 contributes them.
  std::vector<Box> boxes(int global_rank) const {
    const Grid& grid = rank_.module.dense;
    if (!is_in_last_stage(grid, global_rank) || grid.coord(global_rank, "tp") != 0) return {};
    const auto [begin, end] = rows_of_replica(feature_offsets_, grid, global_rank);
    if (begin == end) return {};
    return {{.global_begin = {begin, 0}, .local_begin = {0, 0}, .size = {end - begin, shape[1]}}};
  }

 private:
  at::Tensor own(const at::Tensor& all, const std::vector<std::int64_t>& offsets) const {
    const auto [begin, end] = rows_of_replica(offsets, rank_.module.dense, rank_.world.rank());
    return all.slice(0, begin, end).to(rank_.world.device());
  }

  const EncoderModel& config_;
  const ItemBatch& batch_;
  const std::vector<std::int64_t> feature_offsets_;
  Extents items_;     // of this replica
  at::Tensor input_;  // of the first stage
};

// --- both

// One microbatch through all pipeline stages, and its backward if requested. Results are assembled on rank 0.
template <class Work, class Config, class Batch>
ForwardResult run_model(const Config& config, const Fill& fill, const Batch& batch, const ForwardOptions& options,
                        const Topology& topology, World& world) {
  const RankRun rank(options, topology, world);
  const std::vector<ParamSpec> specs = declare_parameters(config, stage_count(rank.module));
  const auto stages = vector_of<int>(stages_of(topology, world.rank()), &Stage::index);
  Parameters parameters(specs, stages, shard_coordinates(rank.module, world.rank()), options.dtype, world.device());
  fill(parameters);
  Work work(config, parameters, batch, rank);
  const bool backward = options.grads && work.has_loss;
  const StepPlan plan(topology, {.microbatches = 1, .forward_only = !backward, .updates = false});
  Executor executor(plan, topology, rank.groups, rank.tensor_options(), work);
  for (const Op& op : plan.schedule.ranks[world.rank()]) executor.run(op);
  executor.finish();

  const Group& everyone = rank.groups.world();
  if (const std::vector<Box> kept = work.boxes(world.rank()); !kept.empty())
    work.output = work.output.narrow(0, 0, kept[0].size[0]);
  ForwardResult whole;
  whole.output = assemble(
      work.output, work.shape, [&](int global_rank) { return work.boxes(global_rank); }, everyone,
      rank.tensor_options());
  if (work.has_loss) {
    // Every tp rank of the last pipeline stage has the same loss; it counts once.
    const bool counts = work.loss.defined() && rank.parallel.tp.rank() == 0;
    const at::TensorOptions wide = rank.tensor_options().dtype(at::kDouble);
    at::Tensor sum = counts ? work.loss.detach().to(at::kDouble) : at::zeros({}, wide);
    everyone.all_reduce(sum);
    if (world.rank() == 0) whole.loss = sum;
  }
  const TakeTensor keep = [&](const auto& name, const auto& gradient) { whole.grads.emplace_back(name, gradient); };
  if (options.grads)
    assemble_gradients(specs, parameters, rank.module, everyone, rank.tensor_options(),
                       options.take_gradient ? options.take_gradient : keep);
  return whole;
}

}  // namespace

void assemble_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters, const Module& module,
                        const Group& everyone, const at::TensorOptions& options, const TakeTensor& take) {
  for (const ParamSpec& spec : specs) {
    if (!spec.trainable) continue;
    const auto boxes_of = [&](int rank) {
      const bool holds =
          module.dense.contains(rank) && module.dense.coord(rank, "pp") == spec.stage % module.dense.size_of("pp");
      return holds ? shard_boxes(spec, shard_coordinates(module, rank)) : std::vector<Box>();
    };
    at::Tensor gradient;
    if (const at::Tensor value = parameters.get_if_declared(spec.name); value.defined())
      gradient = value.grad().defined() ? value.grad() : at::zeros_like(value);
    const at::Tensor whole = assemble(gradient, spec.shape, boxes_of, everyone, options);
    if (whole.defined()) take(spec.name, whole);
  }
}

ForwardResult forward_language(const LanguageConfig& config, const Fill& fill, const TokenBatch& batch,
                               const ForwardOptions& options, const Topology& topology, World& world) {
  return run_model<LanguageWork>(config, fill, batch, options, topology, world);
}

ForwardResult forward_encoder(const EncoderModel& config, const Fill& fill, const ItemBatch& batch,
                              const ForwardOptions& options, const Topology& topology, World& world) {
  return run_model<EncoderWork>(config, fill, batch, options, topology, world);
}

}  // namespace braid
