#include "predict/memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "optim/parameter_parts.h"
#include "plan/channels.h"
#include "plan/pipeline.h"
#include "plan/schedule.h"
#include "predict/hardware.h"

namespace braid {
namespace {

// --- the ranks of each stage that have the heaviest microbatches of a step

using Load = std::vector<std::int64_t>;  // by microbatch

// Each rank's share of every microbatch of a module. Ranks that differ only in tp or pp have equal shares.
struct ModuleLoad {
  const Grid& grid;
  int tp;
  std::vector<Load> slices{};  // by dp, then by cp, as ranks are ordered

  const Load& of(int global_rank) const { return slices[(global_rank - grid.rank_offset()) / tp % slices.size()]; }
};

// Counts tokens and labels, or patches or frames. cp ranks have equal shares of a replica's tokens but not of its
// labels, most of which are at the end of a sequence; all of them have its media.
ModuleLoad load_of(const Module& module, int m, const StepSizes& sizes) {
  const std::size_t cp = module.dense.size_of("cp"), replicas = module.dense.size_of("dp");
  ModuleLoad load = {module.dense, module.dense.size_of("tp")};
  for (std::size_t slice = 0; slice < replicas * cp; ++slice) {
    Load& by_microbatch = load.slices.emplace_back(sizes.text.size());
    for (std::size_t microbatch = 0; microbatch < sizes.text.size(); ++microbatch) {
      std::int64_t& elements = by_microbatch[microbatch];
      if (!module.is_encoder) {
        const StepSizes::Text& text = sizes.text[microbatch][slice / cp];
        elements = text.tokens + text.labels[slice % cp];
        continue;
      }
      const std::vector<StepSizes::Extents>& samples = sizes.media[m][microbatch];
      const std::size_t share = samples.size() / replicas, first = slice / cp * share;
      for (std::size_t s = first; s < first + share; ++s)
        for (const auto& extent : samples[s]) elements += num_elements(extent);
    }
  }
  return load;
}

struct HeaviestRanks {
  Stage stage;
  std::vector<int> ranks{};  // no two with equal microbatches; those with the heaviest microbatch first
};

std::vector<HeaviestRanks> heaviest_ranks(const Topology& topology, const StepSizes& sizes) {
  constexpr std::size_t kMost = 4;  // of each stage
  std::vector<ModuleLoad> loads;
  for (int m = 0; m < std::ssize(topology.modules()); ++m) loads.push_back(load_of(topology.module(m), m, sizes));
  // Whether two ranks of the same modules compare equal in each of these.
  const auto in_all_modules = [&](int rank, int other, const auto& same) {
    return std::ranges::all_of(loads, [&](const ModuleLoad& load) {
      return !load.grid.contains(rank) || same(load.of(rank), load.of(other));
    });
  };
  const auto is_same_slice = [](const Load& a, const Load& b) { return &a == &b; };
  std::vector<HeaviestRanks> all;
  for (const Stage& stage : all_stages(topology)) {
    const RankBlock block = ranks_of(topology, stage);
    std::vector<std::pair<std::int64_t, int>> ranks;  // each with the load of its heaviest microbatch
    for (const int rank : block)
      if (rank == block.first || !in_all_modules(rank, rank - 1, is_same_slice))
        ranks.emplace_back(std::ranges::max(loads[stage.module].of(rank)), rank);
    std::ranges::stable_sort(ranks, std::greater(), &std::pair<std::int64_t, int>::first);
    std::vector<int>& heaviest = all.emplace_back(HeaviestRanks{stage}).ranks;
    for (const auto& [load, rank] : ranks) {
      if (heaviest.size() == kMost) break;
      const auto is_equal = [&, rank = rank](int other) { return in_all_modules(rank, other, std::equal_to<Load>()); };
      if (std::ranges::none_of(heaviest, is_equal)) heaviest.push_back(rank);
    }
  }
  return all;
}

// --- the memory of a rank

// Estimates of memory outside the allocator, and of its slack.
constexpr std::int64_t kContextBytes = 670'000'000;       // of CUDA, cuBLAS and cuDNN
constexpr std::int64_t kCommunicatorBytes = 200'000'000;  // of NCCL, for each group of a rank
constexpr double kSlackShare = 0.22;                      // share of the memory that is allocated and freed in a step
constexpr std::int64_t kProcessBytes = 150'000'000;       // of a rank on a CPU, without tensors

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

  static std::int64_t& of(Modules& bytes, int m, MemoryKind kind) { return bytes[m][static_cast<int>(kind)]; }

  void run(const Op& op, const Op* next) {
    const int m = op.stage.module;
    const StageMemory& memory = memory_of_stage(op.stage, op.microbatch);
    const bool trains = is_trained(op.stage), is_forward = op.kind == Op::Forward;
    Modules now = held_;
    if (next) add_inputs(now, *next);
    add_inputs(now, op, /*loaded=*/true);
    if (is_forward) change_saved(now, op, 1);  // a backward's is held
    if (starts_reduction(op) && options_.overlap_reduce) add_reductions(held_, now, m);
    const std::int64_t peak = is_forward ? memory.forward : memory.backward;
    of(now, m, MemoryKind::Working) += std::max<std::int64_t>(0, peak - memory.saved);
    if (trains) change_saved(held_, op, is_forward ? 1 : -1);
    send(m, !is_forward ? memory.input : trains ? 0 : memory.output);
    if (is_first_of_language(op.stage) && trains) change_embeddings(op.microbatch, is_forward ? 1 : -1);
    if (starts_reduction(op) && !options_.overlap_reduce) add_reductions(held_, now, m);
    note(now, describe(op, topology_));
  }

  // --- what is counted

  void note(const Modules& now, const std::string& at) {
    std::int64_t all = 0;
    for (const MemoryBytes& bytes : now) all += total_of(bytes);
    if (all <= result_.peak) return;
    result_.peak = all;
    result_.modules = now;
    result_.at = at;
  }

  void change_saved(Modules& bytes, const Op& op, int sign) {
    const int m = op.stage.module;
    const StageMemory& memory = memory_of_stage(op.stage, op.microbatch);
    of(bytes, m, MemoryKind::Logits) += sign * memory.logits;
    of(bytes, m, module(m).is_encoder ? MemoryKind::EncoderActivations : MemoryKind::Activations) +=
        sign * (memory.saved - memory.logits);
  }

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
    if (std::ssize(queue) <= 2 + options_.prefetch) return;
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
    std::vector<std::int64_t> key = sizes_of(stage.module, microbatch);
    key.insert(key.end(), {stage.module, stage.index});
    const auto [found, is_new] = memories_.try_emplace(std::move(key));
    if (is_new) found->second = sizes_.walk(stage, microbatch).memory;
    return found->second;
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
  std::map<int, std::int64_t> reductions_;                     // by module
  std::map<int, std::vector<std::int64_t>> sending_;           // by module, oldest first
  std::map<std::vector<std::int64_t>, StageMemory> memories_;  // by the sizes of the input and the stage
  RankMemory result_;
};

// The number of NCCL process groups of each global rank: those that comm/world.h connects, and the world's.
std::vector<int> communicators_of(const Topology& topology) {
  std::vector<int> count(topology.world_size(), topology.world_size() > 1 ? 1 : 0);
  const std::vector<GroupSpec> channels = make_channel_groups(topology);
  for (const std::vector<GroupSpec>* groups : {&topology.groups(), &channels})
    for (const GroupSpec& group : *groups)
      if (group.connected && !group.on_host && group.ranks.size() > 1)
        for (const int rank : group.ranks) ++count[rank];
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
    memory.nccl = communicators_[global_rank] * kCommunicatorBytes;
    std::int64_t constant = 0;
    const MemoryBytes all = memory.all_modules();
    for (int kind = 0; kind <= static_cast<int>(MemoryKind::Gradients); ++kind) constant += all[kind];
    memory.slack = static_cast<std::int64_t>(kSlackShare * static_cast<double>(memory.peak - constant));
    return memory;
  }

  MemoryPrediction of_stages(const StepSizes& sizes) const {
    MemoryPrediction prediction;
    std::map<int, RankMemory> seen;
    for (const auto& [stage, ranks] : heaviest_ranks(topology_, sizes)) {
      RankMemory& fullest = prediction.stages.emplace_back(StageRankMemory{stage}).rank;
      for (const int rank : ranks) {
        const auto [memory, is_new] = seen.try_emplace(rank);
        if (is_new) memory->second = of_rank(sizes, rank);
        if (memory->second.peak > fullest.peak) fullest = memory->second;
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

std::string memory_kind_text(std::size_t kind) {
  std::string text = kMemoryKindNames[kind];
  std::ranges::replace(text, '_', ' ');
  return text;
}

std::int64_t total_of(const MemoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

MemoryBytes RankMemory::all_modules() const {
  MemoryBytes all = {};
  for (const MemoryBytes& module : modules)
    for (std::size_t kind = 0; kind < all.size(); ++kind) all[kind] += module[kind];
  return all;
}

const RankMemory& MemoryPrediction::fullest() const {
  return std::ranges::max_element(stages, {}, [](const StageRankMemory& stage) { return stage.rank.peak; })->rank;
}

MemoryQuestion memory_question(const HardwareProfile& hardware) {
  return {.on_gpu = !is_host(hardware), .capacity = static_cast<std::int64_t>(1e9 * hardware.memory_gb)};
}

DeviceMemory device_memory(const MemoryPrediction& prediction, const Topology& topology,
                           const MemoryQuestion& question) {
  const auto on_device = [&](std::int64_t (RankMemory::*bytes_of)() const) {
    std::vector<std::int64_t> bytes(topology.world_size());
    for (const auto& [stage, fullest] : prediction.stages)
      for (const int rank : ranks_of(topology, stage)) bytes[rank] = std::max(bytes[rank], (fullest.*bytes_of)());
    return question.on_gpu ? std::ranges::max(bytes) : std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  };
  return {on_device(&RankMemory::needed), on_device(&RankMemory::device), question.capacity};
}

MemoryPrediction predict_memory(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps,
                                const MemoryQuestion& question) {
  const Predictor predictor(recipe, topology, question);
  MemoryPrediction fullest = predictor.of_stages(steps.front());
  for (std::size_t step = 1; step < steps.size(); ++step) {
    const MemoryPrediction own = predictor.of_stages(steps[step]);
    for (std::size_t i = 0; i < own.stages.size(); ++i)
      if (RankMemory& most = fullest.stages[i].rank; own.stages[i].rank.peak > most.peak) most = own.stages[i].rank;
  }
  return fullest;
}

std::vector<RankMemory> predict_rank_memory(const Recipe& recipe, const Topology& topology,
                                            const std::vector<StepSizes>& steps, const std::vector<int>& global_ranks,
                                            const MemoryQuestion& question) {
  const Predictor predictor(recipe, topology, question);
  std::vector<RankMemory> ranks;
  for (const int global_rank : global_ranks) {
    RankMemory& fullest = ranks.emplace_back(predictor.of_rank(steps.front(), global_rank));
    for (std::size_t step = 1; step < steps.size(); ++step)
      if (RankMemory own = predictor.of_rank(steps[step], global_rank); own.peak > fullest.peak)
        fullest = std::move(own);
  }
  return ranks;
}

}  // namespace braid
