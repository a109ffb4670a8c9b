// Checks with a checkpoint's small files whether a run can resume from it: position, schedule, damage. The launcher
// checks before any rank starts, and the ranks check again as they load. No libtorch here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/dist_checkpoint.h"
#include "run/resume/checkpoint_config.h"
#include "run/resume/common_state.h"
#include "run/resume/stored_sets.h"

namespace braid {

// DataError if common.pt is missing or damaged, or if its iteration differs from the one in the folder's name.
StoredRun read_run(const DistCheckpoint& checkpoint);

// The first object whose key starts with `begin`; null if there is none.
PickleValue find_object(DistCheckpoint& checkpoint, const std::string& begin);
// The seed of random numbers, which all modules have in common; empty if none is stored.
std::optional<std::int64_t> stored_seed(DistCheckpoint& checkpoint, const StoredSet& any_set);

// Megatron's rule: the two schedules agree, or the user says which one to use. ConfigError otherwise, or if the
// checkpoint's is chosen and cannot be used.
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
