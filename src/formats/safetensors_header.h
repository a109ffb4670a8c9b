// The JSON parts of safetensors, read event by event: a header of 100 MB that nests as deep as it can must not become a
// tree in memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/problem_list.h"

namespace braid {

// A tensor as the header describes it; what is absent was missing or not a list of whole numbers from 0 up.
struct HeaderEntry {
  std::string name{};
  std::optional<std::string> dtype{};
  std::optional<std::vector<std::int64_t>> shape{}, offsets{};
};

// A text that is no header at all throws; what is wrong with single entries goes to `problems`.
std::vector<HeaderEntry> parse_header(std::string_view json, const std::string& path, ProblemList& problems);

// The "weight_map" of model.safetensors.index.json: which shard has a tensor.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& path, ProblemList& problems);

}  // namespace braid
