#include "data/shards/data_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/document.h"
#include "data/shards/sha1.h"
#include "data/shards/shard.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Endings in lower case and how many files have them. Folders of pictures may have millions.
std::map<std::string, std::int64_t> endings_in(const std::string& folder) {
  constexpr int kMost = 100'000;
  std::map<std::string, std::int64_t> endings;
  std::error_code error;
  int files = 0;
  for (fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && entry != end && files < kMost; entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    std::string ending = entry->path().extension().string();
    std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
    ++endings[ending];
    ++files;
  }
  return endings;
}

// Compressed ones are refused by `braid data prepare`.
bool has_tar_files(const std::string& folder) {
  const auto endings = endings_in(folder);
  return endings.contains(".tar") || endings.contains(".tgz") || endings.contains(".gz");
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

fs::path meta(const std::string& folder, const std::string& file) { return fs::path(folder) / kMetaFolder / file; }

std::string info_path(const std::string& folder) {
  for (const char* name : {".info.json", ".info.yaml"})
    if (is_file(meta(folder, name))) return meta(folder, name);
  return "";
}

using Counts = std::unordered_map<std::string, std::int64_t>;

Counts read_counts(const std::string& folder) {
  const std::string path = info_path(folder);
  const Json document = read_document(path);
  const DocumentNode info(document, path);
  info.expect_keys({"energon_version", "shard_counts"});
  Counts counts;
  for (const auto& [name, count] : info.at("shard_counts").entries()) counts[name] = count.integer(0);
  return counts;
}

std::string split_path(const std::string& folder, const std::optional<std::string>& split_config) {
  if (split_config) return meta(folder, *split_config);
  const bool only_json = !is_file(meta(folder, "split.yaml")) && is_file(meta(folder, "split.json"));
  return meta(folder, only_json ? "split.json" : "split.yaml");
}

// All splits of a file, or `only` one of them.
SplitFile read_splits(const std::string& path, const std::optional<std::string>& only) {
  const Json document = read_document(path);
  const DocumentNode root(document, path);
  root.expect_keys({"split_parts", "exclude"});
  SplitFile file;
  if (root.has("exclude"))
    for (const DocumentNode& entry : root.at("exclude").items()) {
      file.exclude.push_back(entry.text());
      for (std::string& name : expand_braces(entry.text(), entry.where())) file.excluded.insert(std::move(name));
    }
  const auto add = [&](const std::string& name, const DocumentNode& part) {
    std::vector<std::string>& shards = file.splits.emplace_back(name, std::vector<std::string>()).second;
    for (const DocumentNode& item : part.items())
      for (std::string& shard : expand_braces(item.text(), item.where()))
        if (!file.excluded.contains(shard)) shards.push_back(std::move(shard));
    if (only && shards.empty())
      part.fail(fmt::format("the split {} has no shards", in_quotes(name)), "list shards, or use another split");
  };
  const DocumentNode parts = root.at("split_parts");
  if (only) {
    add(*only, node_of_split(parts, *only));
  } else {
    for (const auto& [name, part] : parts.entries()) add(name, part);
  }
  return file;
}

void add_shard(DataSet& data, Shard shard, const std::string& where) {
  if (shard.samples > kMaxSamples - data.samples())
    throw ConfigError({"the sample counts add up to an impossible number", where, "prepare the data set again"});
  data.starts.push_back(data.samples() + shard.samples);
  data.shards.push_back(std::move(shard));
}

// "shard" or "shard/key", where the shard may be in a folder.
bool names_shard(const std::string& entry, const Counts& counts) {
  if (counts.contains(entry)) return true;
  for (std::size_t slash = entry.find('/'); slash != entry.npos; slash = entry.find('/', slash + 1))
    if (counts.contains(entry.substr(0, slash))) return true;
  return false;
}

// Entries "shard/key" name single samples. Their indices are looked up in the shards.
void find_excluded_samples(DataSet& data, const std::set<std::string>& excluded) {
  for (std::uint32_t i = 0; i < data.shards.size(); ++i) {
    const std::string prefix = data.shards[i].name + "/";
    std::set<std::string> keys;
    for (auto entry = excluded.lower_bound(prefix); entry != excluded.end() && entry->starts_with(prefix); ++entry)
      keys.insert(entry->substr(prefix.size()));
    if (keys.empty()) continue;
    const OpenShard shard(data.shards[i]);
    std::set<std::string> unknown = keys;
    for (std::int64_t index = 0; index < data.shards[i].samples; ++index) {
      const std::string key = shard.key(index);
      if (!keys.contains(key)) continue;
      data.excluded.emplace(i, index);
      unknown.erase(key);
    }
    for (const std::string& key : unknown) data.unknown_excludes.insert(prefix + key);
  }
}

std::string fix_of_unknown_shard(const std::string& folder, const std::string& shard) {
  const std::string again = fmt::format("run `braid data prepare --force {}`", folder);
  return is_file(fs::path(folder) / shard)
             ? again
             : fmt::format("correct the name, restore the shard, or {} with new splits (--split)", again);
}

DataSet open_jsonl(const std::string& path, const std::string& split) {
  const std::string index_file = index_path(path);
  if (!is_file(index_file))
    throw ConfigError({fmt::format("'{}' has no index '{}'", path, index_file), "",
                       fmt::format("run `braid data prepare {}`", path)});
  const SampleIndex index(index_file);
  if (index.end() != fs::file_size(path))
    throw DataError(fmt::format("'{}' covers {} bytes, but '{}' has {}: run `braid data prepare --force {}`",
                                index_file, index.end(), path, fs::file_size(path), path));
  DataSet data{.path = path, .split = split, .starts = {0}};
  add_shard(data, {fs::path(path).filename(), path, index.samples()}, index_file);
  return data;
}

}  // namespace

Problem without_tar_files(const std::string& folder) {
  const auto endings = endings_in(folder);
  const auto count = [&](const std::vector<std::string>& names) {
    std::int64_t files = 0;
    for (const auto& [ending, number] : endings) files += contains(names, ending) ? number : 0;
    return files;
  };
  const std::int64_t pictures = count({".jpg", ".jpeg", ".png", ".webp"}), texts = count({".json", ".jsonl"});
  const std::string what = fmt::format("'{}' has no .tar files", folder);
  if (endings.empty()) return {what + ": it is empty, or cannot be read", "", "check the path and its permissions"};
  if (pictures > 0)
    return {fmt::format("{}: it has {} and {}", what, counted(pictures, "picture"), counted(texts, "JSON file")), "",
            "write each picture and the JSON of its sample into .tar files as KEY.jpg and KEY.json (docs/data.md has a "
            "script for LLaVA's files), then run `braid data prepare` on their folder"};
  if (count({".jsonl"}) > 0)
    return {what + ": it has .jsonl files", "",
            "give the path of a .jsonl file; a .yaml metadataset can blend several"};
  if (count({".parquet", ".arrow"}) > 0)
    return {what + ": it has .parquet or .arrow files", "",
            "write their samples into .tar files as KEY.jpg and KEY.json, or into a .jsonl file if they are text"};
  return {what, "", "give a folder of .tar files, or a .jsonl file"};
}

void refuse_unfinished(const std::string& folder) {
  if (is_file(fs::path(folder) / kUnfinishedMark))
    throw ConfigError({fmt::format("'{}' is unfinished: writing it was interrupted ({})", folder, kUnfinishedMark), "",
                       "remove the folder and write it again, for example with `braid data draw`"});
}

PathKind kind_of_path(const std::string& path) {
  if (path.find("://") != path.npos)
    throw ConfigError({fmt::format("remote data sets cannot be read: {}", in_quotes(path)), "",
                       "copy or mount it, and give the local path"});
  std::error_code ignored;
  if (is_file(path) && path.ends_with(".jsonl")) return PathKind::Jsonl;
  if (is_file(path) && path.ends_with(".yaml")) return PathKind::Metadataset;
  if (!info_path(path).empty()) return PathKind::Folder;
  if (!fs::exists(path, ignored)) throw ConfigError({fmt::format("'{}' does not exist", path), "", "check the path"});
  refuse_unfinished(path);
  const bool is_folder = fs::is_directory(path, ignored);
  if (is_folder && !has_tar_files(path)) throw ConfigError(without_tar_files(path));
  throw ConfigError(
      {fmt::format("'{}' is not a {}", path,
                   is_folder ? fmt::format("prepared data set: it has no {}/.info.json", kMetaFolder) : "data set"),
       "",
       is_folder ? fmt::format("run `braid data prepare {}`", path)
                 : "give a prepared folder, a .jsonl file or a metadataset's .yaml file"});
}

DocumentNode node_of_split(const DocumentNode& splits, const std::string& split) {
  if (splits.has(split)) return splits.at(split);
  std::vector<std::string> names;
  for (const auto& [name, node] : splits.entries()) names.push_back(name);
  splits.fail(fmt::format("there is no split {}", in_quotes(split)),
              fmt::format("choose one of: {} (--split, or the recipe's data.split or data.valid_split)",
                          fmt::join(names, ", ")));
}

SplitFile read_split_file(const std::string& folder) {
  const std::string path = split_path(folder, std::nullopt);
  return is_file(path) ? read_splits(path, std::nullopt) : SplitFile();
}

std::vector<std::string> exclude_warnings(const std::string& path, const std::set<std::string>& unknown) {
  constexpr std::size_t kMostNamed = 5;
  std::vector<std::string> names;
  for (const std::string& entry : unknown)
    if (names.size() < kMostNamed) names.push_back(in_quotes(entry));
  if (names.empty()) return {};
  return {fmt::format(
      "`exclude` in the splits of '{}' has entries that match no shard and no sample: {}{}; correct or remove them",
      path, fmt::join(names, ", "), names.size() < unknown.size() ? ", ..." : "")};
}

std::uint32_t DataSet::shard_of(std::int64_t sample) const {
  return static_cast<std::uint32_t>(std::upper_bound(starts.begin(), starts.end(), sample) - starts.begin() - 1);
}

std::uint64_t DataSet::fingerprint() const {
  std::string text;
  for (const Shard& shard : shards) text += fmt::format("{}\n{}\n", shard.name, shard.samples);
  text += contents + "\n";
  for (const auto& [shard, index] : excluded) text += fmt::format("-{} {}\n", shard, index);
  return sha1_number(text);
}

DataSet open_data_set(const std::string& path, const std::string& split,
                      const std::optional<std::string>& split_config) {
  const PathKind kind = kind_of_path(path);
  BRAID_CHECK(kind != PathKind::Metadataset, "{}", path);
  if (kind == PathKind::Jsonl) return open_jsonl(path, split);
  const auto counts = read_counts(path);
  const std::string where = split_path(path, split_config);
  const SplitFile file = read_splits(where, split);
  DataSet data{.path = path, .split = split, .starts = {0}};
  for (const std::string& name : file.splits[0].second) {
    const auto count = counts.find(name);
    if (count == counts.end())
      throw ConfigError({fmt::format("the split {} names shard {}, which .info.json does not know", in_quotes(split),
                                     in_quotes(name)),
                         where, fix_of_unknown_shard(path, name)});
    add_shard(data, {name, fs::path(path) / name, count->second}, where);
  }
  for (const std::string& entry : file.excluded)
    if (!names_shard(entry, counts)) data.unknown_excludes.insert(entry);
  find_excluded_samples(data, file.excluded);
  return data;
}

}  // namespace braid
