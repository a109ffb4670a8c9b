// What a checkpoint knows besides tensors, and how it stands in common.pt and in the objects of a module. No libtorch
// here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/pickle.h"
#include "optim/loss_scale.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer_config.h"
#include "plan/topology.h"

namespace braid {

struct RunPosition {
  std::int64_t iteration = 0;         // the last one done
  std::int64_t consumed_samples = 0;  // the data goes on after them
};

struct CommonState {
  RunPosition position{};
  LrSchedule schedule{};
  bool fully_reshardable = true;
  int world_size = 1;
  std::string recipe{};      // the resolved one, as YAML
  std::string data_state{};  // DataSet::state()
};

PickleValue to_pickle(const CommonState& state);

// Of a common.pt by Braid or by Megatron. DataError that names `file` when it has no iteration, or a negative one.
struct StoredRun {
  RunPosition position{};
  ScheduleState scheduler{};  // empty: none was stored
  std::string recipe{};       // empty: another program's
  std::string data_state{};   // likewise
};
StoredRun parse_common(const PickleValue& common, const std::string& file);

// The objects of one module's optimizer, with Megatron's keys.
PickleValue param_groups(const OptimizerConfig& config, const LrSchedule& schedule, std::int64_t steps, bool experts);
std::optional<std::int64_t> steps_of(const PickleValue& param_groups);
PickleValue to_pickle(const LossScale::State& state);
std::optional<LossScale::State> parse_loss_scale(const PickleValue& state);

// Random numbers are drawn by seed and position, so the seed is all the state they have.
PickleValue rng_state(std::int64_t seed);
std::optional<std::int64_t> seed_of(const PickleValue& rng_state);

// "mimo.language.rng_state/shard_0.1_1.2": the object at `place` of a grid of objects.
std::string object_key(const std::string& key, const std::vector<int>& place, const std::vector<int>& grid);

}  // namespace braid
