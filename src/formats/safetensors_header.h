// The JSON parts of safetensors, checked while they are read: a deeply nested header of 100 MB must not become a tree in
// memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace braid {

// A tensor as the header describes it; an absent field was missing or not a list of non-negative integers.
struct HeaderEntry {
  std::string name{};
  std::optional<std::string> dtype{};
  std::optional<std::vector<std::int64_t>> shape{}, offsets{};
};

// A text that is not a header throws; problems of single entries are added to `problems`.
std::vector<HeaderEntry> parse_header(std::string_view json, const std::string& path, ProblemList& problems);

// The "weight_map" of model.safetensors.index.json: the shard of each tensor.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& path, ProblemList& problems);

}  // namespace braid
