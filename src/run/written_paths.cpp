#include "run/written_paths.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/files.h"
#include "base/socket.h"
#include "run/resume/save_folder.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

Problem cannot_write(const WrittenPath& written, const std::string& why) {
  return {
      fmt::format("'{}' cannot be written: {}", written.path, why), written.key,
      written.kind == WrittenPath::File ? "give a file that you can write to" : "give a folder that you can write to"};
}

std::optional<std::string> lacks_rights(const WrittenPath& written) {
  std::error_code ignored;
  const fs::path path = fs::absolute(written.path, ignored).lexically_normal(), there = nearest_existing(path);
  const bool is_whole = there == path;
  if (written.kind == WrittenPath::File && is_whole) {
    if (fs::is_directory(there, ignored)) return "it is a folder";
    if (!fs::is_regular_file(there, ignored)) return "it is not a regular file";
    return access(there.c_str(), W_OK) == 0 ? std::nullopt : std::optional<std::string>(std::strerror(errno));
  }
  if (!fs::is_directory(there, ignored)) return fmt::format("'{}' is not a folder", there.string());
  if (access(there.c_str(), W_OK | X_OK) == 0) return std::nullopt;
  return is_whole ? std::strerror(errno) : fmt::format("'{}': {}", there.string(), std::strerror(errno));
}

// Tests a folder with an unnamed file (O_TMPFILE), which disappears however this process ends. On file systems without
// O_TMPFILE (NFS), the permission check decides.
void try_folder(const fs::path& folder) {
  const Fd fd(::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600));
  if (!fd && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
    throw_errno(fmt::format("cannot write to '{}'", folder.string()));
}

// Creates folders or a file, and finally removes those that did not exist before.
class WriteTrial {
 public:
  WriteTrial() = default;
  ~WriteTrial() {
    std::error_code ignored;
    for (const fs::path& path : made_) fs::remove(path, ignored);  // a folder only when it is empty
  }
  WriteTrial(const WriteTrial&) = delete;
  WriteTrial& operator=(const WriteTrial&) = delete;

  void make_folders(const fs::path& folder) {
    std::error_code ignored;
    const auto is_there = [&](const fs::path& path) { return fs::exists(fs::symlink_status(path, ignored)); };
    for (fs::path path = folder; !path.empty() && !is_there(path); path = path.parent_path()) made_.push_back(path);
    if (!folder.empty()) fs::create_directories(folder);
  }

  void make_file(const fs::path& path) {
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    Fd fd(::open(path.c_str(), flags | O_EXCL, 0666));
    if (fd) made_.insert(made_.begin(), path);
    if (!fd && errno == EEXIST) fd = Fd(::open(path.c_str(), flags, 0666));
    if (!fd) throw_errno(fmt::format("cannot open '{}'", path.string()));
  }

 private:
  std::vector<fs::path> made_;  // deepest first
};

std::error_code try_to_write(const WrittenPath& written) try {
  const fs::path path(written.path);
  const bool is_file = written.kind == WrittenPath::File;
  WriteTrial trial;
  trial.make_folders(is_file ? path.parent_path() : path);
  is_file ? trial.make_file(path) : try_folder(path);
  return {};
} catch (const std::system_error& e) {
  return e.code();
}

std::optional<std::string> fails_to_write(const WrittenPath& written) {
  constexpr int kTries = 20;
  std::error_code error;
  for (int i = 0; i < kTries; ++i) {
    error = try_to_write(written);
    // Runs that start at the same time may create and remove the same parent folders.
    if (error != std::errc::no_such_file_or_directory) break;
  }
  return error ? std::optional(error.message()) : std::nullopt;
}

}  // namespace

std::vector<WrittenPath> written_paths(const Recipe& recipe) {
  std::vector<WrittenPath> paths = {{kSaveKey, recipe.checkpoint.save},
                                    {"log.tensorboard_dir", recipe.log.tensorboard_dir},
                                    {"log.metrics_file", recipe.log.metrics_file, WrittenPath::File},
                                    {"log.trace_dir", recipe.log.trace_dir},
                                    {"log.profile.dir", recipe.log.profile.enabled ? recipe.log.profile.dir : ""}};
  std::erase_if(paths, [](const WrittenPath& written) { return written.path.empty(); });
  return paths;
}

std::vector<Problem> writing_problems(const std::vector<WrittenPath>& paths) {
  std::vector<Problem> problems;
  for (const WrittenPath& written : paths) {
    auto why = lacks_rights(written);
    if (!why) why = fails_to_write(written);
    if (why) problems.push_back(cannot_write(written, *why));
  }
  return problems;
}

void require_writable(const std::vector<WrittenPath>& paths) {
  if (std::vector<Problem> problems = writing_problems(paths); !problems.empty())
    throw ConfigError(std::move(problems));
}

}  // namespace braid
