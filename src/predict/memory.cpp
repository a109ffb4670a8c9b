#include "predict/memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "optim/optimizer_memory.h"
#include "plan/channels.h"
#include "plan/schedule.h"
#include "predict/heaviest_ranks.h"
#include "run/rank_sizes.h"

namespace braid {
namespace {

// Estimates of memory outside the allocator, and of its slack.
constexpr std::int64_t kContextBytes = 670'000'000;       // of CUDA, cuBLAS and cuDNN
constexpr std::int64_t kCommunicatorBytes = 200'000'000;  // of NCCL, for each group of a rank
constexpr double kSlackShare = 0.22;                      // share of the memory that is allocated and freed in a step
constexpr std::int64_t kProcessBytes = 150'000'000;       // of a rank on a CPU, without tensors

// The number of ranks of a stage that are examined.
constexpr std::size_t kRanksOfStage = 4;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

class RankWalk {
 public:
  RankWalk(const StepSetup& setup, const Topology& topology, const ScheduleOptions& options, const StepSizes& sizes,
           int global_rank)
      : setup_(setup),
        topology_(topology),
        options_(options),
        sizes_(setup, topology.modules(), sizes, global_rank),
        rank_(global_rank),
        constant_(topology.modules().size()) {
    for (int m = 0; m < sizes_.modules(); ++m)
      if (module(m).dense.contains(rank_)) add_state(m);
  }

  RankMemory walk() {
    const std::vector<Op> turns = turns_of(topology_, options_, rank_);
    held_ = constant_;
    result_.global_rank = rank_;
    note(constant_, "all of a step");
    for (std::size_t i = 0; i < turns.size(); ++i) run(turns[i], i + 1 < turns.size() ? &turns[i + 1] : nullptr);
    return std::move(result_);
  }

 private:
  using Modules = std::vector<MemoryBytes>;

  static std::int64_t& of(Modules& bytes, int m, MemoryKind kind) {
    return bytes[index(m)][static_cast<std::size_t>(kind)];
  }

  void run(const Op& op, const Op* next) {
    const int m = op.stage.module;
    const StageMemory& memory = memory_of_stage(op.stage, op.microbatch);
    const bool trains = is_trained(op.stage), is_forward = op.kind == Op::Forward;
    Modules now = held_;
    if (next) add_inputs(now, *next);
    add_inputs(now, op, /*loaded=*/true);
    if (!is_forward) release(now, op.stage, op.microbatch);
    if (starts_reduction(op) && options_.overlap_reduce) add_reductions(held_, now, m);
    add_running(now, m, memory, is_forward ? memory.forward : memory.backward);
    if (is_forward) {
      if (trains) hold(op.stage, op.microbatch);
      send(m, trains ? 0 : memory.output);
      if (is_first_of_language(op.stage)) hold_embeddings(op.microbatch);
    } else {
      release(held_, op.stage, op.microbatch);
      send(m, memory.input);
      if (is_first_of_language(op.stage)) release_embeddings(op.microbatch);
    }
    if (starts_reduction(op) && !options_.overlap_reduce) add_reductions(held_, now, m);
    note(now, describe(op, topology_));
  }

  // --- what is counted

  void add_running(Modules& now, int m, const StageMemory& memory, std::int64_t peak) {
    of(now, m, MemoryKind::Logits) += memory.logits;
    of(now, m, activations_of(m)) += memory.saved - memory.logits;
    of(now, m, MemoryKind::Working) += std::max<std::int64_t>(0, peak - memory.saved);
  }

  void note(const Modules& now, const std::string& at) {
    std::int64_t all = 0;
    for (const MemoryBytes& bytes : now) all += total_of(bytes);
    if (all <= result_.peak) return;
    result_.peak = all;
    result_.modules = now;
    result_.at = at;
  }

  MemoryKind activations_of(int m) const {
    return module(m).is_encoder ? MemoryKind::EncoderActivations : MemoryKind::Activations;
  }

  void change_saved(Modules& bytes, const Stage& stage, int microbatch, int sign) {
    const StageMemory& memory = memory_of_stage(stage, microbatch);
    of(bytes, stage.module, MemoryKind::Logits) += sign * memory.logits;
    of(bytes, stage.module, activations_of(stage.module)) += sign * (memory.saved - memory.logits);
  }
  void hold(const Stage& stage, int microbatch) { change_saved(held_, stage, microbatch, 1); }
  void release(Modules& bytes, const Stage& stage, int microbatch) { change_saved(bytes, stage, microbatch, -1); }

  // Adds what an op needs before it runs: an input or a gradient from another rank, and media. `loaded`: media only.
  void add_inputs(Modules& now, const Op& op, bool loaded = false) {
    const int m = op.stage.module;
    if (op.kind == Op::Forward && module(m).is_encoder && op.stage.index == 0)
      of(now, m, MemoryKind::Inputs) += sizes_.media_bytes(m, op.microbatch);
    if (loaded) return;
    const StageMemory& memory = memory_of_stage(op.stage, op.microbatch);
    std::int64_t received = op.kind == Op::Forward ? memory.input : is_end(op.stage) ? 0 : memory.output;
    if (op.kind == Op::Forward && is_first_of_language(op.stage) && !topology_.colocated())
      received += embedding_bytes(op.microbatch, /*trained=*/true) + embedding_bytes(op.microbatch, false);
    of(now, m, MemoryKind::Transfers) += received;
  }

  // mimo/executor.cpp: keep_until_sent(). A tensor that is also saved for backward is counted there.
  void send(int m, std::int64_t bytes) {
    std::vector<std::int64_t>& queue = sending_[m];
    queue.push_back(bytes);
    of(held_, m, MemoryKind::Transfers) += bytes;
    if (queue.size() <= 2 + index(options_.prefetch)) return;
    of(held_, m, MemoryKind::Transfers) -= queue.front();
    queue.erase(queue.begin());
  }

  // The executor keeps the language model's inputs until its backward. On shared ranks, the output of an encoder that
  // trains is counted with the encoder instead.
  void change_embeddings(int microbatch, int sign) {
    const int m = language();
    of(held_, m, MemoryKind::Activations) += sign * embedding_bytes(microbatch, false);
    if (!topology_.colocated()) of(held_, m, MemoryKind::Activations) += sign * embedding_bytes(microbatch, true);
  }
  void hold_embeddings(int microbatch) {
    if (is_trained({language(), 0})) change_embeddings(microbatch, 1);
  }
  void release_embeddings(int microbatch) { change_embeddings(microbatch, -1); }

  bool starts_reduction(const Op& op) const {
    return op.kind == Op::Backward && op.microbatch + 1 == options_.microbatches && has_update(options_);
  }
  void add_reductions(Modules& held, Modules& now, int m) {
    of(held, m, MemoryKind::Reductions) = of(now, m, MemoryKind::Reductions) = reductions_[m];
  }

  // --- parameters

  void add_state(int m) {
    for (const DeclaredSet& set : declared_sets(setup_, module(m))) {
      const OptimizerMemory state =
          optimizer_memory(set.specs, module(m), rank_, setup_.optimizer, setup_.layers.element_bytes, set.trains);
      of(constant_, m, MemoryKind::Parameters) += state.parameters;
      of(constant_, m, MemoryKind::Fp8Copies) += state.fp8_copies;
      of(constant_, m, MemoryKind::Gradients) += state.gradients;
      of(constant_, m, MemoryKind::MainCopy) += state.main_copy;
      of(constant_, m, MemoryKind::Moments) += state.moments;
      reductions_[m] += state.reductions;
    }
  }

  // --- sizes of this rank

  const StageMemory& memory_of_stage(const Stage& stage, int microbatch) {
    const auto key = std::pair(std::pair(stage.module, stage.index), sizes_of(stage.module, microbatch));
    const auto found = memories_.find(key);
    if (found != memories_.end()) return found->second;
    return memories_.emplace(key, sizes_.walk(stage, microbatch).memory).first->second;
  }

  // The sizes that determine the memory of a stage.
  std::vector<std::int64_t> sizes_of(int m, int microbatch) const {
    if (!module(m).is_encoder) {
      const TextSizes text = sizes_.text(microbatch);
      return {text.tokens, text.labels, static_cast<std::int64_t>(text.squares), text.embeddings};
    }
    std::vector<std::int64_t> sides;
    for (const auto& extent : sizes_.extents(m, microbatch)) sides.insert(sides.end(), extent.begin(), extent.end());
    return sides;
  }

  // Bytes of the embeddings of the language replica's samples, from the encoders that train or from those that do not.
  std::int64_t embedding_bytes(int microbatch, bool trained) const {
    std::int64_t rows = 0;
    for (int m = 0; m < sizes_.modules(); ++m)
      if (module(m).is_encoder && is_trained({m, stage_count(module(m)) - 1}) == trained)
        rows += sizes_.embeddings(m, microbatch, sizes_.samples_of(language(), rank_));
    return rows * sizes_.embedding_bytes();
  }

  const Module& module(int m) const { return sizes_.module(m); }
  int language() const { return sizes_.language(); }
  bool is_trained(const Stage& stage) const { return braid::is_trained(topology_, options_, stage); }
  bool is_first_of_language(const Stage& stage) const { return stage.module == language() && stage.index == 0; }
  bool is_end(const Stage& stage) const { return stage.module == language() && is_last(topology_, stage); }

  const StepSetup& setup_;
  const Topology& topology_;
  const ScheduleOptions& options_;
  const RankSizes sizes_;
  const int rank_;
  Modules constant_, held_;
  std::map<int, std::int64_t> reductions_;            // by module
  std::map<int, std::vector<std::int64_t>> sending_;  // by module, oldest first
  std::map<std::pair<std::pair<int, int>, std::vector<std::int64_t>>, StageMemory> memories_;
  RankMemory result_;
};

// The number of NCCL process groups of each global rank: those that comm/world.h connects, and the world's.
std::vector<int> communicators_of(const Topology& topology) {
  std::vector<int> count(index(topology.world_size()), topology.world_size() > 1 ? 1 : 0);
  const std::vector<GroupSpec> channels = make_channel_groups(topology);
  for (const std::vector<GroupSpec>* groups : {&topology.groups(), &channels})
    for (const GroupSpec& group : *groups)
      if (group.connected && !group.on_host && group.ranks.size() > 1)
        for (const int rank : group.ranks) ++count[index(rank)];
  return count;
}

class Predictor {
 public:
  Predictor(const Recipe& recipe, const Topology& topology, const MemoryQuestion& question)
      : setup_(step_setup(recipe)),
        topology_(topology),
        options_(schedule_options_of(recipe, topology)),
        on_gpu_(question.on_gpu) {
    setup_.layers.on_gpu = on_gpu_;
    if (on_gpu_) communicators_ = communicators_of(topology);
  }

  RankMemory of_rank(const StepSizes& sizes, int global_rank) const {
    RankMemory memory = RankWalk(setup_, topology_, options_, sizes, global_rank).walk();
    if (!on_gpu_) {
      memory.context = kProcessBytes;
      return memory;
    }
    memory.context = kContextBytes;
    memory.nccl = communicators_[index(global_rank)] * kCommunicatorBytes;
    std::int64_t constant = 0;
    const MemoryBytes all = memory.all_modules();
    for (std::size_t kind = 0; kind <= static_cast<std::size_t>(MemoryKind::Gradients); ++kind) constant += all[kind];
    memory.slack = static_cast<std::int64_t>(kSlackShare * static_cast<double>(memory.peak - constant));
    return memory;
  }

  MemoryPrediction of_stages(const StepSizes& sizes) const {
    const HeaviestRanks heaviest(topology_, sizes);
    MemoryPrediction prediction;
    std::map<int, RankMemory> seen;
    for (int m = 0; m < static_cast<int>(topology_.modules().size()); ++m) {
      for (int stage = 0; stage < stage_count(topology_.modules()[index(m)]); ++stage) {
        StageRankMemory fullest = {.stage = {m, stage}};
        for (const int rank : heaviest.of_stage(fullest.stage, kRanksOfStage)) {
          if (!seen.count(rank)) seen.emplace(rank, of_rank(sizes, rank));
          if (seen.at(rank).peak > fullest.rank.peak) fullest.rank = seen.at(rank);
        }
        prediction.stages.push_back(std::move(fullest));
      }
    }
    return prediction;
  }

 private:
  StepSetup setup_;
  const Topology& topology_;
  const ScheduleOptions options_;
  const bool on_gpu_;
  std::vector<int> communicators_;  // by global rank
};

}  // namespace

std::int64_t total_of(const MemoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

MemoryBytes RankMemory::all_modules() const {
  MemoryBytes all = {};
  for (const MemoryBytes& module : modules)
    for (std::size_t kind = 0; kind < all.size(); ++kind) all[kind] += module[kind];
  return all;
}

const RankMemory& MemoryPrediction::fullest() const {
  return std::max_element(stages.begin(), stages.end(),
                          [](const auto& a, const auto& b) { return a.rank.peak < b.rank.peak; })
      ->rank;
}

MemoryPrediction predict_memory(const Recipe& recipe, const Topology& topology, const StepSizes& sizes,
                                const MemoryQuestion& question) {
  return Predictor(recipe, topology, question).of_stages(sizes);
}

MemoryPrediction predict_memory(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps,
                                const MemoryQuestion& question) {
  const Predictor predictor(recipe, topology, question);
  MemoryPrediction fullest;
  for (const StepSizes& step : steps) {
    const MemoryPrediction own = predictor.of_stages(step);
    if (fullest.stages.empty()) fullest = own;
    for (std::size_t i = 0; i < own.stages.size(); ++i) {
      RankMemory& most = fullest.stages[i].rank;
      if (own.stages[i].rank.peak > most.peak) most = own.stages[i].rank;
    }
  }
  return fullest;
}

RankMemory predict_rank_memory(const Recipe& recipe, const Topology& topology, const StepSizes& sizes, int global_rank,
                               const MemoryQuestion& question) {
  return Predictor(recipe, topology, question).of_rank(sizes, global_rank);
}

std::vector<RankMemory> predict_rank_memory(const Recipe& recipe, const Topology& topology,
                                            const std::vector<StepSizes>& steps, const std::vector<int>& global_ranks,
                                            const MemoryQuestion& question) {
  const Predictor predictor(recipe, topology, question);
  std::vector<RankMemory> ranks;
  for (const int global_rank : global_ranks) {
    RankMemory& fullest = ranks.emplace_back();
    for (const StepSizes& step : steps)
      if (RankMemory own = predictor.of_rank(step, global_rank); own.peak > fullest.peak) fullest = std::move(own);
  }
  return ranks;
}

}  // namespace braid
