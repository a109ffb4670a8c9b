// The stored state of a lane: what it depends on, the state itself, and a checksum.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/shards/stream_state.h"

namespace braid {

// Names and values of all that a state depends on. Data sets may move, so their paths are only names.
using LaneIdentity = std::vector<std::pair<std::string, std::string>>;

std::string seal_state(const LaneIdentity& identity, const StateWriter& state);

// What a sealed state depends on. DataError if it is damaged.
LaneIdentity stored_identity(std::string_view sealed);

// The state in a sealed one, which must outlive the result. ConfigError that names the difference if it depends on
// something else, DataError if it is damaged.
StateReader open_state(const LaneIdentity& identity, std::string_view sealed);

}  // namespace braid
