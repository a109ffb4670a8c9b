// Whether a run can go on from a checkpoint, as far as its small files tell: position, schedule, damage. The launcher
// looks before any rank starts, and the ranks as they load. No libtorch here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/dist_checkpoint.h"
#include "resume/checkpoint_config.h"
#include "resume/common_state.h"

namespace braid {

// DataError when common.pt is missing, damaged, or of another iteration than the folder's name says.
StoredRun read_run(const DistCheckpoint& checkpoint);

// Megatron's rule: the rates go on as they were, or somebody says whose are to be taken. ConfigError otherwise, or
// where the checkpoint's are to be taken and cannot be.
void check_schedule(const LrSchedule& own, const ScheduleState& stored, const CheckpointConfig& config,
                    const std::string& folder);

// The newest iteration before `end` whose small files can be read; nothing where there is none.
std::optional<std::int64_t> newest_sound_before(std::int64_t end, const std::string& root);

// What to do where `iteration` is damaged.
std::string way_on_from(const std::string& root, std::int64_t iteration);
// The same where no other can be read.
inline constexpr const char* kNoneIsSound =
    "there is no older one that can be read: `braid ckpt verify` says what is left of each; to train from the start, "
    "leave --load out and save to another folder";

}  // namespace braid
