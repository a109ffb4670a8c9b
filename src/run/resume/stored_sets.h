// The keys of a parameter in a distributed checkpoint, as in Megatron: with its module's prefix, with the blocks of
// some fused weights stored separately, and, in models whose layers are all alike, with every parameter stacked over
// the layers.
#pragma once

#include "ckpt/dist_metadata.h"
#include "models/providers.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

// How the parameters of one set are named.
struct KeyRule {
  std::string prefix{};
  int stacked_layers =
      0;  // above 0: "decoder.layers.N.x" is slice N of a tensor "decoder.layers.x" with this many slices
};

// The number of layers in `specs`, for a rule that stacks them.
int count_layers(const std::vector<ParamSpec>& specs);

// A box of a stored tensor that is also a box of a rank's shard.
struct KeyedBox {
  std::string key;
  std::vector<std::int64_t> shape, begin;       // of the stored tensor, and the box's begin in it
  std::vector<std::int64_t> local_begin, size;  // in the shard; of a stacked parameter one dimension less
};

std::vector<KeyedBox> keyed_boxes(const ParamSpec& spec, const ShardCoordinates& coordinates, const KeyRule& rule);

// The same for elements [begin, end) of the flat shard; `local_begin` and `size` refer to boxes of that range.
struct KeyedRange {
  std::int64_t flat_begin = 0;           // the box's begin in the range
  std::vector<std::int64_t> flat_shape;  // the shape of these elements
  KeyedBox box;                          // within them
};
std::vector<KeyedRange> keyed_ranges(const ParamSpec& spec, const ShardCoordinates& coordinates, const KeyRule& rule,
                                     std::int64_t begin, std::int64_t end);

// The (empty) objects that Megatron's linear layers require beside their weights; the same on all tp ranks.
std::vector<std::string> extra_state_keys(const ParamSpec& spec, const ShardCoordinates& coordinates,
                                          const KeyRule& rule);

// Whole parameters, as keys with their shapes.
struct KeyedShape {
  std::string key;
  std::vector<std::int64_t> shape;
};
std::vector<KeyedShape> keyed_shapes(const ParamSpec& spec, const KeyRule& rule);

// --- the parameter sets in a checkpoint of a multimodal model, independent of the layout

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

// Decides which rank that holds a shard writes it: balanced, and the same on every rank.
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
