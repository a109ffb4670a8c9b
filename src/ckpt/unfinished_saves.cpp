#include "ckpt/unfinished_saves.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "ckpt/file_names.h"
#include "ckpt/save_lock.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kComplete = ".complete", kRemoved = ".removed", kRemovedIndex = ".metadata.removed";

void rename_folder(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_errno(fmt::format("cannot rename '{}' to '{}'", from, to));
}

// The N of ".iter_000000N" + end.
std::optional<std::int64_t> iteration_before(const std::string& name, std::string_view end) {
  if (!name.starts_with(".iter_") || !name.ends_with(end)) return std::nullopt;
  return iteration_of(name.substr(1, name.size() - 1 - end.size()));
}

// Another process that resumes from it may already have renamed it.
void give_name(const std::string& complete, const std::string& folder) {
  if (::rename(complete.c_str(), folder.c_str()) != 0 && !(errno == ENOENT && fs::exists(folder)))
    throw_errno(fmt::format("cannot rename '{}' to '{}'", complete, folder));
}

// The old iteration is removed only once the new one is complete, whatever happens in between.
void replace_by_complete(const std::string& root, std::int64_t iteration) {
  const std::string folder = iteration_folder(root, iteration);
  if (fs::exists(folder)) remove_iteration(folder);
  give_name(complete_folder(root, iteration), folder);
}

bool is_half_removed(const std::string& folder) {
  return fs::is_directory(folder) && fs::exists(fmt::format("{}/{}", folder, kRemovedIndex));
}

bool is_empty_folder(const std::string& path) { return fs::is_directory(path) && fs::is_empty(path); }

std::vector<std::string> names_in(const std::string& root) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(root))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// The newest iteration that was published before the tracker was written becomes the latest now.
void name_pending(const std::string& root) {
  std::vector<std::int64_t> pending;
  for (const std::int64_t iteration : iterations_in(root))
    if (fs::exists(fmt::format("{}/{}", iteration_folder(root, iteration), kTrackerPending)))
      pending.push_back(iteration);
  if (pending.empty()) return;
  name_as_latest(root, pending.back());
  for (const std::int64_t iteration : pending)
    fs::remove(fmt::format("{}/{}", iteration_folder(root, iteration), kTrackerPending));
}

}  // namespace

std::string complete_folder(const std::string& root, std::int64_t iteration) {
  return fmt::format("{}/.iter_{:07}{}", root, iteration, kComplete);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw std::runtime_error(fmt::format("cannot remove '{}': {}", path.string(), error.message()));
}

// The folder is not renamed first: on an overlay file system, a folder of a lower layer cannot be renamed.
void remove_iteration(const std::string& folder) {
  const std::string index = fmt::format("{}/{}", folder, kIndexFile),
                    mark = fmt::format("{}/{}", folder, kRemovedIndex);
  if (::rename(index.c_str(), mark.c_str()) != 0 && errno != ENOENT)
    throw_errno(fmt::format("cannot remove '{}'", folder));
  for (const std::string& name : names_in(folder))
    if (name != kRemovedIndex) remove_tree(fmt::format("{}/{}", folder, name));
  // The mark is removed before the folder: an empty folder without it has just been created by another program.
  const fs::path path(folder);
  const fs::path mark_outside = path.parent_path() / fmt::format(".{}{}", path.filename().string(), kRemoved);
  if (::rename(mark.c_str(), mark_outside.c_str()) != 0 && errno != ENOENT)
    throw_errno(fmt::format("cannot remove '{}'", folder));
  remove_tree(folder);
  remove_tree(mark_outside);
}

void rename_to_iteration(const std::string& root, std::int64_t iteration) {
  const std::string partial = partial_folder(root, iteration), folder = iteration_folder(root, iteration);
  if (!fs::exists(folder)) {
    rename_folder(partial, folder);
  } else if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    remove_tree(partial);
  } else {
    // EXDEV: the old folder is in a lower layer of an overlay file system. The others: a file system that cannot swap
    // names.
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP && errno != EXDEV)
      throw_errno(fmt::format("cannot rename to '{}'", folder));
    remove_tree(complete_folder(root, iteration));
    rename_folder(partial, complete_folder(root, iteration));
    sync_folder(root);
    replace_by_complete(root, iteration);
  }
  sync_folder(root);
}

void name_as_latest(const std::string& root, std::int64_t iteration) {
  write_file(fmt::format("{}/{}", root, kTracker), std::to_string(iteration));
  sync_folder(root);
}

bool is_unfinished(std::string_view name) {
  const auto is_temporary = [&](std::string_view target) {
    return name.starts_with(fmt::format(".{}.", target)) && name.ends_with(".tmp");
  };
  return (name.starts_with(".iter_") &&
          (name.ends_with(".partial") || name.ends_with(kComplete) || name.ends_with(kRemoved) ||
           name.ends_with(".leftover") || name.ends_with(".replaced"))) ||
         is_temporary(kTracker) || is_temporary(".writable") || is_unfinished_save_lock(name);
}

void settle_unfinished(const std::string& root) {
  for (const std::string& name : names_in(root)) {
    const std::string path = fmt::format("{}/{}", root, name);
    const auto replaced = iteration_before(name, ".replaced");  // an old iteration that was moved aside
    if (const auto complete = iteration_before(name, kComplete))
      replace_by_complete(root, *complete);
    else if (replaced && !fs::exists(iteration_folder(root, *replaced)))
      rename_folder(path, iteration_folder(root, *replaced));
    else if (const auto removed = iteration_before(name, kRemoved);
             removed && is_empty_folder(iteration_folder(root, *removed))) {
      remove_tree(iteration_folder(root, *removed));
      remove_tree(path);
    } else if (is_unfinished(name) || (iteration_of(name) && is_half_removed(path)))
      remove_tree(path);
  }
  name_pending(root);
}

}  // namespace braid
