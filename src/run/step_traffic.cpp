#include "run/step_traffic.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "optim/optimizer_collectives.h"
#include "plan/bridge.h"
#include "plan/channels.h"
#include "plan/frozen.h"

namespace braid {
namespace {

constexpr std::int64_t kNumberBytes = 8;  // of a double, and of an int64

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

class RankTraffic {
 public:
  RankTraffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan, const StepSizes& sizes,
              const StepSizes& next, int global_rank)
      : setup_(setup),
        topology_(topology),
        plan_(plan),
        sizes_(sizes),
        next_(next),
        rank_(global_rank),
        samples_(std::int64_t{setup.micro_batch} * topology.language().dense.size_of("dp")),
        bridge_(topology, plan.edges, samples_) {
    for (int m = 0; m < modules(); ++m)
      if (module(m).dense.contains(rank_)) add_optimizers(m);
  }

  TrafficTable count() {
    for (const Op& op : plan_.schedule.ranks[index(rank_)]) add(op);
    return std::move(table_);
  }

 private:
  void add(const Op& op) {
    switch (op.kind) {
      case Op::Begin:
      case Op::EndGather:
        return;
      case Op::Load:
        return load(op);
      case Op::Forward:
      case Op::Backward:
        return compute(op);
      case Op::Exchange:
        return exchange(op.transfers);
      case Op::StartGather:
        return for_optimizers(op.stage, &OptimizerCollectives::gathers);
      case Op::StartReduce:
        return for_optimizers(op.stage, &OptimizerCollectives::reductions);
      case Op::EndReduce:
        return for_optimizers(op.stage, &OptimizerCollectives::replica_sums);
      case Op::Update:
        return update();
    }
  }

  // --- what is counted

  void add(const std::string& channel, const std::string& operation, std::int64_t bytes, std::int64_t operations = 1) {
    Traffic& traffic = table_[{channel, operation}];
    traffic.operations += operations;
    traffic.bytes += bytes;
  }
  // A group of one rank does not communicate, nor does an empty tensor travel.
  void add(int m, const Collective& collective) {
    if (collective.bytes == 0 || group_size(module(m), collective.group) == 1) return;
    add(module(m).name + "." + collective.group, collective.operation, collective.bytes, collective.operations);
  }
  void add(int m, const Collectives& collectives) {
    for (const Collective& collective : collectives) add(m, collective);
  }

  // --- ops of stages

  // The leader shares the values of media with the ranks of its stage; text they already have.
  void load(const Op& op) {
    const int m = op.stage.module;
    if (!module(m).is_encoder) return;
    std::int64_t numbers = 0;
    for (const auto& extent : own_extents(sizes_, m, op.microbatch)) {
      std::int64_t rows = 1;
      for (const std::int64_t side : extent) rows *= side;
      numbers += rows * features_of(encoder(m).model);
    }
    add(m, {"cp-tp", "broadcast", numbers * sizes_.value_bytes[index(m)]});
  }

  void compute(const Op& op) {
    const int m = op.stage.module;
    const bool is_forward = op.kind == Op::Forward;
    const StageCollectives stage = module(m).is_encoder ? of_encoder(op) : of_language(op);
    add(m, is_forward ? stage.forward : stage.backward);
    if (!module(m).is_encoder && op.stage.index == 0) share_embeddings(m, op.microbatch, is_forward);
  }

  StageCollectives of_encoder(const Op& op) const {
    const std::string& name = module(op.stage.module).name;
    return collectives_of(encoder(op.stage.module), module(op.stage.module), op.stage.index, setup_.layers,
                          own_extents(sizes_, op.stage.module, op.microbatch),
                          {.encoder = trains(name + ".encoder"), .projector = trains(name + ".projector")});
  }

  StageCollectives of_language(const Op& op) const {
    const Module& language = module(op.stage.module);
    const StepSizes::Text& text = own_text(sizes_, op.stage.module, op.microbatch);
    return collectives_of(setup_.model.language, language, op.stage.index, setup_.layers,
                          {.tokens = text.tokens,
                           .samples = setup_.micro_batch,
                           .labels = text.labels[index(language.dense.coord(rank_, "cp"))],
                           .squares = text.squares},
                          trains(language.name));
  }

  // The leader of a language replica shares embeddings with its ranks, and sums up their gradients.
  void share_embeddings(int language, int microbatch, bool is_forward) {
    for (int m = 0; m < modules(); ++m) {
      if (!module(m).is_encoder) continue;
      if (!is_forward && !is_trained(topology_, plan_.options, {m, stage_count(module(m)) - 1})) continue;
      std::int64_t rows = 0;
      for (const std::int64_t count : embeddings(m, microbatch, bridge_.samples_of(language, rank_))) rows += count;
      add(language, {"cp-tp", is_forward ? "broadcast" : "reduce", rows * embedding_bytes()});
    }
  }

  // Counted at both ends.
  void exchange(const std::vector<Transfer>& transfers) {
    for (const Transfer& t : transfers) {
      const Edge& edge = plan_.edges[index(t.edge)];
      const bool forward = t.kind == Transfer::Activation;
      const std::int64_t bytes = bytes_over(t.edge, t.microbatch);
      if (bytes == 0) continue;
      add(fmt::format("{}.{} {}>{}", module(edge.from.module).name, key_of(channel_of(topology_, edge, t.kind)),
                      forward ? edge.from_rank : edge.to_rank, forward ? edge.to_rank : edge.from_rank),
          "exchange", bytes);
    }
  }

  std::int64_t bytes_over(int e, int microbatch) const {
    const Edge& edge = plan_.edges[index(e)];
    const int m = edge.from.module;
    if (edge.crosses_modules())
      return bridge_.slice(e, embeddings(m, microbatch, bridge_.samples_of(m, edge.from_rank))).rows *
             embedding_bytes();
    std::int64_t rows = 0;
    if (module(m).is_encoder) {
      for (const auto& extent : own_extents(sizes_, m, microbatch)) rows += hidden_rows_of(encoder(m).model, extent);
      return rows * hidden_of(encoder(m).model) * setup_.layers.element_bytes;
    }
    const int split = setup_.layers.sequence_parallel ? group_size(module(m), "cp-tp") : group_size(module(m), "cp");
    return own_text(sizes_, m, microbatch).tokens / split * embedding_bytes();
  }

  // --- the update

  void update() {
    if (topology_.world_size() > 1) add("world", "all_reduce", agreed_numbers() * kNumberBytes);
    for (int m = 0; m < modules(); ++m) {
      if (!module(m).dense.contains(rank_)) continue;
      add(m, {"pp-cp-tp", "broadcast", shared_numbers(m) * kNumberBytes});
      if (!module(m).is_encoder && trains(module(m).name))
        add(m, update_collectives(setup_.model.language, module(m), own_stages(m), setup_.layers));
    }
  }

  // One all-reduce (train/training.cpp): what Step::finish() returns, gradient_terms(), reasons to stop, and the sizes
  // of the next step (mimo/size_table.h).
  std::int64_t agreed_numbers() const {
    const std::int64_t totals = 7 + modules(), gradients = modules() + 2,
                       stops = static_cast<std::int64_t>(StopReason::SigInt) + 1;
    std::int64_t table = 1;
    for (int m = 0; m < modules(); ++m) {
      table += 2 * std::int64_t{module(m).dense.size_of("dp")} * plan_.options.microbatches;
      if (module(m).is_encoder) table += 3 * samples_ * plan_.options.microbatches;
    }
    return totals + gradients + stops + table;
  }

  // Ids, labels and boundaries of sequences, or extents: what a leader shares of the next step (mimo/batch_feed.cpp).
  std::int64_t shared_numbers(int m) const {
    std::int64_t numbers = 0;
    for (int microbatch = 0; microbatch < plan_.options.microbatches; ++microbatch) {
      if (module(m).is_encoder) {
        numbers += std::ssize(own_extents(next_, m, microbatch)) * extent_dims(encoder(m).model);
      } else {
        const StepSizes::Text& text = own_text(next_, m, microbatch);
        numbers += 2 * text.tokens + text.sequences + 1;
      }
    }
    return numbers;
  }

  struct Optimizer {
    int module;
    OptimizerCollectives collectives;
  };

  void add_optimizers(int m) {
    const Module& own = module(m);
    const int stages = stage_count(own);
    const auto add_set = [&](const std::string& set, const std::vector<ParamSpec>& specs) {
      if (trains(set)) optimizers_.push_back({m, {specs, own, rank_, setup_.optimizer, setup_.layers.element_bytes}});
    };
    if (!own.is_encoder) return add_set(own.name, declare_parameters(setup_.model.language, stages));
    add_set(own.name + ".encoder", declare_parameters(encoder(m).model, stages));
    add_set(own.name + ".projector", declare_parameters(encoder(m).projector, stages));
  }

  void for_optimizers(const Stage& stage, Collectives (OptimizerCollectives::*list)(int) const) {
    for (const Optimizer& optimizer : optimizers_)
      if (optimizer.module == stage.module) add(stage.module, (optimizer.collectives.*list)(stage.index));
  }

  // --- sizes of this rank

  int modules() const { return static_cast<int>(topology_.modules().size()); }
  const Module& module(int m) const { return topology_.modules()[index(m)]; }
  const EncoderConfig& encoder(int m) const { return encoder_of(setup_.model, module(m)); }
  bool trains(const std::string& set) const { return !contains(setup_.frozen, set); }
  std::int64_t embedding_bytes() const { return hidden_of(setup_.model.language) * setup_.layers.element_bytes; }

  std::vector<int> own_stages(int m) const {
    std::vector<int> stages;
    for (const Stage& stage : stages_of(topology_, rank_))
      if (stage.module == m) stages.push_back(stage.index);
    return stages;
  }
  const StepSizes::Text& own_text(const StepSizes& sizes, int m, int microbatch) const {
    return sizes.text[index(microbatch)][index(module(m).dense.coord(rank_, "dp"))];
  }
  StepSizes::Extents own_extents(const StepSizes& sizes, int m, int microbatch) const {
    const SampleRange own = bridge_.samples_of(m, rank_);
    StepSizes::Extents all;
    for (std::int64_t s = own.begin; s < own.end; ++s)
      std::ranges::copy(sizes.media[index(m)][index(microbatch)][index(s)], std::back_inserter(all));
    return all;
  }
  // Of each sample.
  std::vector<std::int64_t> embeddings(int m, int microbatch, const SampleRange& samples) const {
    std::vector<std::int64_t> counts;
    for (std::int64_t s = samples.begin; s < samples.end; ++s) {
      counts.push_back(0);
      for (const auto& extent : sizes_.media[index(m)][index(microbatch)][index(s)])
        counts.back() += rows_of(encoder(m), extent);
    }
    return counts;
  }

  const StepSetup& setup_;
  const Topology& topology_;
  const StepPlan& plan_;
  const StepSizes &sizes_, &next_;
  const int rank_;
  const std::int64_t samples_;  // per microbatch, over all language replicas
  const Bridge bridge_;
  std::vector<Optimizer> optimizers_;
  TrafficTable table_;
};

// The largest media of one sub-sequence, by encoder, as far as its tokens have room for them.
std::vector<StepSizes::Extents> largest_media(const Recipe& recipe, const Topology& topology) {
  std::vector<StepSizes::Extents> all;
  std::int64_t room = piece_length(recipe.data, recipe.model.model) - kRoomForText;
  for (const Module& module : topology.modules()) {
    StepSizes::Extents& items = all.emplace_back();
    if (!module.is_encoder) continue;
    const EncoderConfig& encoder = encoder_of(recipe.model.model, module);
    const MockMediaConfig& mock = mock_of(recipe.data, module.name);
    const std::vector<std::int64_t> extent = fitting_extent(encoder, mock.max_size, mock.max_size);
    const std::int64_t rows = rows_of(encoder, extent), wanted = mock.share > 0 ? mock.max_items : 0;
    const std::int64_t count = std::min(wanted, room / rows);
    items.assign(index(count), extent);
    room -= count * rows;
  }
  return all;
}

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

const EncoderConfig& encoder_of(const Provider& provider, const Module& module) {
  for (const EncoderConfig& encoder : provider.encoders)
    if (encoder.name == module.name) return encoder;
  throw_check_failed(__FILE__, __LINE__, fmt::format("{} has no encoder '{}'", provider.name, module.name));
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

TrafficTable step_traffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan,
                          const StepSizes& sizes, const StepSizes& next, int global_rank) {
  return RankTraffic(setup, topology, plan, sizes, next, global_rank).count();
}

}  // namespace braid
