// The sizes in a Megatron-like command line: --tensor-model-parallel-size 2, or in Megatron-Bridge's syntax
// model.tensor_model_parallel_size=2; and the two grids of --encoder-… and --llm-….
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

struct ParallelFlags {
  int tp = 1, pp = 1, cp = 1, ep = 1, expt_tp = 1;
  std::optional<std::int64_t> grid_ranks{};  // total ranks of the encoder's and the language model's grid
  std::optional<int> micro_batch{}, global_batch{};
  int experts = 0;
  std::optional<std::int64_t> hidden{}, expert_ffn{}, layers{};
  bool gated = false;  // experts have three matrices, not two
};

// The caller leaves out words that are not literal (that contain a variable).
ParallelFlags parallel_flags(const std::vector<std::string>& words);

}  // namespace braid
