// What a report explains and advises beyond the meaning of its cause.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/doctor/findings.h"
#include "cluster/doctor/rules.h"

namespace braid {

// "It tried to allocate 20.00 GiB on a GPU of 79.11 GiB with 1.20 GiB free and 77.90 GiB in use."; empty when the
// message has no sizes.
std::string device_in(std::string_view message);  // "GPU", or what the message says it is
std::string gpu_memory_text(std::string_view message);

// The expert parallel size that would help: "EP 4 puts 64 of 256 experts on each GPU; EP 16 would give 16 experts/GPU."
std::string expert_sizing_text(std::int64_t num_experts, std::optional<std::int64_t> expert_parallel);

// "Exit code 137 is SIGKILL (Killed): killed from outside."
std::string exit_code_text(int code);

// What to do if memory ran out while weights were gathered to be saved.
std::string saving_memory_fix(Cause cause, const Launchers& launchers);

// "The other 7 ranks ended after it: 7 x SIGTERM."; empty if nothing happened to others.
std::string cascade_text(const Findings& findings, std::optional<int> first_rank);

}  // namespace braid
