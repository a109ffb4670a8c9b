// One data set on disk: a folder of tar shards that `braid data prepare` or Energon has prepared, or a JSONL file with
// its index. Here are its shards and their sample counts; what is in a sample is sample_spec.h's concern.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/shards/shard.h"

namespace braid {

// A file in a folder of shards that is there until all of them are written. Such a folder is not prepared.
inline constexpr const char* kUnfinishedMark = ".unfinished";
void refuse_unfinished(const std::string& folder);  // ConfigError

enum class PathKind { Folder, Jsonl, Metadataset };

// ConfigError when it is none of them.
PathKind kind_of_path(const std::string& path);

// The shards of one split, in the order of split.yaml, which numbers the samples.
struct DataSet {
  std::string path;
  std::string split;
  std::vector<Shard> shards{};
  std::vector<std::int64_t> starts{};                           // of each shard's samples; then their total
  std::set<std::pair<std::uint32_t, std::int64_t>> excluded{};  // (shard, index in it): counted but never emitted

  // Names in `exclude` that are no shard of the folder, and no sample of a shard of this split.
  std::set<std::string> unknown_excludes{};

  std::string contents{};  // a hash that read_contents() gives; empty: not read

  std::int64_t samples() const { return starts.back(); }
  std::uint32_t shard_of(std::int64_t sample) const;
  std::uint64_t fingerprint() const;  // of the shards' names, counts and contents, and of what is excluded
};

inline constexpr std::int64_t kMaxSamples = std::int64_t{1} << 50;  // numbers of samples stay exact in double
inline constexpr const char* kMetaFolder = ".nv-meta";

// Brace expansion in lists of shards, as in bash: `part{00..03}.tar`, `{a,b}/{x,y}.tar`. A backslash makes the next
// character plain. ConfigError (with `where`) on unbalanced braces, and when more than a million strings would result.
std::vector<std::string> expand_braces(std::string_view pattern, const std::string& where);

using Splits = std::vector<std::pair<std::string, std::vector<std::string>>>;  // names, and those of their shards
struct SplitFile {
  Splits splits{};                     // without the excluded shards
  std::vector<std::string> exclude{};  // as written, where braces stand for several names
  std::set<std::string> excluded{};    // the names: SHARD, or SHARD/KEY for one sample
};
// The part of a file about a split, under its name. ConfigError, which names the others, if there is none.
class DocumentNode;
DocumentNode node_of_split(const DocumentNode& splits, const std::string& split);
// split.yaml or split.json. Empty if a folder has neither.
SplitFile read_split_file(const std::string& folder);

// A warning if there are any: DataSet::unknown_excludes, of one or several splits.
std::vector<std::string> exclude_warnings(const std::string& path, const std::set<std::string>& unknown);

// `split_config`: the file below .nv-meta to use instead of split.yaml. JSONL files have no splits.
DataSet open_data_set(const std::string& path, const std::string& split,
                      const std::optional<std::string>& split_config = std::nullopt);

// What a folder without tar files holds, and how it becomes a data set. Also looks into folders below, up to a limited
// number of files.
Problem without_tar_files(const std::string& folder);

}  // namespace braid
