// What the reason in a root cause line of Braid's tells.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/events/causes.h"

namespace braid {

// The reason of a line about a whole host.
inline constexpr std::string_view kHostCannotBeReached = "its host cannot be reached";

// It only says that another rank is gone.
bool is_loss_of_peer(std::string_view reason);

Cause cause_in_reason(std::string_view reason);

// As `braid run` and `braid train` end: "killed by SIGKILL (Killed)", "SIGSEGV (Segmentation fault)", "exited with code
// 3".
std::optional<int> exit_code_in(std::string_view reason);

}  // namespace braid
