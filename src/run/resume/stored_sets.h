// The parameter sets in a checkpoint of a multimodal model, independent of the layout. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "ckpt/dist_metadata.h"
#include "ckpt/param_keys.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

class DistCheckpoint;

enum class KeyScheme {
  Modules,   // language_model.module., modality_submodules.images.module.…
  Nemotron,  // language_model., vision_model., vision_projection.; no audio encoders
};

// All parameters of a set, over all pipeline stages and ranks.
struct StoredSet {
  std::string name{};  // one of parameter_set_names()
  int module = 0;      // index into topology.modules()
  std::vector<ParamSpec> specs{};
  KeyRule rule{};
  std::string branch{};  // prefix of the module's keys that are not parameters: "mimo.language."
};

inline bool is_encoder(const StoredSet& set) { return set.name.ends_with(".encoder"); }  // without its projector

// The sets of all modules that the naming supports. All keys start with `root`.
std::vector<StoredSet> stored_sets(const Provider& provider, const Topology& topology,
                                   KeyScheme scheme = KeyScheme::Modules, const std::string& root = "");

bool has_key_with(const DistMetadata& metadata, const std::string& begin);
// "model." if all of Nemotron's keys start with it, otherwise empty.
std::string nemotron_root(const DistMetadata& metadata);

// How a module's parameters are split: "tp 2, pp 1, ep 4, expt_tp 1". Optimizer state by bucket only fits this split.
std::string split_of(const Module& module);

// "mimo.language.", "mimo.images."
std::string branch_of(const Module& module);

// The tensors of these sets, as a checkpoint must have them.
std::vector<KeyedShape> wanted_of(const std::vector<StoredSet>& sets);
// One DataError that lists every tensor that is missing or has another shape. All ranks throw the same one.
void check_wanted(const std::vector<KeyedShape>& wanted, const DistCheckpoint& checkpoint, const std::string& fix);

// Decides which of the ranks that hold the same shard of a parameter writes it. The work is balanced, and every rank
// computes the same assignment.
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
