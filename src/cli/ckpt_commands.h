// What the subcommands of `braid ckpt` share.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/command.h"

namespace braid {

Command ckpt_ls_command();
Command ckpt_show_command();

inline constexpr const char* kCheckpointHelp =
    "folder of checkpoints (its latest iteration is used), or of one iteration";

// The folder of an iteration: `path` itself, or, in a root folder, the requested iteration or the latest.
std::string chosen_iteration(const std::string& path, std::optional<std::int64_t> iteration);

// Prints to standard output without terminal control sequences: names and texts in checkpoints may contain anything.
void print_text(std::string_view text);
void print_json(const nlohmann::json& json);  // in ASCII

}  // namespace braid
