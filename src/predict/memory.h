// Predicts the memory that each rank of a run needs: the state it holds throughout, counted from the declarations of
// its parameters, plus what each forward and backward of its schedule allocates. Checks before the start whether ranks
// fit the memory of their GPUs or of their host, and finds changes of a recipe that would lower it. No libtorch here.
#pragma once

#include "base/error.h"
#include "plan/pipeline.h"
#include "run/step_sizes.h"

namespace braid {

struct HardwareProfile;

enum class MemoryKind {
  Parameters,          // with the padding of buckets, if they train
  Fp8Copies,           // weights in fp8, by rows and by columns
  MainCopy,            // of the optimizer
  Moments,             // of the optimizer
  Gradients,           // with the padding of buckets
  Reductions,          // a rank's shards of reduced gradients until they are copied to their place
  Activations,         // of the language model, from a forward until its backward
  EncoderActivations,  // of encoders, from a forward until its backward
  Logits,
  Inputs,     // loaded media that wait for their forward
  Transfers,  // tensors received for the next op, or being sent
  Working,    // temporaries of a running op: gradients of activations, rows of experts, workspaces
};
inline constexpr std::array kMemoryKindNames = {"parameters", "fp8_copies", "main_copy",   "moments",
                                                "gradients",  "reductions", "activations", "encoder_activations",
                                                "logits",     "inputs",     "transfers",   "working"};
std::string memory_kind_text(std::size_t kind);                         // its name with spaces
using MemoryBytes = std::array<std::int64_t, kMemoryKindNames.size()>;  // by kind
inline std::int64_t total_of(const MemoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

struct RankMemory {
  int global_rank = 0;
  std::vector<MemoryBytes> modules{};  // by module of the topology, at the moment of the peak
  std::string at{};                    // describes the op of the peak
  std::int64_t peak = 0;               // the most bytes allocated at once: the sum over `modules`

  // Estimates of what a GPU holds outside the allocator.
  std::int64_t nccl = 0, context = 0;
  std::int64_t slack = 0;  // freed memory that the allocator keeps

  std::int64_t needed() const { return peak + nccl + context; }
  std::int64_t device() const { return needed() + slack; }
  MemoryBytes all_modules() const;
};

// The rank that needs most memory among those of a pipeline stage.
struct StageRankMemory {
  Stage stage{};
  RankMemory rank{};
};

struct MemoryPrediction {
  std::vector<StageRankMemory> stages{};  // of all modules
  const RankMemory& fullest() const {
    return std::ranges::max_element(stages, {}, [](const StageRankMemory& stage) { return stage.rank.peak; })->rank;
  }
};

struct MemoryQuestion {
  bool on_gpu = true;
  std::int64_t capacity = 0;  // of a GPU, or of the host
};
MemoryQuestion memory_question(const HardwareProfile& hardware);

// Peak memory of a run with these steps: each stage's maximum over all of them. Only the four ranks of each stage with
// the heaviest microbatches are examined, in about a millisecond per distinct microbatch.
MemoryPrediction predict_memory(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps,
                                const MemoryQuestion& question = {});
// For each of these ranks, its memory in the step in which it needs most.
std::vector<RankMemory> predict_rank_memory(const Recipe& recipe, const Topology& topology,
                                            const std::vector<StepSizes>& steps, const std::vector<int>& global_ranks,
                                            const MemoryQuestion& question = {});

// What a run needs on the fullest GPU or, on CPUs, on the host whose memory all ranks share.
struct DeviceMemory {
  std::int64_t needed = 0;      // without slack: an allocator that runs out of memory first releases what it caches
  std::int64_t with_slack = 0;  // as a tool that monitors the device reports it
  std::int64_t capacity = 0;

  bool fits() const { return needed <= capacity; }
};
DeviceMemory device_memory(const MemoryPrediction& prediction, const Topology& topology,
                           const MemoryQuestion& question);

// --- advice and checks

struct MemoryAdvice {
  std::string change{};    // in words: "recompute: experts"
  std::int64_t saves = 0;  // bytes saved on the fullest rank
};

// Returns the sizes of a recipe's steps.
using StepsOf = std::function<std::vector<StepSizes>(const Recipe&, const Topology&)>;

// Changes that lead to a valid recipe on as many ranks, those that save most first. `before`: without a change.
std::vector<MemoryAdvice> memory_advice(const Recipe& recipe, const MemoryPrediction& before, const StepsOf& steps_of,
                                        const MemoryQuestion& question = {});

// Steps whose memory the run certainly needs. Mock samples give the first steps exactly. Of a data set, only the length
// of packed sequences is known before reading, so its steps consist of short samples without labels and media.
std::vector<StepSizes> certain_steps(const Recipe& recipe, const Topology& topology);

// The least bytes that each of these ranks needs in certain_steps().
std::vector<std::int64_t> needed_bytes(const Recipe& recipe, const Topology& topology,
                                       const std::vector<int>& global_ranks, const MemoryQuestion& question);

// Reports a rank, or ranks that share a GPU, whose certain_steps() need more memory than a GPU has; the fix names the
// most effective change. `sharing` lists sets of global ranks that share a GPU.
std::vector<Problem> gpu_memory_problems(const Recipe& recipe, const Topology& topology, std::int64_t gpu_bytes,
                                         const std::vector<std::vector<int>>& sharing = {});

}  // namespace braid
