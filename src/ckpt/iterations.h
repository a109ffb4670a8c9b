// The iterations in a folder of checkpoints, by the names of their folders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

std::string iteration_folder(const std::string& root, std::int64_t iteration);
std::optional<std::int64_t> iteration_of(const std::string& name);  // of "iter_0000100", as iteration_folder() names it
std::string partial_folder(const std::string& root, std::int64_t iteration);

// Ascending. Incomplete iterations lack an index.
enum class Complete { Yes, OrNot };
std::vector<std::int64_t> iterations_in(const std::string& root, Complete complete = Complete::Yes);

}  // namespace braid
