// The sizes that a Megatron-like command line gives: --tensor-model-parallel-size 2, or as Megatron-Bridge writes it,
// model.tensor_model_parallel_size=2; and the two grids of --encoder-… and --llm-….
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

struct ParallelFlags {
  int tp = 1, pp = 1, cp = 1, ep = 1, expt_tp = 1;
  std::optional<std::int64_t> grid_ranks{};  // ranks that the encoder's and the language model's grid need together
  std::optional<int> micro_batch{}, global_batch{};
  int experts = 0;
  std::optional<std::int64_t> hidden{}, expert_ffn{}, layers{};
  bool gated = false;  // experts have three matrices, not two
};

// Words that are not literal in a command (they hold a variable) are left out by the caller.
ParallelFlags parallel_flags(const std::vector<std::string>& words);

}  // namespace braid
