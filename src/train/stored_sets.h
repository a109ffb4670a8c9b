// What a checkpoint of a multimodal model holds, whatever rank has which part of it. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "ckpt/param_keys.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

enum class KeyScheme {
  Modules,   // language_model.module., modality_submodules.images.module.…
  Nemotron,  // language_model., vision_model., vision_projection.: those without audio
};

// All parameters of a set, on whatever stage and rank.
struct StoredSet {
  std::string name{};  // one of parameter_set_names()
  int module = 0;      // index into topology.modules()
  std::vector<ParamSpec> specs{};
  KeyRule rule{};
  std::string branch{};  // how keys of what belongs to the module but is no parameter begin: "mimo.language."
};

std::vector<StoredSet> stored_sets(const Provider& provider, const Topology& topology,
                                   KeyScheme scheme = KeyScheme::Modules);

// "mimo.language.", "mimo.images."
std::string branch_of(const Module& module);

// Which of the ranks that hold the same shard of a parameter writes it: the work is spread evenly, and every rank comes
// to the same result.
class ShardWriters {
 public:
  ShardWriters(const std::vector<StoredSet>& sets, const Topology& topology);

  // The writer of the shard that `global_rank` holds of the `param`-th parameter of the `set`-th set.
  int writer(std::size_t set, std::size_t param, int global_rank) const;

 private:
  const Topology& topology_;
  std::vector<StoredSet> sets_;
  std::vector<std::vector<std::vector<int>>> writers_;  // by set, parameter and shard
};

}  // namespace braid
