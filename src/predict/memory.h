// How much memory each rank of a run needs, on paper: what it holds all the time, counted from the declarations of its
// parameters, and what exists besides in each forward and backward of its schedule. No libtorch here.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "run/step_sizes.h"

namespace braid {

enum class MemoryKind {
  Parameters,          // with the padding of buckets, if they train
  Fp8Copies,           // of weights, by rows and by columns
  MainCopy,            // of the optimizer
  Moments,             // of the optimizer
  Gradients,           // with the padding of buckets
  Reductions,          // a rank's shards of reduced gradients, before they are in their place
  Activations,         // of the language model, from a forward until its backward
  EncoderActivations,  // likewise
  Logits,
  Inputs,     // media as they are loaded, for the forwards that come next
  Transfers,  // tensors that were received for the op that comes next, or are being sent
  Working,    // what else an op needs while it runs: gradients of activations, rows of experts, workspaces
};
inline constexpr std::array kMemoryKindNames = {"parameters", "fp8_copies", "main_copy",   "moments",
                                                "gradients",  "reductions", "activations", "encoder_activations",
                                                "logits",     "inputs",     "transfers",   "working"};
using MemoryBytes = std::array<std::int64_t, kMemoryKindNames.size()>;  // by kind
std::int64_t total_of(const MemoryBytes& bytes);

struct RankMemory {
  int global_rank = 0;
  std::vector<MemoryBytes> modules{};  // by module of the topology, at the moment of the peak
  std::string at{};                    // the op of the peak, in words
  std::int64_t peak = 0;               // the most that the allocator has given out: the sum of the above

  // What a GPU holds besides: estimates.
  std::int64_t nccl = 0, context = 0;
  std::int64_t slack = 0;  // freed memory that the allocator keeps

  std::int64_t needed() const { return peak + nccl + context; }
  std::int64_t device() const { return needed() + slack; }
  MemoryBytes all_modules() const;
};

// The fullest rank of those with a pipeline stage.
struct StageRankMemory {
  Stage stage{};
  RankMemory rank{};
};

struct MemoryPrediction {
  std::vector<StageRankMemory> stages{};  // of all modules
  const RankMemory& fullest() const;
};

struct MemoryQuestion {
  bool on_gpu = true;
};

// Of a run whose steps all have such sizes. Of each stage the four ranks with the heaviest microbatches are looked at
// (predict/heaviest_ranks.h). It takes about a millisecond for each different microbatch of these ranks.
MemoryPrediction predict_memory(const Recipe& recipe, const Topology& topology, const StepSizes& sizes,
                                const MemoryQuestion& question = {});
// Of a run with these steps: the fullest of them counts, by stage.
MemoryPrediction predict_memory(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps,
                                const MemoryQuestion& question = {});
RankMemory predict_rank_memory(const Recipe& recipe, const Topology& topology, const StepSizes& sizes, int global_rank,
                               const MemoryQuestion& question = {});
// Of each of these ranks, in the step in which it needs most.
std::vector<RankMemory> predict_rank_memory(const Recipe& recipe, const Topology& topology,
                                            const std::vector<StepSizes>& steps, const std::vector<int>& global_ranks,
                                            const MemoryQuestion& question = {});

}  // namespace braid
