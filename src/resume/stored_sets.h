// What a checkpoint of a multimodal model holds, whatever rank has which part of it. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "ckpt/dist_metadata.h"
#include "ckpt/param_keys.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

enum class KeyScheme {
  Modules,   // language_model.module., modality_submodules.images.module.…
  Nemotron,  // language_model., vision_model., vision_projection.; it has no place for encoders of sound
};

// All parameters of a set, on whatever stage and rank.
struct StoredSet {
  std::string name{};  // one of parameter_set_names()
  int module = 0;      // index into topology.modules()
  std::vector<ParamSpec> specs{};
  KeyRule rule{};
  std::string branch{};  // how keys of what belongs to the module but is no parameter begin: "mimo.language."
};

// Of the modules that the naming has a place for.
std::vector<StoredSet> stored_sets(const Provider& provider, const Topology& topology,
                                   KeyScheme scheme = KeyScheme::Modules);

bool has_key_with(const DistMetadata& metadata, const std::string& begin);
// All of Nemotron's keys may be below "model."; else it is empty.
std::string nemotron_root(const DistMetadata& metadata);

// How a module's parameters are split, which optimizer state by bucket is tied to: "tp 2, pp 1, ep 4, expt_tp 1".
std::string split_of(const Module& module);

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
