// Ranks that prefixes, messages and files name.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace braid {

// A rank that a message names as its writer: "[Rank 5]", "[PG ID 0 PG GUID 0(default_pg) Rank 5]", "[rank5]" in the
// middle.
std::optional<int> rank_inside(std::string_view body);

// A rank that a prefix of any form names: "rank=5", "(rank 5)", "Rank 5 |", "mpirank:5"; not local or node ranks.
std::optional<int> rank_named_in(std::string_view prefix);

// The same where a prefix is known to tell processes apart: by the number of a task or a device.
std::optional<int> rank_numbered_in(std::string_view prefix);

// "0-2,4" -> 0 1 2 4, at most `limit` of them; empty for anything else.
std::vector<int> unfold_ranks(std::string_view list, std::size_t limit = 1 << 16);

// What a rank file is called: "rank_3.log", ".../attempt_0/3/stderr.log".
std::optional<int> rank_of_path(std::string_view path);

}  // namespace braid
