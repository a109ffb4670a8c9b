// Sentences of a diagnosis that are made from what the log says: sizes, exit codes, what happened to the others.
#pragma once

#include <optional>
#include <string>

#include "doctor/findings.h"

namespace braid {

// "tried to allocate 20.00 GiB on a GPU of 79.11 GiB with 1.20 GiB free"; empty when the message has no sizes.
std::string gpu_memory_text(std::string_view message);

// What EP would have to be: "with EP 4 each GPU holds 64 of 256 experts; EP 16 would give 16 per GPU".
std::string expert_sizing_text(std::int64_t num_experts, std::optional<std::int64_t> expert_parallel);

// "137 is SIGKILL: ..."
std::string exit_code_text(int code);

// "the other 7 ranks were stopped after it: 7 x SIGTERM"; empty when nothing happened to others.
std::string cascade_text(const Findings& findings, std::optional<int> first_rank);

}  // namespace braid
