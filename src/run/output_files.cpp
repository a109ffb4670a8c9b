#include "run/output_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/strings.h"
#include "data/shards/metadataset.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

bool is_read(const fs::path& target, const InputFiles& inputs) {
  const auto is = [&](const fs::path& input) {
    std::error_code ignored;
    return fs::equivalent(target, input, ignored);
  };
  const auto is_shard_file =
      [&](const fs::path& input) {  // names are compared first, because file system calls are slow
        return input.filename() == target.filename() && is(input);
      };
  if (is(inputs.path) || is(inputs.data.path) || std::ranges::any_of(inputs.others, is)) return true;
  if (const fs::path tokenizer(inputs.data.tokenizer); !tokenizer.empty()) {
    std::error_code ignored;
    const fs::path folder = fs::is_directory(tokenizer, ignored) ? tokenizer : tokenizer.parent_path();
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
  std::error_code ignored;
  const fs::file_status status = fs::status(output.path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) return std::nullopt;  // a pipe, or an unwritable folder
  if (is_read(output.path, inputs))
    return Problem{fmt::format("{} {} would replace a file that is read", output.flag, in_quotes(output.path)),
                   output.flag, "give another name"};
  const auto is_of_kind = [&](const std::string& name) {
    return std::any_of(output.endings.begin(), output.endings.end(),
                       [&](std::string_view ending) { return name.ends_with(ending); });
  };
  if (is_of_kind(output.path) && is_of_kind(full_path(output.path))) return std::nullopt;
  return Problem{
      fmt::format("{} {} does not end in {}", output.flag, in_quotes(output.path), fmt::join(output.endings, " or ")),
      output.flag, "give a name that does; files of other kinds are never replaced"};
}

}  // namespace

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
  for (Problem& problem : writing_problems(written_paths(outputs))) problems.push_back(std::move(problem));
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

void make_folder_of(const std::string& file) {
  if (const fs::path folder = fs::path(file).parent_path(); !folder.empty()) fs::create_directories(folder);
}

void write_output(const std::string& file, std::string_view text) {
  make_folder_of(file);
  write_file(file, text);
}

}  // namespace braid
