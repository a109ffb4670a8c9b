#include "data/shards/prepare.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/process.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/shards/data_set.h"
#include "data/shards/document.h"
#include "data/shards/key_index.h"
#include "data/shards/sample_spec.h"
#include "data/shards/shard.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostParts = 50;

// Sorted by folder, then by name.
std::vector<std::string> find_shards(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path& path = entry.path();
    if (!entry.is_regular_file()) continue;
    if (path.extension() == ".tgz" || path.string().ends_with(".tar.gz"))
      throw ConfigError({fmt::format("'{}' is compressed, so its samples cannot be read at random", path.string()), "",
                         "unpack it: gunzip, then name it .tar"});
    if (path.extension() != ".tar") continue;
    if (!is_utf8(path.string()))
      throw ConfigError({fmt::format("the name of {} is not UTF-8", in_quotes(path.string())), "", "rename it"});
    paths.push_back(fs::relative(path, folder));
  }
  if (paths.empty()) throw ConfigError(without_tar_files(folder.string()));
  std::sort(paths.begin(), paths.end());
  return {paths.begin(), paths.end()};
}

std::vector<std::string> without(std::vector<std::string> names, const std::set<std::string>& excluded) {
  std::erase_if(names, [&](const std::string& name) { return excluded.contains(name); });
  return names;
}

// A name in split.yaml, where braces and backslashes have a meaning.
std::string escaped(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (std::string_view("{}\\").find(c) != std::string_view::npos) text += '\\';
    text += c;
  }
  return text;
}

// JSON strings are YAML too, whatever characters they have.
std::string quoted(const std::string& text) { return Json(text).dump(); }

// `exclude`: entries as split.yaml has them.
std::string split_yaml(const Splits& splits, const std::vector<std::string>& exclude) {
  std::string text = "split_parts:\n";
  for (const auto& [name, shards] : splits) {
    text += fmt::format("  {}:{}\n", quoted(name), shards.empty() ? " []" : "");
    for (const std::string& shard : shards) text += fmt::format("  - {}\n", quoted(escaped(shard)));
  }
  text += exclude.empty() ? "exclude: []\n" : "exclude:\n";
  for (const std::string& entry : exclude) text += fmt::format("- {}\n", quoted(entry));
  return text;
}

std::string dataset_yaml(const PrepareRequest& request) {
  if (request.sample_type.empty()) return "__module__: megatron.energon\n__class__: CrudeWebdataset\n";
  std::string text = fmt::format("sample_type:\n  __module__: megatron.energon\n  __class__: {}\nfield_map:\n",
                                 quoted(request.sample_type));
  for (const auto& [field, source] : request.field_map)
    text += fmt::format("  {}: {}\n", quoted(field), quoted(source));
  return text;
}

// A random UUID, version 4.
std::string make_uuid() {
  std::string hex = make_nonce();
  hex[12] = '4';
  hex[16] = "89ab"[hex[16] % 4];
  return fmt::format("{}-{}-{}-{}-{}", hex.substr(0, 8), hex.substr(8, 4), hex.substr(12, 4), hex.substr(16, 4),
                     hex.substr(20, 12));
}

// Removes what a killed call left: only files with its names, since other programs may use the folder too, and only old
// files, since a process of another machine may still write them.
constexpr auto kLeftoverAge = std::chrono::hours(1);

void remove_leftovers(const fs::path& folder) {
  static const std::set<std::string> meta_files = {".info.json",   ".info.yaml",   "split.yaml",
                                                   "dataset.yaml", "index.sqlite", "index.uuid"};
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string target = abandoned_target(entry.path().filename());
    const bool in_meta = entry.path().parent_path() == folder / kMetaFolder;
    const bool is_ours = target.ends_with(".tar.idx.new") || (in_meta && meta_files.contains(target));
    if (is_ours && fs::file_time_type::clock::now() - entry.last_write_time() > kLeftoverAge)
      leftovers.push_back(entry.path());
  }
  std::error_code ignored;
  for (const fs::path& path : leftovers) fs::remove(path, ignored);
}

Prepared prepare_lines(const PrepareRequest& request) {
  const std::string index = index_path(request.path);
  if (fs::exists(index) && !request.force)
    throw ConfigError({fmt::format("'{}' exists", index), "", "use --force to write it again"});
  const std::vector<std::uint64_t> offsets = scan_lines(request.path);
  write_sample_index(index, offsets);
  return {.shards = 1, .samples = std::ssize(offsets) - 1, .parts = {"json"}};
}

// Indexes of shards, which wait beside the old ones until all are written. A killed call leaves them, and the next one
// overwrites them.
class NewIndexes {
 public:
  NewIndexes() = default;
  NewIndexes(const NewIndexes&) = delete;
  NewIndexes& operator=(const NewIndexes&) = delete;
  ~NewIndexes() {
    std::error_code ignored;
    for (const std::string& path : paths_) fs::remove(waiting(path), ignored);
  }
  void add(const std::string& path, const std::vector<std::uint64_t>& offsets) {
    paths_.push_back(path);
    write_sample_index(waiting(path), offsets);
  }
  void commit() {
    for (const std::string& path : paths_) fs::rename(waiting(path), path);
    paths_.clear();
  }

 private:
  static std::string waiting(const std::string& path) { return path + ".new"; }
  std::vector<std::string> paths_{};
};

// A shard that was cut between two members can be read, so only its old index shows that samples are lost.
void refuse_lost_samples(const std::string& shard, std::int64_t samples, const std::string& meta) try {
  const std::int64_t before = SampleIndex(index_path(shard)).samples();
  if (before > samples)
    throw DataError(fmt::format(
        "'{}' has {}, but had {} when it was indexed: restore it; or, to accept the loss, remove '{}' (or, for all "
        "shards, '{}', which also has the splits)",
        shard, counted(samples, "sample"), before, index_path(shard), meta));
} catch (const ReadError&) {  // there is no old index, or it is damaged
}

struct ScannedShards {
  std::map<std::string, std::int64_t> counts{};
  std::set<std::string> parts{};
  std::vector<std::string> warnings{};
};

// The parts that fields or their alternatives name.
std::set<std::string> mapped_parts(const PrepareRequest& request) {
  std::set<std::string> parts;
  for (const auto& [field, source] : request.field_map)
    for (const auto& alternative : parse_field_source(source, field).alternatives) parts.insert(alternative[0]);
  return parts;
}

ScannedShards scan_shards(const PrepareRequest& request, const std::vector<std::string>& shards, bool is_prepared,
                          KeyIndex& keys, NewIndexes& indexes) {
  ScannedShards scanned;
  const std::set<std::string> mapped = mapped_parts(request);
  for (std::uint32_t i = 0; i < shards.size(); ++i) {
    const std::string path = fs::path(request.path) / shards[i];
    std::vector<std::uint64_t> offsets;
    std::uint64_t end = 0;
    std::string remark = scan_shard(path, [&](const ScannedSample& sample) {
      keys.add(i, std::ssize(offsets), sample);
      offsets.push_back(sample.begin);
      end = sample.end;
      for (const ScannedPart& part : sample.parts)
        if (scanned.parts.size() < kMostParts || mapped.contains(part.name)) scanned.parts.insert(part.name);
    });
    if (!remark.empty() && scanned.warnings.size() < Prepared::kMostShardWarnings)
      scanned.warnings.push_back(std::move(remark));
    if (is_prepared) refuse_lost_samples(path, std::ssize(offsets), fs::path(request.path) / kMetaFolder);
    scanned.counts[shards[i]] = std::ssize(offsets);
    offsets.push_back(end);
    indexes.add(index_path(path), offsets);
    if (request.progress) request.progress(i + 1, std::ssize(shards));
  }
  return scanned;
}

std::string info_json(const std::vector<std::string>& shards, const ScannedShards& scanned) {
  Json info = {{"shard_counts", Json::object()}};
  for (const std::string& shard : shards)
    info["shard_counts"].get_ref<Json::object_t&>().emplace_back(shard, scanned.counts.at(shard));
  return info.dump(2) + "\n";
}

// Readers refuse a split with such a shard.
void refuse_missing_shards(const Splits& splits, const std::vector<std::string>& shards, const std::string& folder) {
  const std::set<std::string> present(shards.begin(), shards.end());
  for (const auto& [name, parts] : splits)
    for (const std::string& shard : parts)
      if (!present.contains(shard))
        throw ConfigError(
            {fmt::format("the split {} names shard {}, which is not there", in_quotes(name), in_quotes(shard)), folder,
             "restore the shard, or give new splits: --split train:0.9,val:0.1, or --split-parts"});
}

// Counts shards and samples as readers do.
void count_splits(const std::string& folder, const Splits& splits, Prepared& result) {
  std::set<std::pair<std::string, std::int64_t>> excluded;  // a shard may be in several splits
  std::set<std::string> unknown;
  for (const auto& [name, shards] : splits) {
    PreparedSplit split{.name = name};
    if (!shards.empty()) {
      const DataSet data = open_data_set(folder, name);
      split.shards = std::ssize(data.shards);
      split.samples = data.samples() - std::ssize(data.excluded);
      for (const auto& [shard, index] : data.excluded) excluded.insert({data.shards[shard].name, index});
      unknown.insert(data.unknown_excludes.begin(), data.unknown_excludes.end());
    }
    result.splits.push_back(std::move(split));
  }
  result.excluded_samples = std::ssize(excluded);
  for (std::string& warning : exclude_warnings(folder, unknown)) result.warnings.push_back(std::move(warning));
}

std::vector<std::string> in_no_split(std::vector<std::string> shards, const Splits& splits) {
  std::set<std::string> used;
  for (const auto& [name, parts] : splits) used.insert(parts.begin(), parts.end());
  return without(std::move(shards), used);
}

}  // namespace

Prepared prepare_data_set(const PrepareRequest& request) {
  check_request(request);
  if (request.path.ends_with(".jsonl")) return prepare_lines(request);
  if (!fs::is_directory(request.path))
    throw ConfigError({fmt::format("'{}' is not a folder", request.path), "", "check the path"});
  if (!request.finishes_writing) refuse_unfinished(request.path);
  const fs::path meta = fs::path(request.path) / kMetaFolder;
  const std::string info_path = meta / ".info.json", info_yaml_path = meta / ".info.yaml";
  const std::string dataset_path = meta / "dataset.yaml";
  const bool has_info_yaml = fs::exists(info_yaml_path), is_prepared = has_info_yaml || fs::exists(info_path);
  if (!request.force && is_prepared)
    throw ConfigError({fmt::format("'{}' is prepared already", request.path), "", "use --force to prepare it again"});
  const std::vector<std::string> shards = find_shards(request.path);
  const SplitFile old = read_split_file(request.path);
  const bool keeps_splits = request.ratios.empty() && request.patterns.empty() && !old.splits.empty();
  if (keeps_splits) refuse_missing_shards(old.splits, shards, request.path);
  const std::vector<std::string> included = without(shards, old.excluded);
  const Splits splits = keeps_splits ? old.splits : cut_splits(request, included);
  fs::create_directories(meta);
  remove_leftovers(request.path);
  KeyIndex keys(meta / "index.sqlite", shards);
  NewIndexes indexes;
  const ScannedShards scanned = scan_shards(request, shards, is_prepared, keys, indexes);
  // An interrupted call must not leave old counts beside new indexes.
  fs::remove(info_path);
  fs::remove(info_yaml_path);
  indexes.commit();
  keys.commit();
  if (KeyIndex::is_supported()) write_file(meta / "index.uuid", make_uuid());
  if (!keeps_splits) write_file(meta / "split.yaml", split_yaml(splits, old.exclude));

  Prepared result{.shards = std::ssize(shards),
                  .parts = {scanned.parts.begin(), scanned.parts.end()},
                  .kept_splits = keeps_splits,
                  .warnings = prepare_warnings(request, splits, scanned.parts)};
  result.warnings.insert(result.warnings.end(), scanned.warnings.begin(), scanned.warnings.end());
  result.kept_dataset_yaml = fs::exists(dataset_path) && request.sample_type.empty();  // a user may have edited it
  if (!result.kept_dataset_yaml) write_file(dataset_path, dataset_yaml(request));
  const std::string info = info_json(shards, scanned);
  write_file(info_path, info);
  if (has_info_yaml) write_file(info_yaml_path, info);  // readers may prefer it

  for (const auto& [shard, count] : scanned.counts) result.samples += count;
  count_splits(request.path, splits, result);
  result.unused_shards = in_no_split(included, splits);
  result.excluded_shards = result.shards - std::ssize(included);
  return result;
}

}  // namespace braid
