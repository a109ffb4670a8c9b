#include "run/step_sizes.h"
#include "plan/channels.h"

namespace braid {
namespace {

// The largest media that fit into the tokens of one sub-sequence, by encoder.
std::vector<StepSizes::Extents> largest_media(const Recipe& recipe, const Topology& topology) {
  std::vector<StepSizes::Extents> all;
  std::int64_t room = piece_length(recipe.data, recipe.model.model) - kRoomForText;
  for (const Module& module : topology.modules()) {
    StepSizes::Extents& items = all.emplace_back();
    if (!module.is_encoder) continue;
    const EncoderConfig& encoder = encoder_of(recipe.model.model, module);
    const MockMediaConfig& mock = mock_of(recipe.data, module.name);
    std::int64_t side = mock.max_size;  // patches (or frames) along the longest side of an item
    const PictureConfig& pictures = recipe.data.set.pictures;
    if (!is_mock(recipe.data) && pictures.fit == PictureFit::Dynamic && pictures.max_patches > 0)
      side = std::min<std::int64_t>(side, std::lround(std::floor(std::sqrt(pictures.max_patches))));
    const std::vector<std::int64_t> extent = fitting_extent(encoder, side, side);
    const std::int64_t rows = rows_of(encoder, extent), wanted = mock.share > 0 ? mock.max_items : 0;
    const std::int64_t count = std::min(wanted, room / rows);
    items.assign(index(count), extent);
    room -= count * rows;
  }
  return all;
}

constexpr std::int64_t kNumberBytes = 8;  // of a double, and of an int64

}  // namespace

StepSetup step_setup(const Recipe& recipe) {
  const std::int64_t element_bytes = recipe.model.dtype == "bfloat16" ? 2 : recipe.model.dtype == "float32" ? 4 : 8;
  return {.model = recipe.model.model,
          .optimizer = recipe.optimizer,
          .frozen = frozen_sets(recipe),
          .layers = {.element_bytes = element_bytes,
                     .sequence_parallel = recipe.model.sequence_parallel,
                     .recompute = recompute_config(recipe.model.recompute),
                     .overlap = recipe.model.overlap,
                     .deterministic = recipe.train.deterministic},
          .micro_batch = recipe.train.micro_batch};
}

ScheduleOptions schedule_options_of(const Recipe& recipe, const Topology& topology) {
  ScheduleOptions options = schedule_options(topology, frozen_sets(recipe),
                                             microbatches_of(workload_of(recipe), topology), recipe.train.prefetch);
  options.overlap_reduce = recipe.optimizer.overlap_grad_reduce;
  options.overlap_gather = recipe.optimizer.overlap_param_gather;
  return options;
}

StepSizes full_step(const Recipe& recipe, const Topology& topology) {
  const std::int64_t pieces = recipe.data.packed, micro_batch = recipe.train.micro_batch;
  const std::int64_t tokens = micro_batch * pieces * piece_length(recipe.data, recipe.model.model);
  const Grid& language = topology.language().dense;
  const std::int64_t cp = language.size_of("cp"), replicas = language.size_of("dp");
  const auto microbatches = index(microbatches_of(workload_of(recipe), topology));
  const double length = piece_length(recipe.data, recipe.model.model);
  const StepSizes::Text text = {.tokens = tokens,
                                .sequences = micro_batch * pieces,
                                .labels = std::vector<std::int64_t>(index(cp), tokens / cp),
                                .squares = static_cast<double>(micro_batch * pieces) * length * length};
  StepSizes sizes = {.text{microbatches, std::vector<StepSizes::Text>(index(replicas), text)}};
  for (const StepSizes::Extents& of_piece : largest_media(recipe, topology)) {
    StepSizes::Extents of_sample;
    for (std::int64_t piece = 0; piece < pieces; ++piece) std::ranges::copy(of_piece, std::back_inserter(of_sample));
    sizes.media.emplace_back(microbatches, std::vector<StepSizes::Extents>(index(micro_batch * replicas), of_sample));
    sizes.value_bytes.push_back(is_mock(recipe.data) ? 8 : 1);  // pixels are bytes
  }
  return sizes;
}

// --- on one rank

RankStep::RankStep(const StepSetup& setup, const std::vector<Module>& modules, const ScheduleOptions& options,
                   const StepSizes& sizes, int global_rank)
    : setup_(setup), modules_(modules), options_(options), sizes_(sizes), rank_(global_rank),
      language_(static_cast<int>(std::ranges::find(modules, false, &Module::is_encoder) - modules.begin())),
      samples_(std::int64_t{setup.micro_batch} * module(language_).dense.size_of("dp")) {}

TextSizes RankStep::text(int microbatch) const {
  const StepSizes::Text& text = replica_text(microbatch);
  std::int64_t rows = 0;
  for (int m = 0; m < modules(); ++m)
    if (module(m).is_encoder) rows += embeddings(m, microbatch, samples_of(language_, rank_));
  return {.tokens = text.tokens,
          .samples = setup_.micro_batch,
          .labels = text.labels[index(module(language_).dense.coord(rank_, "cp"))],
          .squares = text.squares,
          .embeddings = rows};
}

StepSizes::Extents RankStep::extents(int m, int microbatch) const {
  const SampleRange own = samples_of(m, rank_);
  StepSizes::Extents all;
  for (std::int64_t s = own.begin; s < own.end; ++s)
    std::ranges::copy(sizes_.media[index(m)][index(microbatch)][index(s)], std::back_inserter(all));
  return all;
}

std::int64_t RankStep::media_bytes(int m, int microbatch) const {
  const auto numbers = [&](const auto& extent) { return num_elements(extent) * features_of(encoder(m).model); };
  return sum_of<std::int64_t>(extents(m, microbatch), numbers) * sizes_.value_bytes[index(m)];
}

StageOnPaper RankStep::walk(const Stage& stage, int microbatch) const {
  const int m = stage.module;
  const Module& own = module(m);
  if (!own.is_encoder)
    return walk_stage(setup_.model.language, own, stage.index, setup_.layers, text(microbatch), trains(own.name));
  return walk_stage(encoder(m), own, stage.index, setup_.layers, extents(m, microbatch),
                    {.encoder = trains(own.name + ".encoder"), .projector = trains(own.name + ".projector")});
}

std::int64_t RankStep::embeddings(int m, int microbatch, const SampleRange& samples) const {
  std::int64_t rows = 0;
  for (std::int64_t s = samples.begin; s < samples.end; ++s)
    for (const auto& extent : sizes_.media[index(m)][index(microbatch)][index(s)]) rows += rows_of(encoder(m), extent);
  return rows;
}

std::vector<DeclaredSet> declared_sets(const StepSetup& setup, const Module& module) {
  const auto trains = [&](const char* part) { return !contains(setup.frozen, module.name + part); };
  const int stages = stage_count(module);
  if (!module.is_encoder) return {{declare_parameters(setup.model.language, stages), trains("")}};
  const EncoderConfig& encoder = encoder_of(setup.model, module);
  return {{declare_parameters(encoder.model, stages), trains(".encoder")},
          {declare_parameters(encoder.projector, stages), trains(".projector")}};
}

// --- ops of stages

Collectives RankStep::load(const Stage& stage, int microbatch) const {
  const int m = stage.module;
  if (!module(m).is_encoder) return {};
  return {{"cp-tp", "broadcast", media_bytes(m, microbatch)}};
}

std::vector<std::int64_t> RankStep::input_sizes(const Stage& stage, int microbatch) const {
  std::vector<std::int64_t> sizes;
  if (!module(stage.module).is_encoder) {
    const TextSizes own = text(microbatch);
    sizes = {own.tokens, own.labels, std::llround(own.squares)};
    for (const Collective& shared : shared_embeddings(stage, microbatch, true)) sizes.push_back(shared.bytes);
    return sizes;
  }
  for (const auto& extent : extents(stage.module, microbatch)) sizes.insert(sizes.end(), extent.begin(), extent.end());
  return sizes;
}

Collectives RankStep::shared_embeddings(const Stage& stage, int microbatch, bool is_forward) const {
  if (module(stage.module).is_encoder || stage.index != 0) return {};
  Collectives all;
  for (int m = 0; m < modules(); ++m) {
    if (!module(m).is_encoder) continue;
    if (!is_forward && contains(options_.frozen, module(m).name)) continue;
    const std::int64_t rows = embeddings(m, microbatch, samples_of(stage.module, rank_));
    all.push_back({"cp-tp", is_forward ? "broadcast" : "reduce", rows * embedding_bytes()});
  }
  return all;
}

std::int64_t RankStep::transfer_bytes(const Edge& edge, int microbatch) const {
  const int m = edge.from.module;
  if (edge.crosses_modules()) {
    const SampleRange from = samples_of(m, edge.from_rank), to = samples_of(edge.to.module, edge.to_rank);
    return embeddings(m, microbatch, {std::max(from.begin, to.begin), std::min(from.end, to.end)}) * embedding_bytes();
  }
  if (module(m).is_encoder) {
    const auto rows = [&](const auto& extent) { return hidden_rows_of(encoder(m).model, extent); };
    return sum_of<std::int64_t>(extents(m, microbatch), rows) * hidden_of(encoder(m).model) *
           setup_.layers.element_bytes;
  }
  const int split = setup_.layers.sequence_parallel ? group_size(module(m), "cp-tp") : group_size(module(m), "cp");
  return replica_text(microbatch).tokens / split * embedding_bytes();
}

// --- the update

// One all-reduce carries Step::finish(), gradient_terms(), reasons to stop and the next sizes (mimo/batch_feed.cpp).
std::int64_t RankStep::agreed_bytes() const {
  const std::int64_t totals = 7 + modules(), gradients = modules() + 2,
                     stops = static_cast<std::int64_t>(StopReason::SigInt) + 1;
  std::int64_t table = 1;
  for (int m = 0; m < modules(); ++m) {
    table += 2 * std::int64_t{module(m).dense.size_of("dp")} * options_.microbatches;
    table += (module(m).is_encoder ? 4 : 1) * samples_ * options_.microbatches;
  }
  return (totals + gradients + stops + table) * kNumberBytes;
}

Collectives RankStep::update(int m, const StepSizes& next) const {
  Collectives all = {
      {"pp-cp-tp", "broadcast", RankStep(setup_, modules_, options_, next, rank_).shared_numbers(m) * kNumberBytes}};
  if (!module(m).is_encoder && trains(module(m).name))
    std::ranges::copy(update_collectives(setup_.model.language, module(m), own_stages(m), setup_.layers),
                      std::back_inserter(all));
  return all;
}

// What a leader broadcasts of a step: ids, labels and boundaries, or extents (mimo/batch_feed.cpp).
std::int64_t RankStep::shared_numbers(int m) const {
  std::int64_t numbers = 0;
  for (int microbatch = 0; microbatch < options_.microbatches; ++microbatch) {
    if (module(m).is_encoder) {
      numbers += std::ssize(extents(m, microbatch)) * extent_dims(encoder(m).model);
    } else {
      const StepSizes::Text& text = replica_text(microbatch);
      numbers += 2 * text.tokens + text.sequences + 1;
    }
  }
  return numbers;
}

std::vector<int> RankStep::own_stages(int m) const {
  const int pp = module(m).dense.size_of("pp");
  std::vector<int> stages;
  for (int stage = module(m).dense.coord(rank_, "pp"); stage < stage_count(module(m)); stage += pp)
    stages.push_back(stage);
  return stages;
}

// --- optimizers

RankOptimizers::RankOptimizers(const StepSetup& setup, const std::vector<Module>& modules, int global_rank) {
  for (int m = 0; m < static_cast<int>(modules.size()); ++m) {
    const Module& own = modules[static_cast<std::size_t>(m)];
    if (!own.dense.contains(global_rank)) continue;
    for (const DeclaredSet& set : declared_sets(setup, own))
      if (set.trains)
        optimizers_.push_back({m, {set.specs, own, global_rank, setup.optimizer, setup.layers.element_bytes}});
  }
}

Collectives RankOptimizers::all_of(const Stage& stage, Collectives (OptimizerCollectives::*list)(int) const) const {
  Collectives all;
  for (const Optimizer& optimizer : optimizers_)
    if (optimizer.module == stage.module)
      std::ranges::copy((optimizer.collectives.*list)(stage.index), std::back_inserter(all));
  return all;
}

OptimizerElements RankOptimizers::elements() const {
  OptimizerElements sum;
  for (const Optimizer& optimizer : optimizers_) {
    const OptimizerElements own = optimizer.collectives.elements();
    sum.gradients += own.gradients;
    sum.updated += own.updated;
    sum.fp8 += own.fp8;
  }
  return sum;
}

TrafficTable step_traffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan,
                          const StepSizes& sizes, const StepSizes& next, int global_rank) {
  const RankStep step(setup, topology.modules(), plan.options, sizes, global_rank);
  const RankOptimizers optimizers(setup, topology.modules(), global_rank);
  std::map<std::vector<std::int64_t>, std::vector<PaperLayer>> stages;  // by the sizes of their input
  TrafficTable table;
  const auto add_one = [&](const std::string& meeting, const std::string& operation, std::int64_t bytes,
                           std::int64_t operations = 1) {
    Traffic& traffic = table[{meeting, operation}];
    traffic.operations += operations;
    traffic.bytes += bytes;
  };
  // Groups of one rank do not communicate, and empty tensors are not sent.
  const auto add = [&](int m, const Collectives& collectives) {
    const Module& module = topology.module(m);
    for (const Collective& collective : collectives)
      if (collective.bytes > 0 && group_size(module, collective.group) > 1)
        add_one(module.name + "." + collective.group, collective.operation, collective.bytes, collective.operations);
  };
  const auto compute = [&](const Op& op) {
    const bool is_forward = op.kind == Op::Forward;
    std::vector<std::int64_t> input = step.input_sizes(op.stage, op.microbatch);
    input.insert(input.end(), {op.stage.module, op.stage.index});
    const auto [found, is_new] = stages.try_emplace(std::move(input));
    if (is_new) found->second = step.walk(op.stage, op.microbatch).layers;
    for (const PaperLayer& layer : found->second)
      add(op.stage.module, is_forward ? layer.collectives.forward : layer.collectives.backward);
    add(op.stage.module, step.shared_embeddings(op.stage, op.microbatch, is_forward));
  };
  // Transfers are counted at both ends.
  const auto exchange = [&](const Transfer& t) {
    const Edge& edge = plan.edges[index(t.edge)];
    const bool forward = t.kind == Transfer::Activation;
    const int from = forward ? edge.from_rank : edge.to_rank, to = forward ? edge.to_rank : edge.from_rank;
    if (const std::int64_t bytes = step.transfer_bytes(edge, t.microbatch); bytes > 0)
      add_one(fmt::format("{}.{} {}>{}", topology.module(edge.from.module).name,
                          key_of(channel_of(topology, edge, t.kind)), from, to),
              "exchange", bytes);
  };
  for (const Op& op : plan.schedule.ranks[index(global_rank)]) {
    const int m = op.stage.module;
    if (op.kind == Op::Load) add(m, step.load(op.stage, op.microbatch));
    if (op.kind == Op::Forward || op.kind == Op::Backward) compute(op);
    if (op.kind == Op::Exchange) std::ranges::for_each(op.transfers, exchange);
    if (op.kind == Op::StartGather) add(m, optimizers.gathers(op.stage));
    if (op.kind == Op::StartReduce) add(m, optimizers.reductions(op.stage));
    if (op.kind == Op::EndReduce) add(m, optimizers.replica_sums(op.stage));
    if (op.kind != Op::Update) continue;
    if (topology.world_size() > 1) add_one("world", "all_reduce", step.agreed_bytes());
    for (int module = 0; module < static_cast<int>(topology.modules().size()); ++module)
      if (topology.module(module).dense.contains(global_rank)) add(module, step.update(module, next));
  }
  return table;
}

}  // namespace braid
