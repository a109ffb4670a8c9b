// The state that a checkpoint stores besides tensors, in common.pt and a module's objects. No libtorch here.
#pragma once

#include "ckpt/dist_checkpoint.h"
#include "formats/pickle.h"
#include "optim/optimizer_config.h"
#include "plan/topology.h"
#include "run/resume/checkpoint_config.h"
#include "run/resume/stored_sets.h"

namespace braid {

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
  std::vector<std::string> data_positions{};  // by lane, as in LanePosition
};

PickleValue to_pickle(const CommonState& state);

// Of a common.pt of Braid or Megatron. DataError that names `file` if the iteration is missing or negative.
struct StoredRun {
  RunPosition position{};
  ScheduleState scheduler{};                  // empty: none was stored
  std::string recipe{};                       // empty: written by another program
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
std::string object_key(const std::string& key, const std::vector<int>& coordinates, const std::vector<int>& grid);

// --- whether a run can resume: position, schedule, damage; for the launcher, and again for the ranks as they load

// DataError if common.pt is missing or damaged, or if its iteration differs from the one in the folder's name.
StoredRun read_run(const DistCheckpoint& checkpoint);

// The first object whose key starts with `begin`; null if there is none.
PickleValue find_object(DistCheckpoint& checkpoint, const std::string& begin);
// The seed of random numbers, which all modules have in common; empty if none is stored.
std::optional<std::int64_t> stored_seed(DistCheckpoint& checkpoint, const StoredSet& any_set);

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
