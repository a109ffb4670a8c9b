#pragma once

#include <filesystem>
#include <vector>

namespace braid {

// The folders with the limits of this process's cgroup and its ancestors, that of the process first. A controller of
// cgroup v1 has a folder of its own; there a container sees its own limits.
std::vector<std::filesystem::path> cgroup_folders(const std::filesystem::path& v1_controller);

}  // namespace braid
