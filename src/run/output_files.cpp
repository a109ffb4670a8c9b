#include "run/output_files.h"
#include <fcntl.h>
#include <unistd.h>
#include "base/files.h"
#include "base/strings.h"
#include "data/shards/data_set.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

// --- whether a path can be written

std::optional<std::string> lacks_rights(const WrittenPath& written) {
  std::error_code ignored;
  const fs::path path = fs::absolute(written.path, ignored).lexically_normal(), there = nearest_existing(path);
  const bool is_whole = there == path;
  if (written.kind == WrittenPath::File && is_whole) {
    if (is_folder(there)) return "it is a folder";
    if (!is_file(there)) return "it is not a regular file";
    return access(there.c_str(), W_OK) == 0 ? std::nullopt : std::optional<std::string>(std::strerror(errno));
  }
  if (!is_folder(there)) return fmt::format("'{}' is not a folder", there.string());
  if (access(there.c_str(), W_OK | X_OK) == 0) return std::nullopt;
  return is_whole ? std::strerror(errno) : fmt::format("'{}': {}", there.string(), std::strerror(errno));
}

// 0 if the path can be opened.
int open_error(const fs::path& path, int flags) {
  return Fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666)) ? 0 : errno;
}

// Creates folders or a file, and finally removes those that did not exist before.
std::error_code try_to_write(const WrittenPath& written) {
  const bool is_file = written.kind == WrittenPath::File;
  const fs::path path(written.path), folder = is_file ? path.parent_path() : path;
  std::error_code error, ignored;
  const auto is_there = [&](const fs::path& each) { return fs::exists(fs::symlink_status(each, ignored)); };
  std::vector<fs::path> made;  // deepest first
  for (fs::path each = folder; !each.empty() && !is_there(each); each = each.parent_path()) made.push_back(each);
  if (!folder.empty()) fs::create_directories(folder, error);
  // A folder is tested with an unnamed file, which disappears however this process ends. On file systems without
  // O_TMPFILE (NFS), the permission check decides.
  int failure = error ? error.value() : open_error(path, is_file ? O_CREAT | O_APPEND | O_EXCL : O_TMPFILE);
  if (is_file && failure == 0) made.insert(made.begin(), path);
  if (is_file && failure == EEXIST) failure = open_error(path, O_CREAT | O_APPEND);
  const bool is_unsupported = failure == EOPNOTSUPP || failure == EISDIR || failure == EINVAL;
  error.assign(!is_file && is_unsupported ? 0 : failure, std::generic_category());
  for (const fs::path& each : made) fs::remove(each, ignored);  // a folder only when it is empty
  return error;
}

// --- names of files

bool is_read(const fs::path& target, const InputFiles& inputs) {
  const auto is = [&](const fs::path& input) {
    std::error_code ignored;
    return fs::equivalent(target, input, ignored);
  };
  // Names are compared first, because file system calls are slow.
  const auto is_shard_file = [&](const fs::path& input) { return input.filename() == target.filename() && is(input); };
  if (is(inputs.path) || is(inputs.data.path) || std::ranges::any_of(inputs.others, is)) return true;
  if (const fs::path tokenizer(inputs.data.tokenizer); !tokenizer.empty()) {
    const fs::path folder = is_folder(tokenizer) ? tokenizer : tokenizer.parent_path();
    if (is(tokenizer) || is(folder / target.filename())) return true;
  }
  if (!inputs.blend) return false;
  for (const Leaf& leaf : inputs.blend->leaves) {
    if (is(fs::path(leaf.data.path) / kMetaFolder / target.filename())) return true;
    for (const Shard& shard : leaf.data.shards)
      if (is_shard_file(shard.path) || is_shard_file(index_path(shard.path))) return true;
  }
  return false;
}

// Returns the same path for all names of a file.
fs::path full_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path), found = fs::weakly_canonical(absolute, error);
  return error ? absolute.lexically_normal() : found;
}

// Checks only the names of a link and its target, so that a command that was accepted once is accepted again.
std::optional<Problem> name_problem(const OutputFile& output, const InputFiles& inputs) {
  const fs::file_status status = status_of(output.path);
  if (fs::exists(status) && !fs::is_regular_file(status)) return std::nullopt;  // a pipe, or an unwritable folder
  if (is_read(output.path, inputs))
    return Problem{fmt::format("{} {} would replace a file that is read", output.flag, in_quotes(output.path)),
                   output.flag, "give another name"};
  const auto is_of_kind = [&](const std::string& name) {
    return std::ranges::any_of(output.endings, [&](std::string_view ending) { return name.ends_with(ending); });
  };
  if (is_of_kind(output.path) && is_of_kind(full_path(output.path))) return std::nullopt;
  return Problem{
      fmt::format("{} {} does not end in {}", output.flag, in_quotes(output.path), fmt::join(output.endings, " or ")),
      output.flag, "give a name that does; files of other kinds are never replaced"};
}

}  // namespace

std::vector<WrittenPath> written_paths(const Recipe& recipe) {
  std::vector<WrittenPath> paths = {{kSaveKey, recipe.checkpoint.save},
                                    {"log.tensorboard_dir", recipe.log.tensorboard_dir},
                                    {"log.metrics_file", recipe.log.metrics_file, WrittenPath::File},
                                    {"log.trace_dir", recipe.log.trace_dir},
                                    {"log.sample_trace_dir", recipe.log.sample_trace_dir},
                                    {"log.activation_dir", recipe.log.activation_dir},
                                    {"log.profile.dir", recipe.log.profile.enabled ? recipe.log.profile.dir : ""}};
  std::erase_if(paths, [](const WrittenPath& written) { return written.path.empty(); });
  return paths;
}

std::vector<Problem> writing_problems(const std::vector<WrittenPath>& paths) {
  std::vector<Problem> problems;
  for (const WrittenPath& written : paths) {
    auto why = lacks_rights(written);
    // Runs that start at the same time may create and remove the same parent folders.
    std::error_code error = std::make_error_code(std::errc::no_such_file_or_directory);
    for (int tries = 0; !why && tries < 20 && error == std::errc::no_such_file_or_directory; ++tries)
      error = try_to_write(written);
    if (!why && error) why = error.message();
    const char* kind = written.kind == WrittenPath::File ? "file" : "folder";
    if (why)
      problems.push_back({fmt::format("'{}' cannot be written: {}", written.path, *why), written.key,
                          fmt::format("give a {} that you can write to", kind)});
  }
  return problems;
}

std::vector<Problem> output_problems(const std::vector<OutputFile>& outputs, const InputFiles& inputs) {
  std::vector<Problem> problems;
  std::map<fs::path, std::string> flags;
  for (const OutputFile& output : outputs) {
    if (output.path.empty()) continue;
    const auto [other, is_new] = flags.emplace(full_path(output.path), output.flag);
    if (!is_new)
      problems.push_back(
          {fmt::format("{} and {} name the same file, {}", other->second, output.flag, in_quotes(output.path)),
           output.flag, "give another name"});
    if (auto problem = name_problem(output, inputs)) problems.push_back(*std::move(problem));
  }
  return problems;
}

std::vector<WrittenPath> written_paths(const std::vector<OutputFile>& outputs) {
  std::vector<WrittenPath> paths;
  for (const OutputFile& output : outputs)
    if (!output.path.empty()) paths.push_back({output.flag, output.path, WrittenPath::File});
  return paths;
}

void check_outputs(const std::vector<OutputFile>& outputs, const InputFiles& inputs) {
  std::vector<Problem> problems = output_problems(outputs, inputs);
  append(problems, writing_problems(written_paths(outputs)));
  throw_if_any(std::move(problems));
}

void make_folder_of(const std::string& file) {
  if (const fs::path folder = fs::path(file).parent_path(); !folder.empty()) fs::create_directories(folder);
}

void write_output(const std::string& file, std::string_view text) {
  make_folder_of(file);
  write_file(file, text);
}

}  // namespace braid
