// What the last lines of a log say in plain words. Every scheduler, cloud and container runtime has sentences of its
// own for the same few ends; where no known format explains a run, these are what is left.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/events/seen_line.h"

namespace braid {

std::optional<Sign> sign_of_last_words(std::string_view line);

// Notes those among the last lines of `text`, which ends with line number `last` of its file, that tell of an end.
void note_last_words(std::string_view text, std::uint64_t last, Findings& findings);

}  // namespace braid
