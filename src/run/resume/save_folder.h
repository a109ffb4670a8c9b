// Checks whether the folder that a run saves to has checkpoints of another run.
#pragma once

#include <string>

#include "run/resume/checkpoint_config.h"

namespace braid {

inline constexpr const char* kSaveKey = "checkpoint.save";

bool is_same_folder(const std::string& a, const std::string& b);

// Whether the run loads the folder that it saves to, or one of its iterations.
bool resumes_in_place(const CheckpointConfig& config);

// Throws a ConfigError if the folder is itself a checkpoint, or has checkpoints that this run does not resume from and
// would therefore replace.
void check_save_folder(const CheckpointConfig& config);

}  // namespace braid
