#include "predict/memory.h"
#include "plan/channels.h"
#include "predict/hardware.h"
#include "predict/step_draws.h"

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

// For each of all_stages(); no two with equal microbatches, those with the heaviest microbatch first.
std::vector<std::vector<int>> heaviest_ranks(const Topology& topology, const StepSizes& sizes) {
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
  std::vector<std::vector<int>> all;
  for (const Stage& stage : all_stages(topology)) {
    const RankBlock block = ranks_of(topology, stage);
    std::vector<std::pair<std::int64_t, int>> ranks;  // each with the load of its heaviest microbatch
    for (const int rank : block)
      if (rank == block.first || !in_all_modules(rank, rank - 1, is_same_slice))
        ranks.emplace_back(std::ranges::max(loads[stage.module].of(rank)), rank);
    std::ranges::stable_sort(ranks, std::greater(), &std::pair<std::int64_t, int>::first);
    std::vector<int>& heaviest = all.emplace_back();
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
      : setup_(setup), topology_(topology), options_(options),
        step_(setup, topology.modules(), options, sizes, global_rank), rank_(global_rank),
        constant_(topology.modules().size()) {
    for (int m = 0; m < step_.modules(); ++m)
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
    if (trains) of(held_, m, MemoryKind::Activations) += (is_forward ? 1 : -1) * kept_embeddings(op);
    if (starts_reduction(op) && !options_.overlap_reduce) add_reductions(held_, now, m);
    note(now, describe(op, topology_));
  }

  // --- what is counted

  void note(const Modules& now, const std::string& at) {
    const auto all = sum_of<std::int64_t>(now, total_of);
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
      of(now, m, MemoryKind::Inputs) += step_.media_bytes(m, op.microbatch);
    if (loaded) return;
    const StageMemory& memory = memory_of_stage(op.stage, op.microbatch);
    std::int64_t received = op.kind == Op::Forward ? memory.input : is_end(op.stage) ? 0 : memory.output;
    if (op.kind == Op::Forward && !topology_.colocated()) received += embedding_bytes(op, /*all=*/true);
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
  std::int64_t kept_embeddings(const Op& op) const {
    return embedding_bytes(op, /*all=*/true) - (topology_.colocated() ? embedding_bytes(op, false) : 0);
  }
  // Bytes of the embeddings that the first language stage receives, of all encoders or of those that train.
  std::int64_t embedding_bytes(const Op& op, bool all) const {
    return sum_of<std::int64_t>(step_.shared_embeddings(op.stage, op.microbatch, all), &Collective::bytes);
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
    std::vector<std::int64_t> key = step_.input_sizes(stage, microbatch);
    key.insert(key.end(), {stage.module, stage.index});
    const auto [found, is_new] = memories_.try_emplace(std::move(key));
    if (is_new) found->second = step_.walk(stage, microbatch).memory;
    return found->second;
  }

  const Module& module(int m) const { return step_.module(m); }
  bool is_trained(const Stage& stage) const { return braid::is_trained(topology_, options_, stage); }
  bool is_end(const Stage& stage) const { return stage.module == step_.language() && is_last(topology_, stage); }

  const StepSetup& setup_;
  const Topology& topology_;
  const ScheduleOptions& options_;
  const RankStep step_;
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

void take_larger(RankMemory& most, const RankMemory& other) {
  if (other.peak > most.peak) most = other;
}

class Predictor {
 public:
  Predictor(const Recipe& recipe, const Topology& topology, const MemoryQuestion& question)
      : setup_(step_setup(recipe)), topology_(topology), options_(schedule_options_of(recipe, topology)),
        on_gpu_(question.on_gpu) {
    setup_.layers.on_gpu = on_gpu_;
    if (on_gpu_) communicators_ = communicators_of(topology);
  }

  // In the step in which the rank needs most.
  RankMemory of_rank(const std::vector<StepSizes>& steps, int global_rank) const {
    RankMemory most;
    for (const StepSizes& sizes : steps)
      take_larger(most, RankWalk(setup_, topology_, options_, sizes, global_rank).walk());
    if (!on_gpu_) {
      most.context = kProcessBytes;
      return most;
    }
    most.context = kContextBytes;
    most.nccl = communicators_[global_rank] * kCommunicatorBytes;
    std::int64_t constant = 0;
    const MemoryBytes all = most.all_modules();
    for (int kind = 0; kind <= static_cast<int>(MemoryKind::Gradients); ++kind) constant += all[kind];
    most.slack = static_cast<std::int64_t>(kSlackShare * static_cast<double>(most.peak - constant));
    return most;
  }

  void add_step(MemoryPrediction& prediction, const StepSizes& sizes) const {
    std::map<int, RankMemory> seen;
    for (auto stage = prediction.stages.begin(); const std::vector<int>& ranks : heaviest_ranks(topology_, sizes)) {
      for (const int rank : ranks) {
        const auto [memory, is_new] = seen.try_emplace(rank);
        if (is_new) memory->second = of_rank({sizes}, rank);
        take_larger(stage->rank, memory->second);
      }
      ++stage;
    }
  }

 private:
  StepSetup setup_;
  const Topology& topology_;
  const ScheduleOptions options_;
  const bool on_gpu_;
  std::vector<int> communicators_;  // by global rank
};

struct Change {
  std::string text;
  Recipe recipe;
};

// Parts that are recomputed, one split doubled (a split that divides the ranks halves dp in return), other settings.
std::vector<Change> changes_of(const Recipe& recipe) {
  std::vector<Change> changes;
  const auto add = [&](std::string text, const auto& change) {
    changes.push_back({std::move(text), recipe});
    change(changes.back().recipe);
  };
  const std::vector<std::string>& recomputed = recipe.model.recompute;
  for (const std::string& part : recompute_parts(recipe))
    if (!contains(recomputed, "full") && !contains(recomputed, part))
      add("recompute: " + part, [&](Recipe& r) {
        if (part == "full") r.model.recompute.clear();
        r.model.recompute.push_back(part);
      });
  for (std::size_t m = 0; m < recipe.topology.modules.size(); ++m) {
    const ModuleConfig& module = recipe.topology.modules[m];
    const auto add_split = [&](const char* name, int ModuleConfig::*split, bool from_dp = true) {
      if (from_dp && module.dp % 2 != 0) return;
      add(fmt::format("{} {} {} instead of {}", module.name, name, 2 * (module.*split), module.*split), [&](Recipe& r) {
        ModuleConfig& changed = r.topology.modules[m];
        changed.*split *= 2;
        if (from_dp) changed.dp /= 2;
        changed.expt_dp.reset();
      });
    };
    if (module.kind == ModuleKind::Language && experts_of(recipe.model.model.language) > 0)
      add_split("ep", &ModuleConfig::ep, false);
    add_split("tp", &ModuleConfig::tp);
    add_split("cp", &ModuleConfig::cp);
    add_split("pp", &ModuleConfig::pp);
  }
  const int micro_batch = recipe.train.micro_batch;
  if (micro_batch % 2 == 0)
    add(fmt::format("micro_batch {} instead of {}", micro_batch / 2, micro_batch),
        [](Recipe& r) { r.train.micro_batch /= 2; });
  if (!recipe.optimizer.zero) add("zero", [](Recipe& r) { r.optimizer.zero = true; });
  const auto has_tp = [](const ModuleConfig& module) { return module.kind == ModuleKind::Language && module.tp > 1; };
  if (!recipe.model.sequence_parallel && std::ranges::any_of(recipe.topology.modules, has_tp))
    add("sequence_parallel", [](Recipe& r) { r.model.sequence_parallel = true; });
  if (recipe.train.deterministic) add("deterministic: false", [](Recipe& r) { r.train.deterministic = false; });
  if (recipe.train.prefetch > 0) add("prefetch 0", [](Recipe& r) { r.train.prefetch = 0; });
  return changes;
}

constexpr std::size_t kShownKinds = 3, kMostAdvice = 3;

std::string gigabytes(std::int64_t bytes) { return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9); }

// The largest kinds of memory.
std::string parts_of(const RankMemory& rank) {
  const MemoryBytes bytes = rank.all_modules();
  std::vector<std::pair<std::int64_t, std::string>> parts;
  for (std::size_t kind = 0; kind < bytes.size(); ++kind) parts.emplace_back(bytes[kind], memory_kind_text(kind));
  std::sort(parts.rbegin(), parts.rend());
  std::vector<std::string> largest;
  for (std::size_t i = 0; i < kShownKinds; ++i)
    largest.push_back(fmt::format("{} {}", parts[i].second, gigabytes(parts[i].first)));
  return fmt::format("{}", fmt::join(largest, ", "));
}

std::int64_t needed(const std::vector<RankMemory>& ranks) { return sum_of<std::int64_t>(ranks, &RankMemory::needed); }

bool needs_less(const RankMemory& a, const RankMemory& b) { return a.needed() < b.needed(); }

// The ranks of the GPU that needs most memory.
std::vector<RankMemory> fullest_gpu(const Recipe& recipe, const Topology& topology, const MemoryPrediction& prediction,
                                    const std::vector<StepSizes>& steps, const std::vector<std::vector<int>>& sharing) {
  std::vector<RankMemory> fullest = {std::ranges::max(prediction.stages, needs_less, &StageRankMemory::rank).rank};
  for (const std::vector<int>& global_ranks : sharing) {
    std::vector<RankMemory> ranks = predict_rank_memory(recipe, topology, steps, global_ranks);
    if (recipe.dist.backend != BackendChoice::NcclShared)
      for (RankMemory& rank : ranks) rank.nccl = 0;  // they communicate over Gloo
    if (needed(ranks) > needed(fullest)) fullest = std::move(ranks);
  }
  return fullest;
}

std::string too_full(const std::vector<RankMemory>& ranks, const Topology& topology, std::int64_t gpu_bytes) {
  const RankMemory& fullest = std::ranges::max(ranks, needs_less);
  std::vector<int> others;
  for (const RankMemory& rank : ranks)
    if (rank.global_rank != fullest.global_rank) others.push_back(rank.global_rank);
  const std::string together =
      others.empty() ? ""
                     : fmt::format(" and {} together with {} {} on the same GPU", gigabytes(needed(ranks)),
                                   others.size() == 1 ? "rank" : "ranks", fmt::join(others, ", "));
  return fmt::format("rank {} ({}) needs {} of GPU memory in {} ({}){}, but a GPU has {}", fullest.global_rank,
                     topology.coordinates_of(fullest.global_rank), gigabytes(fullest.needed()), fullest.at,
                     parts_of(fullest), together, gigabytes(gpu_bytes));
}

// The same number of tokens, up to a chunk, in samples that need the least memory. Their lengths are unknown, and the
// workspace of attention grows with these (paper/ops.h), to 9 GiB for one long sample if it is deterministic. Samples
// of whole chunks of Mamba's scan have no more states than one long sample.
StepSizes::Text least_text(const StepSizes::Text& full) {
  constexpr std::int64_t kChunk = 128;
  StepSizes::Text text = full;
  text.labels.assign(text.labels.size(), 0);
  if (const std::int64_t samples = text.tokens / kChunk; samples > 0) {
    text.tokens = samples * kChunk;
    text.sequences = samples;
    text.squares = static_cast<double>(samples * kChunk * kChunk);
  }
  return text;
}

}  // namespace

std::string memory_kind_text(std::size_t kind) {
  std::string text = kMemoryKindNames[kind];
  std::ranges::replace(text, '_', ' ');
  return text;
}

MemoryBytes RankMemory::all_modules() const {
  MemoryBytes all = {};
  for (const MemoryBytes& module : modules)
    for (std::size_t kind = 0; kind < all.size(); ++kind) all[kind] += module[kind];
  return all;
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
  MemoryPrediction prediction;
  for (const Stage& stage : all_stages(topology)) prediction.stages.push_back({stage});
  for (const StepSizes& step : steps) predictor.add_step(prediction, step);
  return prediction;
}

std::vector<RankMemory> predict_rank_memory(const Recipe& recipe, const Topology& topology,
                                            const std::vector<StepSizes>& steps, const std::vector<int>& global_ranks,
                                            const MemoryQuestion& question) {
  const Predictor predictor(recipe, topology, question);
  return vector_of<RankMemory>(global_ranks, [&](const int rank) { return predictor.of_rank(steps, rank); });
}

std::vector<MemoryAdvice> memory_advice(const Recipe& recipe, const MemoryPrediction& before, const StepsOf& steps_of,
                                        const MemoryQuestion& question) {
  std::vector<MemoryAdvice> advice;
  for (const Change& change : changes_of(recipe)) {
    try {
      const Recipe changed = parse_recipe(to_yaml(change.recipe));
      const Topology topology(changed.topology, workload_of(changed));
      const MemoryPrediction after = predict_memory(changed, topology, steps_of(changed, topology), question);
      const std::int64_t saves = before.fullest().peak - after.fullest().peak;
      if (saves > before.fullest().peak / 100) advice.push_back({change.text, saves});
    } catch (const ConfigError&) {  // the recipe does not permit it
    }
  }
  std::ranges::stable_sort(advice, std::greater(), &MemoryAdvice::saves);
  return advice;
}

std::vector<StepSizes> certain_steps(const Recipe& recipe, const Topology& topology) {
  constexpr std::int64_t kSteps = 4;
  std::vector<StepSizes> steps;
  if (is_mock(recipe.data)) {
    for (std::int64_t step = 0; step < std::min(kSteps, iterations_of(length_of(recipe.train))); ++step)
      steps.push_back(draw_step(recipe, topology, nullptr, static_cast<std::uint64_t>(step)));
    return steps;
  }
  StepSizes step = full_step(recipe, topology);
  for (auto& microbatch : step.text)
    for (StepSizes::Text& text : microbatch) text = least_text(text);
  for (auto& module : step.media)
    for (auto& microbatch : module) microbatch.assign(microbatch.size(), {});
  return {step};
}

std::vector<std::int64_t> needed_bytes(const Recipe& recipe, const Topology& topology,
                                       const std::vector<int>& global_ranks, const MemoryQuestion& question) {
  std::vector<std::int64_t> bytes;
  for (const RankMemory& rank :
       predict_rank_memory(recipe, topology, certain_steps(recipe, topology), global_ranks, question))
    bytes.push_back(rank.needed());
  return bytes;
}

std::vector<Problem> gpu_memory_problems(const Recipe& recipe, const Topology& topology, std::int64_t gpu_bytes,
                                         const std::vector<std::vector<int>>& sharing) {
  if (gpu_bytes == 0) return {};
  const std::vector<StepSizes> steps = certain_steps(recipe, topology);
  const MemoryPrediction prediction = predict_memory(recipe, topology, steps);
  const std::vector<RankMemory> ranks = fullest_gpu(recipe, topology, prediction, steps, sharing);
  if (needed(ranks) <= gpu_bytes) return {};
  std::vector<std::string> fixes;
  for (const MemoryAdvice& advice : memory_advice(recipe, prediction, certain_steps)) {
    if (fixes.size() == kMostAdvice) break;
    fixes.push_back(fmt::format("{} saves {}", advice.change, gigabytes(advice.saves)));
  }
  if (fixes.empty()) fixes.push_back("use more GPUs");
  return {{too_full(ranks, topology, gpu_bytes), "memory",
           fmt::format("{}; `braid plan memory` shows all of it", fmt::join(fixes, "; "))}};
}

}  // namespace braid
