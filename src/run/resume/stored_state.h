// What a checkpoint of a run stores: tensors under their keys, and the state besides tensors. No libtorch here.
#pragma once

#include <fmt/ranges.h>
#include "ckpt/dist_checkpoint.h"
#include "formats/pickle.h"
#include "models/providers.h"
#include "optim/optimizer_config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"
#include "run/resume/checkpoint_config.h"

namespace braid {

// --- the keys of a parameter in a distributed checkpoint, as in Megatron: with its module's prefix, with the blocks of
// some fused weights stored separately, and, in models whose layers are all alike, with every parameter stacked over
// the layers.

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

// The sets that get their weights from a source, with the keys that they have there. ConfigError if the model has no
// such module, or one that the source cannot have.
std::vector<StoredSet> sets_of(const WeightSource& source, const DistMetadata& metadata, const Provider& provider,
                               const Topology& topology);

bool has_key_with(const DistMetadata& metadata, const std::string& begin);
// "model." if all of Nemotron's keys start with it, otherwise empty.
std::string nemotron_root(const DistMetadata& metadata);

// How a module's parameters are split: "tp 2, pp 1, ep 4, expt_tp 1". Optimizer state by bucket only fits this split.
std::string split_of(const Module& module);

// "mimo.language.", "mimo.images."
inline std::string branch_of(const Module& module) {
  return fmt::format("mimo.{}.", module.is_encoder ? module.name : "language");
}

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

// --- the state besides tensors, in common.pt and a module's objects

struct RunPosition {
  std::int64_t iteration = 0;         // the last one completed
  std::int64_t consumed_samples = 0;  // the next sample has this number
};

struct CommonState {
  RunPosition position{};
  LrSchedule schedule{};
  bool fully_reshardable = true;
  int world_size = 1;
  std::string recipe{};                       // resolved, as YAML
  std::string initialized_from{};             // the weights with which the run began; empty: random ones
  std::vector<std::string> data_positions{};  // by lane, as in LanePosition
};

PickleValue to_pickle(const CommonState& state);

// Of a common.pt of Braid or Megatron. DataError that names `file` if the iteration is missing or negative.
struct StoredRun {
  RunPosition position{};
  ScheduleState scheduler{};                  // empty: none was stored
  std::string recipe{};                       // empty: written by another program
  std::string initialized_from{};             // empty: unknown, or random weights
  std::vector<std::string> data_positions{};  // by lane; empty: none were stored
};
StoredRun parse_common(const PickleValue& common, const std::string& file);

// The objects of one module's optimizer, with Megatron's keys.
PickleValue param_groups(const OptimizerConfig& config, const LrSchedule& schedule, std::int64_t steps, bool experts);
std::optional<std::int64_t> steps_of(const PickleValue& param_groups);
PickleValue to_pickle(const LossScale::State& state);
std::optional<LossScale::State> parse_loss_scale(const PickleValue& state);

// Random numbers are a function of seed and position, so the seed is the only state.
PickleValue rng_state(std::int64_t seed);
std::optional<std::int64_t> seed_of(const PickleValue& rng_state);

// "mimo.language.rng_state/shard_0.1_1.2": the object at coordinates `coordinates` of a grid of objects.
inline std::string object_key(const std::string& key, const std::vector<int>& coordinates,
                              const std::vector<int>& grid) {
  return fmt::format("{}/shard_{}_{}", key, fmt::join(coordinates, "."), fmt::join(grid, "."));
}

// --- whether a run can resume: position, schedule, damage; for the launcher, and again for the ranks as they load

// DataError if common.pt is missing or damaged, or if its iteration differs from the one in the folder's name.
StoredRun read_run(const DistCheckpoint& checkpoint);

// The first object whose key starts with `begin`; null if there is none.
PickleValue find_object(DistCheckpoint& checkpoint, const std::string& begin);
// The seed of random numbers, which all modules have in common; empty if none is stored.
inline std::optional<std::int64_t> stored_seed(DistCheckpoint& checkpoint, const StoredSet& any_set) {
  return seed_of(find_object(checkpoint, any_set.branch + "rng_state/"));
}

// Megatron's rule: the schedules agree, or the user says which to use. ConfigError otherwise, or if it is unusable.
void check_schedule(const LrSchedule& own, const ScheduleState& stored, const CheckpointConfig& config,
                    const std::string& folder);

// The newest iteration before `end` whose small files can be read; empty if there is none.
std::optional<std::int64_t> newest_sound_before(std::int64_t end, const std::string& root);

// The advice to print if `iteration` is damaged.
std::string fallback_advice(const std::string& root, std::int64_t iteration);
// The advice if no other iteration can be read.
inline constexpr const char* kNoReadableCheckpoint =
    "no older checkpoint can be read: `braid ckpt verify` shows what is intact in each; to train from scratch, leave "
    "out --load and save to another folder";

}  // namespace braid
