#include "base/cgroup_folders.h"

#include <string>

#include "base/files.h"

namespace braid {

namespace fs = std::filesystem;

std::vector<fs::path> cgroup_folders(const fs::path& v1_controller) {
  const fs::path root = "/sys/fs/cgroup";
  const std::string group = first_line("/proc/self/cgroup");
  std::vector<fs::path> folders;
  for (fs::path path = group.starts_with("0::/") ? group.substr(4) : ""; !path.empty(); path = path.parent_path())
    folders.push_back(root / path);
  folders.push_back(root);
  folders.push_back(root / v1_controller);
  return folders;
}

}  // namespace braid
