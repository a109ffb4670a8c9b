// What a run's recipe.yaml says, without reading it as a recipe: it may be of another version.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace braid {

// Keys with dots between their parts, and the text of their values. Nothing if the file is not YAML.
std::optional<std::map<std::string, std::string>> read_settings(const std::string& path);

// Of its topology; nothing if that is not known.
std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& settings);

}  // namespace braid
