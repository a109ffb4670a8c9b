// Whether the folder that a run saves to has checkpoints of another run.
#pragma once

#include <string>

#include "run/resume/checkpoint_config.h"

namespace braid {

inline constexpr const char* kSaveKey = "checkpoint.save";

bool is_same_folder(const std::string& a, const std::string& b);

// Whether the run loads the folder that it saves to, or one of its iterations.
bool resumes_in_place(const CheckpointConfig& config);

// ConfigError if the folder has checkpoints that this run does not resume from, since its own would replace them, or if
// the folder is itself a checkpoint.
void check_save_folder(const CheckpointConfig& config);

}  // namespace braid
