// Forwards of encoders. Images or clips are assigned to replicas, and features are assembled on rank 0.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>

#include "forward/rank_run.h"
#include "models/encoder.h"

namespace braid {
namespace {

// An encoder's input: items (images, clips) concatenated, each with its rows of the input and of the features.
struct ItemBatch {
  at::Tensor input, feature_grads;
  Extents items;
  std::vector<std::int64_t> input_offsets, feature_offsets;  // of the items: 0 ... number of rows
  std::int64_t feature_width;
};

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths, std::int64_t divisor = 1) {
  std::vector<std::int64_t> offsets = {0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length / divisor);
  return offsets;
}

// Every tp rank of the last pipeline stage has its replica's features; tp rank 0 contributes them.
std::vector<Box> feature_boxes(const std::vector<std::int64_t>& offsets, std::int64_t width, const Grid& grid,
                               int global_rank) {
  if (grid.coord(global_rank, "pp") != grid.size_of("pp") - 1 || grid.coord(global_rank, "tp") != 0) return {};
  const auto [begin, end] = rows_of_replica(offsets, grid, global_rank);
  if (begin == end) return {};
  return {{.global_begin = {begin, 0}, .local_begin = {0, 0}, .size = {end - begin, width}}};
}

// A rank's pipeline stages of an encoder, on its replica's items.
class EncoderWork : public StageWork {
 public:
  EncoderWork(const StageModels<Encoder>& models, const EncoderModel& config, const ItemBatch& batch,
              const RankRun& rank)
      : models_(models), config_(config), batch_(batch), rank_(rank) {
    const auto [first, last] = share_of_replica(batch.items.size(), rank.module.dense, rank.world.rank());
    items_.assign(batch.items.begin() + first, batch.items.begin() + last);
  }

  void load(const Stage& stage, int) override {
    if (models_.of(stage).is_first_stage()) input_ = own(batch_.input, batch_.input_offsets);
  }

  at::Tensor forward(const Stage& stage, int, const std::vector<at::Tensor>& inputs) override {
    const Encoder& model = models_.of(stage);
    const at::Tensor x = model.run_layers(model.is_first_stage() ? model.embed(input_, items_) : inputs.at(0), items_);
    if (!model.is_last_stage()) return x;
    const at::Tensor own_features = model.features(x, items_);
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
    for (const auto& extent : items_) rows += hidden_rows_of(config_, extent);
    return {0, rows, hidden_of(config_)};
  }

  at::Tensor features{}, loss{};  // of the last stage

 private:
  at::Tensor own(const at::Tensor& all, const std::vector<std::int64_t>& offsets) const {
    const auto [begin, end] = rows_of_replica(offsets, rank_.module.dense, rank_.world.rank());
    return all.slice(0, begin, end).to(rank_.world.device());
  }

  const StageModels<Encoder>& models_;
  const EncoderModel config_;
  const ItemBatch& batch_;
  const RankRun& rank_;
  Extents items_;
  at::Tensor input_;  // of the first stage
};

ForwardResult run_encoder(const EncoderModel& config, const Fill& fill, const ItemBatch& batch,
                          const ForwardOptions& options, const Topology& topology, World& world) {
  const RankRun rank(options, topology, world);
  const std::vector<ParamSpec> specs = declare_parameters(config, stage_count(rank.module));
  const Parameters parameters = rank.make_parameters(specs, fill);
  const StageModels<Encoder> models(config, parameters, rank);
  EncoderWork work(models, config, batch, rank);
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

ForwardResult forward_vision(const EncoderModel& config, const Fill& fill, const ImageBatch& batch,
                             const ForwardOptions& options, const Topology& topology, World& world) {
  std::vector<std::int64_t> patches;
  for (const PatchGrid& image : batch.images) patches.push_back(image.patches());
  const std::vector<std::int64_t> offsets = offsets_of(patches);
  const ItemBatch items = {batch.patches, batch.feature_grads, extents_of(batch.images), offsets,
                           offsets,       hidden_of(config)};
  return run_encoder(config, fill, items, options, topology, world);
}

ForwardResult forward_audio(const AudioConfig& config, const Fill& fill, const AudioBatch& batch,
                            const ForwardOptions& options, const Topology& topology, World& world) {
  const ItemBatch items = {batch.frames,
                           batch.feature_grads,
                           extents_of(batch.lengths),
                           offsets_of(batch.lengths),
                           offsets_of(batch.lengths, config.frames_per_token()),
                           config.feature_width()};
  return run_encoder(config, fill, items, options, topology, world);
}

}  // namespace braid
