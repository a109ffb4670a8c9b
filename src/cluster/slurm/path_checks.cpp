#include <unistd.h>

// The checks of files: see preflight.h.
#include <sys/vfs.h>

#include <filesystem>

#include "base/files.h"
#include "cluster/slurm/preflight.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

bool is_on_tmpfs_or_overlay(const fs::path& path) {
  constexpr long kTmpfs = 0x01021994, kRamfs = 0x858458f6, kOverlay = 0x794c7630;
  struct statfs info {};
  if (statfs(nearest_existing(path).c_str(), &info) != 0) return false;
  return info.f_type == kTmpfs || info.f_type == kRamfs || static_cast<long>(info.f_type) == kOverlay;
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const auto relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

// Folders that are local to each node.
bool is_node_local(const fs::path& path) {
  for (const char* folder : {"/tmp", "/var/tmp", "/dev/shm", "/run"})
    if (is_below(path, folder)) return true;
  return is_on_tmpfs_or_overlay(path);
}

bool can_be_written(const fs::path& path) {
  std::error_code ignored;
  const fs::path folder = nearest_existing(path);
  return fs::is_directory(folder, ignored) && access(folder.c_str(), W_OK | X_OK) == 0;
}

}  // namespace

bool can_be_seen(const std::string& path) {
  std::error_code ignored;
  const fs::path whole(path);
  if (!whole.has_relative_path()) return true;  // the root itself
  return fs::exists(whole.root_path() / *whole.relative_path().begin(), ignored);
}

void check_paths(const std::vector<PathUse>& uses, const Allocation& allocation, Preflight& preflight) {
  std::error_code ignored;
  for (const PathUse& use : uses) {
    if (use.path.empty()) continue;
    const fs::path path = fs::absolute(use.path).lexically_normal();
    if (use.kind == PathUse::MustExist) {
      if (!can_be_seen(path))
        preflight.warnings.push_back(
            {fmt::format("'{}' cannot be checked from here", use.path), use.what, "make sure that the nodes have it"});
      else if (!fs::exists(path, ignored))
        preflight.problems.push_back(
            {fmt::format("'{}' does not exist", use.path), use.what,
             fmt::format("the nearest existing folder is {}", nearest_existing(path).string())});
      continue;
    }
    if (allocation.nodes > 1 && is_node_local(path))
      preflight.warnings.push_back(
          {fmt::format("'{}' is on each node's local file system: other nodes do not see what one node writes there",
                       use.path),
           use.what, "use a folder on the shared file system"});
    if (use.kind == PathUse::Written && can_be_seen(path) && !can_be_written(path))
      preflight.problems.push_back({fmt::format("'{}' cannot be written to", use.path), use.what,
                                    fmt::format("check the permissions of {}", nearest_existing(path).string())});
  }
}

}  // namespace braid
