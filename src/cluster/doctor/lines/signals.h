// Signals in what launchers say.
#pragma once

#include <optional>
#include <string_view>

namespace braid {

int signal_by_name(std::string_view name);  // "SIGKILL and more" -> 9; SIGABRT's if the name is unknown

// The signal in an exit code: 9 for 137 and for -9; empty if the program chose the code, as it did with 9.
std::optional<int> signal_of_code(int code);

}  // namespace braid
