#include "ckpt/checkpoint_folder.h"
#include <fcntl.h>
#include <sys/stat.h>
#include "base/files.h"
#include "base/strings.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/save_lock.h"
#include "formats/atomic_file.h"
#include "formats/torch_archive.h"

namespace braid {
namespace {

constexpr std::string_view kPartial = ".partial", kComplete = ".complete", kRemoved = ".removed",
                           kRemovedIndex = ".metadata.removed";
constexpr const char* kTrackerPending = ".tracker_pending";

std::string complete_folder(const std::string& root, std::int64_t iteration) {
  return fmt::format("{}/.iter_{:07}{}", root, iteration, kComplete);
}

// --- what a killed save leaves

void rename_folder(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_errno(fmt::format("cannot rename '{}' to '{}'", from, to));
}

std::vector<std::string> names_in(const std::string& root) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(root))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw std::runtime_error(fmt::format("cannot remove '{}': {}", path.string(), error.message()));
}

// Marks the iteration as incomplete before removing anything. The folder is not renamed first: on an overlay file
// system, a folder of a lower layer cannot be renamed.
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

// The N of ".iter_000000N" + end.
std::optional<std::int64_t> iteration_before(const std::string& name, std::string_view end) {
  if (!name.starts_with(".iter_") || !name.ends_with(end)) return std::nullopt;
  return iteration_of(name.substr(1, name.size() - 1 - end.size()));
}

// The old iteration is removed only once the new one is complete, whatever happens in between.
void replace_by_complete(const std::string& root, std::int64_t iteration) {
  const std::string complete = complete_folder(root, iteration), folder = iteration_folder(root, iteration);
  if (fs::exists(folder)) remove_iteration(folder);
  // Another process that resumes from it may already have renamed it.
  if (::rename(complete.c_str(), folder.c_str()) != 0 && !(errno == ENOENT && fs::exists(folder)))
    throw_errno(fmt::format("cannot rename '{}' to '{}'", complete, folder));
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

// Renames a complete partial folder to the iteration's name, replacing an older one if there is one.
void rename_to_iteration(const std::string& root, std::int64_t iteration) {
  const std::string partial = partial_folder(root, iteration), folder = iteration_folder(root, iteration);
  if (!fs::exists(folder)) {
    rename_folder(partial, folder);
  } else if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    remove_tree(partial);
  } else {
    // The old folder is in a lower layer of an overlay file system (EXDEV), or names cannot be swapped.
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP && errno != EXDEV)
      throw_errno(fmt::format("cannot rename to '{}'", folder));
    remove_tree(complete_folder(root, iteration));
    rename_folder(partial, complete_folder(root, iteration));
    sync_folder(root);
    replace_by_complete(root, iteration);
  }
  sync_folder(root);
}

// --- saving

constexpr std::string_view kBackend =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";

std::string index_file(const std::string& partial, int writer) { return fmt::format("{}/.{}.index", partial, writer); }
std::string sums_file(const std::string& partial, int writer) { return fmt::format("{}/.{}.sums", partial, writer); }

// Writes a file of the partial folder and records its checksums.
void add_file(const std::string& partial, const std::string& name, const std::string& bytes, Checksums& checksums) {
  write_file(partial + "/" + name, bytes);
  checksums[name] = checksums_of(bytes);
}

}  // namespace

// --- iterations

IterationFiles files_of(const std::string& folder) {
  IterationFiles files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error)) continue;
    ++files.count;
    files.bytes += static_cast<std::int64_t>(entry.file_size(error));
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("__") || !name.ends_with(".distcp")) continue;
    if (const auto writer = parse_int(name.substr(2, name.find('_', 2) - 2))) files.writers.push_back(*writer);
  }
  std::sort(files.writers.begin(), files.writers.end());
  files.writers.erase(std::unique(files.writers.begin(), files.writers.end()), files.writers.end());
  struct stat index {};
  if (::stat((folder + "/.metadata").c_str(), &index) == 0) files.saved_at = index.st_mtime;
  return files;
}

std::optional<std::int64_t> read_tracker(const std::string& root) {
  const std::string tracker = fmt::format("{}/{}", root, kTracker);
  if (fs::exists(root) && !fs::is_directory(root)) throw DataError(fmt::format("'{}' is not a folder", root));
  if (!fs::exists(tracker)) {
    // A killed save may not have written the tracker; any complete iteration can be loaded.
    const std::vector<std::int64_t> iterations = iterations_in(root);
    return iterations.empty() ? std::nullopt : std::optional(iterations.back());
  }
  std::string text = read_whole(tracker, std::nullopt, kMaxSmallFile);
  std::erase_if(text, [](unsigned char c) { return std::isspace(c); });
  const auto iteration = parse_int64(text);
  if (!iteration || *iteration < 0)
    throw DataError(
        fmt::format("{} contains {} instead of an iteration number; write the number of the iteration to load into it",
                    tracker, in_quotes(text)));
  return iteration;
}

std::optional<std::int64_t> latest_iteration(const std::string& root) {
  const auto iteration = read_tracker(root);
  if (!iteration) return std::nullopt;
  const std::string folder = iteration_folder(root, *iteration);
  // A run died while it replaced an older iteration by this one: the first process to get here renames it.
  if (!fs::exists(folder)) ::rename(complete_folder(root, *iteration).c_str(), folder.c_str());
  if (!fs::exists(folder))
    throw DataError(fmt::format("{}/{} names iteration {}, but there is no {}", root, kTracker, *iteration, folder));
  return iteration;
}

std::optional<std::string> find_iteration(const std::string& path, bool falls_back) {
  if (is_there(path + "/.metadata")) return path;
  try {
    if (const auto iteration = latest_iteration(path)) return iteration_folder(path, *iteration);
  } catch (const DataError&) {
    const std::vector<std::int64_t> others = falls_back ? iterations_in(path) : std::vector<std::int64_t>();
    if (others.empty()) throw;
    return iteration_folder(path, others.back());
  }
  refuse_damaged_only(path);
  return std::nullopt;
}

void refuse_damaged_only(const std::string& root) {
  const std::vector<std::int64_t> all = iterations_in(root, Complete::OrNot);
  if (all.empty() || !iterations_in(root).empty()) return;
  throw DataError(
      fmt::format("{} has no {}: it is damaged, and '{}' has no complete checkpoint; restore it, or remove it to start "
                  "anew",
                  iteration_folder(root, all.back()), kIndexFile, root));
}

std::string resolve_iteration(const std::string& path) {
  if (const auto folder = find_iteration(path)) return *folder;
  throw DataError(fmt::format("there is no checkpoint in '{}': neither {} nor .metadata", path, kTracker));
}

// --- what a killed save leaves

void name_as_latest(const std::string& root, std::int64_t iteration) {
  write_file(fmt::format("{}/{}", root, kTracker), std::to_string(iteration));
  sync_folder(root);
}

bool is_unfinished(std::string_view name) {
  const auto is_temporary = [&](std::string_view target) {
    return name.starts_with(fmt::format(".{}.", target)) && name.ends_with(".tmp");
  };
  return (name.starts_with(".iter_") &&
          (name.ends_with(kPartial) || name.ends_with(kComplete) || name.ends_with(kRemoved))) ||
         is_temporary(kTracker) || is_unfinished_save_lock(name);
}

bool has_interrupted_save(const std::string& root) {
  return is_there(root) && std::ranges::any_of(names_in(root), [](const auto& name) {
           return iteration_before(name, kPartial).has_value();
         });
}

void settle_unfinished(const std::string& root) {
  for (const std::string& name : names_in(root)) {
    const std::string path = fmt::format("{}/{}", root, name);
    const auto complete = iteration_before(name, kComplete), removed = iteration_before(name, kRemoved);
    if (complete) {
      replace_by_complete(root, *complete);
      continue;
    }
    const std::string emptied = removed ? iteration_folder(root, *removed) : "";
    if (fs::is_directory(emptied) && fs::is_empty(emptied)) remove_tree(emptied);
    const bool is_half_removed = iteration_of(name) && fs::exists(fmt::format("{}/{}", path, kRemovedIndex));
    if (is_unfinished(name) || is_half_removed) remove_tree(path);
  }
  name_pending(root);
}

// --- saving

void begin_iteration(const std::string& root, std::int64_t iteration) {
  std::error_code error;
  fs::create_directories(root, error);
  if (!error) settle_unfinished(root);
  const std::string partial = partial_folder(root, iteration);
  if (!error) fs::create_directory(partial, error);
  if (error) throw std::runtime_error(fmt::format("cannot create '{}': {}", partial, error.message()));
}

void hand_in(const std::string& partial, int writer, const DistWriter& written) {
  write_file(index_file(partial, writer), write_metadata(written.metadata()));
  write_file(sums_file(partial, writer), to_text(written.checksums()));  // last: it marks the writer as complete
}

bool handed_in(const std::string& partial, int writer) { return fs::exists(sums_file(partial, writer)); }

std::int64_t publish(const std::string& root, std::int64_t iteration, int writers, const std::string& common_pt,
                     Saver saver) {
  const std::string partial = partial_folder(root, iteration);
  DistMetadata metadata;
  Checksums checksums;
  for (int writer = 0; writer < writers; ++writer) {
    const std::string index = index_file(partial, writer), sums = sums_file(partial, writer);
    merge(metadata, read_metadata(read_whole(index, std::nullopt, kMaxIndexFile), index));
    checksums.merge(parse_checksums(read_whole(sums, std::nullopt, kMaxIndexFile), sums));
    fs::remove(index);
    fs::remove(sums);
  }
  // A bug in the distribution of shards over writers must not become the newest checkpoint.
  if (const std::vector<Problem> problems = coverage_problems(metadata); !problems.empty())
    throw DataError(fmt::format("{} is incomplete: {}", partial, problems.front().what));
  metadata.has_checksums = true;
  add_file(partial, "common.pt", common_pt, checksums);
  add_file(partial, ".metadata", write_metadata(metadata), checksums);
  add_file(partial, "metadata.json", std::string(kBackend), checksums);
  write_file(partial + "/" + kChecksumFile, to_text(checksums));
  for (const auto& [name, sums] : checksums) {
    std::error_code error;
    if (static_cast<std::int64_t>(fs::file_size(partial + "/" + name, error)) != sums.size || error)
      throw DataError(fmt::format("{}/{} has changed since it was written; does another run save to the same folder?",
                                  partial, name));
  }
  const bool older =
      saver == Saver::Guest && fs::exists(root + "/" + kTracker) && read_tracker(root).value_or(-1) > iteration;
  if (!older) write_file(partial + "/" + kTrackerPending, "");
  sync_folder(partial);
  rename_to_iteration(root, iteration);
  if (!older) {
    name_as_latest(root, iteration);
    fs::remove(iteration_folder(root, iteration) + "/" + kTrackerPending);
  }
  return std::accumulate(checksums.begin(), checksums.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& file) { return sum + file.second.size; });
}

void remove_old_iterations(const std::string& root, int keep) {
  std::vector<std::int64_t> iterations = iterations_in(root);
  const std::int64_t latest = latest_iteration(root).value_or(0);
  // Later iterations belong to an abandoned run.
  std::erase_if(iterations, [&](std::int64_t iteration) { return iteration > latest; });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < iterations.size(); ++i)
    remove_iteration(iteration_folder(root, iterations[i]));
}

}  // namespace braid
