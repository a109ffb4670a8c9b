// Finds the ranks of each stage that have the heaviest microbatches of a step. No libtorch here.
#pragma once

#include <vector>

#include "plan/pipeline.h"
#include "run/step_sizes.h"

namespace braid {

class HeaviestRanks {
 public:
  HeaviestRanks(const Topology& topology, const StepSizes& sizes);

  // At most `most` ranks of the stage, no two with equal microbatches. Ranks are ordered by the tokens and labels, or
  // the patches or frames, of their heaviest microbatch, heaviest first.
  std::vector<int> of_stage(const Stage& stage, std::size_t most) const;

 private:
  // Each rank's share of every microbatch of a module. Ranks that differ only in tp or pp have equal shares.
  struct ModuleLoad {
    const Module* module;
    int tp;
    std::vector<std::vector<std::int64_t>> slices;  // by dp, then by cp, as ranks are ordered; by microbatch
    std::size_t slice_of(int global_rank) const;
  };
  static ModuleLoad language_load(const Module& module, const StepSizes& sizes);
  static ModuleLoad encoder_load(const Module& module, const std::vector<std::vector<StepSizes::Extents>>& media);

  template <class Same>
  bool all_modules(int rank, int other, Same same) const;
  bool is_same_slice(int rank, int other) const;
  bool has_same_load(int rank, int other) const;

  const Topology& topology_;
  std::vector<ModuleLoad> loads_;  // by module
};

}  // namespace braid
