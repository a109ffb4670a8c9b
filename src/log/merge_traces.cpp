#include "log/merge_traces.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "log/append_only_file.h"
#include "log/trace.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// The inverse of trace_path().
std::optional<int> rank_of(const std::string& folder, const fs::path& file) {
  const std::string name = file.filename().string();
  int rank = 0;
  if (std::sscanf(name.c_str(), "trace_rank_%d.json", &rank) != 1) return std::nullopt;
  return fs::path(trace_path(folder, rank)).filename() == name ? std::optional(rank) : std::nullopt;
}

std::map<int, fs::path> trace_files(const std::string& folder, std::optional<int> world_size) {
  std::map<int, fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (const auto rank = rank_of(folder, entry.path()); rank && (!world_size || *rank < *world_size))
      files.emplace(*rank, entry.path());
  if (error) throw ConfigError({fmt::format("cannot read '{}': {}", folder, error.message()), "", "name a folder"});
  if (files.empty())
    throw ConfigError({fmt::format("'{}' has no traces of ranks", folder), "",
                       fmt::format("name the folder that a run got as --trace; it has files like {}",
                                   fs::path(trace_path("", 0)).filename().string())});
  return files;
}

// The merged file, which gets its final name once it is complete.
class MergedFile {
 public:
  explicit MergedFile(std::string path) : path_(std::move(path)), part_(path_ + ".part"), file_(part_, kEmpty) {}
  MergedFile(const MergedFile&) = delete;
  MergedFile& operator=(const MergedFile&) = delete;
  ~MergedFile() {
    std::error_code ignored;
    fs::remove(part_, ignored);
  }

  void add(std::string_view event) {
    constexpr std::size_t kFlushAt = 1 << 20;
    pending_ += is_empty_ ? "[\n" : ",\n";
    pending_ += event;
    is_empty_ = false;
    if (pending_.size() < kFlushAt) return;
    file_.append(pending_);
    pending_.clear();
  }

  void close() {
    file_.append(pending_ + (is_empty_ ? "[\n]\n" : "\n]\n"));
    fs::rename(part_, path_);
  }

 private:
  static constexpr auto kEmpty = AppendOnlyFile::Start::Empty;
  const std::string path_, part_;
  AppendOnlyFile file_;
  std::string pending_;
  bool is_empty_ = true;
};

}  // namespace

std::string merged_trace_path(const std::string& folder) { return folder + "/trace.json"; }

// A trace has one event per line, with a comma at its end, between lines with its brackets.
MergedTraces merge_traces(const std::string& folder, std::optional<int> world_size,
                          std::atomic<std::int64_t>* bytes_read) {
  MergedTraces merged;
  const std::map<int, fs::path> files = trace_files(folder, world_size);
  MergedFile output(merged_trace_path(folder));
  for (const auto& [rank, path] : files) {
    std::ifstream file(path);
    if (!file) throw_errno(fmt::format("cannot read '{}'", path.string()));
    merged.ranks.push_back(rank);
    for (std::string line; std::getline(file, line);) {
      if (bytes_read) *bytes_read += std::ssize(line) + 1;
      if (line.ends_with(',')) line.pop_back();
      if (line == "[" || line == "]" || line.empty()) continue;
      if (!line.starts_with('{') || !nlohmann::json::accept(line)) {
        merged.cut.push_back(rank);
        break;
      }
      output.add(line);
      ++merged.events;
    }
    if (file.bad()) throw_errno(fmt::format("cannot read '{}'", path.string()));
  }
  output.close();
  return merged;
}

}  // namespace braid
