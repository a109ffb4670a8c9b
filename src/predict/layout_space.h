// Every layout of a recipe on a number of GPUs that keeps its global batch and its losses, in a fixed order. Tensor
// parallelism stays within a node, encoders have no pipeline, a pipeline rank has 1, 2, 4 or 8 stages, and experts are
// split as the recipe splits them (expt_tp). GPUs may be left over.
#pragma once

#include <utility>
#include <vector>

#include "predict/layout.h"

namespace braid {

struct SpaceOptions {
  int gpus = 1, ranks_per_node = 8;
  // Every dp that divides the lanes of a data set reads it in the same order. If false, other layouts are allowed, too.
  bool same_data_order = true;
};

// How the language model is split. Layouts that share one of these differ only in their encoders.
struct LanguageLayout {
  bool colocated = false;
  int micro_batch = 1;
  Split split{};
};

class LayoutSpace {
 public:
  LayoutSpace(const Recipe& recipe, const SpaceOptions& options);

  const std::vector<LanguageLayout>& language() const { return language_; }
  long against_rules() const { return against_rules_; }  // rejected splits of the language model
  // All layouts with this split of the language model. The encoders' data parallelism fits that of the language model,
  // and they use whole nodes or an equal part of one. Splits are in the order of the recipe's modules.
  std::vector<Layout> layouts_of(const LanguageLayout& language) const;

 private:
  struct Stages {
    int pp, vpp;
  };
  void add_language(bool colocated);
  void add_splits(bool colocated, int micro_batch, int dp);
  void add_experts(LanguageLayout layout);
  bool is_possible(const Split& language) const;
  std::vector<int> supported_tp(const ModuleConfig& encoder) const;
  std::vector<Split> encoder_splits(std::size_t module, const LanguageLayout& language) const;

  const Recipe& recipe_;
  const SpaceOptions options_;
  std::size_t language_module_ = 0;
  int encoders_ = 0;
  std::vector<std::pair<int, int>> tp_cp_;    // that the language model supports
  std::vector<Stages> stages_;                // that it supports, too
  std::vector<std::vector<int>> encoder_tp_;  // by module: that it supports
  std::vector<LanguageLayout> language_;
  long against_rules_ = 0;
};

}  // namespace braid
