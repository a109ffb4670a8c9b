#include "data/shards/prepare.h"
#include <regex>
#include <unistd.h>
#include "base/process.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/shards/document.h"
#include "data/shards/energon_random.h"
#include "data/shards/indexed_file.h"
#include "formats/atomic_file.h"

#ifdef BRAID_HAS_SQLITE
#include <sqlite3.h>
#endif

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

// JSON strings are YAML too, whatever characters they have.
std::string yaml_text(const std::string& text) { return Json(text).dump(); }

// `exclude`: entries as split.yaml has them.
std::string split_yaml(const Splits& splits, const std::vector<std::string>& exclude) {
  std::string text = "split_parts:\n";
  for (const auto& [name, shards] : splits) {
    text += fmt::format("  {}:{}\n", yaml_text(name), shards.empty() ? " []" : "");
    for (std::string shard : shards) {  // braces and backslashes have a meaning here
      for (std::size_t at = 0; (at = shard.find_first_of("{}\\", at)) != shard.npos; at += 2) shard.insert(at, "\\");
      text += fmt::format("  - {}\n", yaml_text(shard));
    }
  }
  text += exclude.empty() ? "exclude: []\n" : "exclude:\n";
  for (const std::string& entry : exclude) text += fmt::format("- {}\n", yaml_text(entry));
  return text;
}

std::string dataset_yaml(const PrepareRequest& request) {
  if (request.sample_type.empty()) return "__module__: megatron.energon\n__class__: CrudeWebdataset\n";
  std::string text = fmt::format("sample_type:\n  __module__: megatron.energon\n  __class__: {}\nfield_map:\n",
                                 yaml_text(request.sample_type));
  for (const auto& [field, source] : request.field_map)
    text += fmt::format("  {}: {}\n", yaml_text(field), yaml_text(source));
  return text;
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

// The key index: which shard has which sample, for look-ups by key. It also finds keys that appear twice. Built without
// SQLite, it only does that, in memory.
[[noreturn]] void refuse_repeated(const std::string& key, const std::string& first_shard, const std::string& shard) {
  throw DataError(fmt::format("the key {} appears in shard '{}' and again in shard '{}': each sample needs its own key",
                              in_quotes(key), first_shard, shard));
}

#ifdef BRAID_HAS_SQLITE
constexpr const char* kCreateTables =
    "CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, "
    "sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER);"
    "CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, "
    "content_byte_offset INTEGER, content_byte_size INTEGER);";
// Created last: filling a table without indexes is faster.
constexpr const char* kCreateIndexes =
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);"
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);"
    "CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, "
    "content_byte_size);";

class KeyIndex {
 public:
  static constexpr bool kIsStored = true;
  // Written beside `path` and renamed to it by commit(). `shards`: their names, by number.
  KeyIndex(const fs::path& path, const std::vector<std::string>& shards)
      : path_(path),
        temporary_path_(path.parent_path() / fmt::format(".{}.{}.tmp", path.filename().string(), ::getpid())),
        shards_(shards) {}
  KeyIndex(const KeyIndex&) = delete;
  ~KeyIndex() {
    close();
    ::unlink(temporary_path_.c_str());
  }

  void open() {
    ::unlink(temporary_path_.c_str());
    check(sqlite3_open(temporary_path_.c_str(), &database_));
    // The file is renamed when it is complete, so a crash needs no journal.
    run("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;");
    run(kCreateTables);
    run("BEGIN");
    for (const auto& [text, statement] : {std::pair("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", &add_sample_),
                                          {"INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", &add_part_},
                                          {"SELECT tar_file_id FROM samples WHERE sample_key = ?", &find_shard_}})
      check(sqlite3_prepare_v2(database_, text, -1, statement, nullptr));
  }

  // DataError, naming both shards, when the key is known already.
  void add(std::uint32_t shard, std::int64_t index, const ScannedSample& sample) {
    const int code = execute(add_sample_, shard, sample.key, index, sample.begin, sample.end - sample.begin);
    if (code == SQLITE_CONSTRAINT) {
      check(execute(find_shard_, sample.key));
      const auto first = static_cast<std::size_t>(sqlite3_column_int64(find_shard_, 0));
      refuse_repeated(sample.key, shards_[first], shards_[shard]);
    }
    check(code);
    check(sqlite3_reset(add_sample_));
    for (const auto& [name, offset, size] : sample.parts) {
      check(execute(add_part_, shard, index, name, offset, size));
      check(sqlite3_reset(add_part_));
    }
  }

  void commit() {
    run("COMMIT");
    run(kCreateIndexes);
    close();
    if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0)
      throw_errno(fmt::format("cannot rename to '{}'", path_));
    std::string uuid = make_nonce();  // of version 4
    uuid[12] = '4';
    uuid[16] = "89ab"[uuid[16] % 4];
    for (const std::size_t end : {20, 16, 12, 8}) uuid.insert(end, "-");
    write_file(fs::path(path_).parent_path() / "index.uuid", uuid);
  }

 private:
  void close() {
    for (sqlite3_stmt** statement : {&add_sample_, &add_part_, &find_shard_})
      sqlite3_finalize(std::exchange(*statement, nullptr));
    sqlite3_close(std::exchange(database_, nullptr));
  }

  void check(int code) const {
    if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_ROW)
      throw std::runtime_error(fmt::format("cannot write '{}': {}", path_, sqlite3_errmsg(database_)));
  }

  void run(const char* commands) const { check(sqlite3_exec(database_, commands, nullptr, nullptr, nullptr)); }

  int execute(sqlite3_stmt* statement, const auto&... values) const {
    int at = 0;
    const auto bind = [&](const auto& value) {
      if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(value)>>)
        check(sqlite3_bind_int64(statement, ++at, static_cast<sqlite3_int64>(value)));
      else
        check(sqlite3_bind_text64(statement, ++at, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
    };
    (bind(values), ...);
    return sqlite3_step(statement);
  }

  const std::string path_, temporary_path_;
  const std::vector<std::string>& shards_;
  sqlite3* database_ = nullptr;
  sqlite3_stmt *add_sample_ = nullptr, *add_part_ = nullptr, *find_shard_ = nullptr;
};
#else
class KeyIndex {
 public:
  static constexpr bool kIsStored = false;
  KeyIndex(const fs::path&, const std::vector<std::string>& shards) : shards_(shards) {}
  void add(std::uint32_t shard, std::int64_t, const ScannedSample& sample) {
    const auto [known, is_new] = shard_of_key_.emplace(sample.key, shard);
    if (!is_new) refuse_repeated(sample.key, shards_[known->second], shards_[shard]);
  }
  void open() {}
  void commit() {}

 private:
  const std::vector<std::string>& shards_;
  std::unordered_map<std::string, std::uint32_t> shard_of_key_{};
};
#endif

// Indexes of shards, which wait beside the old ones until all are written. A killed call leaves them, and the next one
// overwrites them.
class NewIndexes {
 public:
  NewIndexes() = default;
  NewIndexes(const NewIndexes&) = delete;
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

ScannedShards scan_shards(const PrepareRequest& request, const std::vector<std::string>& shards, bool is_prepared,
                          KeyIndex& keys, NewIndexes& indexes) {
  ScannedShards scanned;
  std::set<std::string> mapped;  // the parts that fields or their alternatives name
  for (const auto& [field, source] : request.field_map)
    for (const auto& alternative : parse_field_source(source, field).alternatives) mapped.insert(alternative[0]);
  for (std::uint32_t i = 0; i < shards.size(); ++i) {
    const std::string path = fs::path(request.path) / shards[i];
    std::vector<std::uint64_t> offsets;
    std::uint64_t end = 0;
    std::string remark = scan_shard(path, [&](const ScannedSample& sample) {
      keys.add(i, std::ssize(offsets), sample);
      offsets.push_back(sample.begin);
      end = sample.end;
      for (const auto& part : sample.parts)
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

// Readers refuse a split with such a shard.
void refuse_missing_shards(const Splits& splits, const std::vector<std::string>& shards, const std::string& folder) {
  for (const auto& [name, parts] : splits)
    if (const auto missing = without(parts, {shards.begin(), shards.end()}); !missing.empty())
      throw ConfigError(
          {fmt::format("the split {} names shard {}, which is not there", in_quotes(name), in_quotes(missing.front())),
           folder, "restore the shard, or give new splits: --split train:0.9,val:0.1, or --split-parts"});
}

// Counts shards and samples as readers do. `included`: all shards that are not excluded.
void count_splits(const std::string& folder, const Splits& splits, const std::vector<std::string>& included,
                  Prepared& result) {
  std::set<std::pair<std::string, std::int64_t>> excluded;  // a shard may be in several splits
  std::set<std::string> unknown, used;
  for (const auto& [name, shards] : splits) {
    PreparedSplit split{.name = name};
    used.insert(shards.begin(), shards.end());
    if (!shards.empty()) {
      const DataSet data = open_data_set(folder, name);
      split.shards = std::ssize(data.shards);
      split.samples = data.samples() - std::ssize(data.excluded);
      for (const auto& [shard, index] : data.excluded) excluded.insert({data.shards[shard].name, index});
      unknown.insert(data.unknown_excludes.begin(), data.unknown_excludes.end());
    }
    result.splits.push_back(std::move(split));
  }
  result.unused_shards = without(included, used);
  result.excluded_shards = result.shards - std::ssize(included);
  result.excluded_samples = std::ssize(excluded);
  for (std::string& warning : exclude_warnings(folder, unknown)) result.warnings.push_back(std::move(warning));
}

void check_type(const PrepareRequest& request) {
  const SampleType* type = find_sample_type(request.sample_type);
  if (!type)
    throw ConfigError({fmt::format("there is no sample type {}", in_quotes(request.sample_type)), "--sample-type",
                       fmt::format("use one of {}; or give no type, and map the parts in the recipe (data.fields)",
                                   sample_type_names())});
  std::vector<std::string> known = type->fields, missing = type->fields;
  known.insert(known.end(), type->optional_fields.begin(), type->optional_fields.end());
  std::set<std::string> mapped;
  for (const auto& [field, source] : request.field_map) {
    if (!contains(known, field))
      throw ConfigError({fmt::format("a {} has no field {}", type->name, in_quotes(field)), "--field-map",
                         fmt::format("its fields are {}", joined(known, ", "))});
    if (!mapped.insert(field).second)
      throw ConfigError({fmt::format("the field {} is mapped twice", in_quotes(field)), "--field-map",
                         fmt::format("map it once; it may have alternatives: --field-map {}=jpg,png", field)});
    std::erase(missing, field);
  }
  if (!missing.empty())
    throw ConfigError({fmt::format("a {} also needs {}", type->name, joined(missing, " and ")), "--field-map",
                       fmt::format("add --field-map {}=PART", joined(missing, "=PART --field-map "))});
}

using Names = std::vector<std::string>;
using Ratios = decltype(PrepareRequest::ratios);

Names matching(const Names& shards, const std::string& split, const std::string& pattern) {
  const std::string where = fmt::format("--split-parts {}:{}", split, pattern);
  std::vector<std::regex> expressions;
  for (const std::string& text : expand_braces(pattern, where)) try {
      expressions.emplace_back(text);
    } catch (const std::regex_error& e) {
      throw ConfigError(
          {fmt::format("{} is not a regular expression: {}", in_quotes(text), e.what()), where, "correct it"});
    }
  Names found;
  for (const std::string& shard : shards)
    if (std::ranges::any_of(expressions, [&](const std::regex& expression) {
          return std::regex_search(shard, expression, std::regex_constants::match_continuous);
        }))
      found.push_back(shard);
  if (found.empty())
    throw ConfigError(
        {fmt::format("no shard matches {}", in_quotes(pattern)), where,
         "patterns are regular expressions that match from the start of the shard's path: train/.*, not train/*"});
  return found;
}

// The number of shards up to the end of each split. Energon adds the shares up. Their sum may round to less than 1
// (0.6 + 0.3 + 0.1), and the last shard is then in no split. Here every shard is in one: then each cut is at the
// ratios' own sum, and rounds up if it is that close below.
std::vector<std::size_t> split_ends(const Ratios& ratios, std::size_t shards) {
  constexpr double kRounding = 1e-9;
  const double sum = sum_of<double>(ratios, [](const auto& split) { return split.second; });
  if (sum <= 0)
    throw ConfigError({"the ratios of the splits add up to zero", "", "use train:0.9,val:0.1, for example"});
  std::vector<std::size_t> ends, rounded_ends;
  const auto count = static_cast<double>(shards);
  const auto whole = [&](double end) { return std::min(static_cast<std::size_t>(end), shards); };
  double shares = 0, total = 0;
  for (const auto& [name, ratio] : ratios) {
    ends.push_back(whole(count * (shares += ratio / sum)));
    rounded_ends.push_back(whole(count * ((total += ratio) / sum) * (1 + kRounding)));
  }
  return ends.back() == shards ? ends : rounded_ends;
}

// Cuts round down, so with few shards the splits before a cut may be empty, even the largest. Then each split gets one
// shard if there are enough, those with large ratios first, and the others go where a shard stands for the most.
std::vector<std::size_t> split_sizes(const Ratios& ratios, std::size_t shards) {
  std::vector<std::size_t> sizes;
  std::size_t begin = 0;
  for (const std::size_t end : split_ends(ratios, shards)) sizes.push_back(end - std::exchange(begin, end));
  const auto is_left_out = [&](std::size_t i) { return sizes[i] == 0 && ratios[i].second > 0; };
  std::vector<std::size_t> splits(ratios.size());
  std::iota(splits.begin(), splits.end(), std::size_t{0});
  if (std::none_of(splits.begin(), splits.end(), is_left_out)) return sizes;
  const auto claim = [&](std::size_t i) {
    return std::pair(is_left_out(i), ratios[i].second / static_cast<double>(sizes[i] + 1));
  };
  sizes.assign(ratios.size(), 0);
  for (std::size_t i = 0; i < shards; ++i)
    ++sizes[*std::max_element(splits.begin(), splits.end(),
                              [&](std::size_t a, std::size_t b) { return claim(a) < claim(b); })];
  return sizes;
}

void check_request(const PrepareRequest& request) {
  if (!request.ratios.empty() && !request.patterns.empty())
    throw ConfigError({"splits are given by ratio and by pattern", "", "use --split or --split-parts"});
  if (request.shuffle && request.ratios.empty())
    throw ConfigError({"--shuffle-tars shuffles the shards that --split divides, but there is no --split",
                       "--shuffle-tars", "add --split train:0.9,val:0.1, for example"});
  std::set<std::string> names;
  const auto check_name = [&](const std::string& name, const char* fix) {
    if (name.empty() || !names.insert(name).second)
      throw ConfigError(
          {name.empty() ? "a split has no name" : fmt::format("the split {} is named twice", in_quotes(name)), "",
           fix});
  };
  for (const auto& [name, ratio] : request.ratios) {
    if (!(ratio >= 0) || ratio > 1e9)
      throw ConfigError(
          {fmt::format("{} is not a ratio for the split {}", ratio, in_quotes(name)), "", "use 0.9, for example"});
    check_name(name, "give each split one ratio: --split train:0.9,val:0.1");
  }
  for (const auto& [name, pattern] : request.patterns)
    check_name(name, "give each split one pattern; it may have alternatives: --split-parts 'train:{a,b}/.*'");
  if (request.sample_type.empty() != request.field_map.empty())
    throw ConfigError(
        {"a sample type and a field map belong together", "", "give --sample-type and --field-map, or neither"});
  for (const auto& [field, source] : request.field_map) parse_field_source(source, "--field-map " + field);
  if (!request.sample_type.empty()) check_type(request);
}

// Shards in several splits, which Energon allows too, and fields whose part no sample has.
std::vector<std::string> prepare_warnings(const PrepareRequest& request, const Splits& splits,
                                          const ScannedShards& scanned) {
  std::vector<std::string> warnings;
  std::map<std::string, std::string> split_of;
  std::set<std::string> shared;
  std::string example;
  for (const auto& [name, shards] : splits)
    for (const std::string& shard : shards) {
      const std::string& first = split_of.emplace(shard, name).first->second;
      if (first == name || !shared.insert(shard).second || !example.empty()) continue;
      example = fmt::format("{} is in {} and {}", in_quotes(shard), in_quotes(first), in_quotes(name));
    }
  if (!shared.empty())
    warnings.push_back(fmt::format("{} in several splits: {}",
                                   shared.size() == 1 ? "1 shard is" : fmt::format("{} shards are", shared.size()),
                                   example));
  for (const auto& [field, source] : request.field_map) {
    const auto alternatives = parse_field_source(source, field).alternatives;
    if (std::ranges::none_of(alternatives, [&](const auto& path) { return scanned.parts.contains(path[0]); }))
      warnings.push_back(fmt::format("no sample has the part for --field-map {}={}; parts: {}", field, source,
                                     fmt::join(scanned.parts, ", ")));
  }
  warnings.insert(warnings.end(), scanned.warnings.begin(), scanned.warnings.end());
  return warnings;
}

}  // namespace

Prepared prepare_data_set(const PrepareRequest& request) {
  check_request(request);
  if (request.path.ends_with(".jsonl")) return prepare_lines(request);
  if (request.path.ends_with(kIndexedTokens))
    throw ConfigError({fmt::format("'{}' is Megatron's indexed text, whose index is its .idx file", request.path), "",
                       "use it as it is"});
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
  keys.open();
  NewIndexes indexes;
  const ScannedShards scanned = scan_shards(request, shards, is_prepared, keys, indexes);
  // An interrupted call must not leave old counts beside new indexes.
  fs::remove(info_path);
  fs::remove(info_yaml_path);
  indexes.commit();
  keys.commit();
  if (!keeps_splits) write_file(meta / "split.yaml", split_yaml(splits, old.exclude));

  Prepared result{.shards = std::ssize(shards),
                  .parts = {scanned.parts.begin(), scanned.parts.end()},
                  .kept_splits = keeps_splits,
                  .has_key_index = KeyIndex::kIsStored,
                  .warnings = prepare_warnings(request, splits, scanned)};
  result.kept_dataset_yaml = fs::exists(dataset_path) && request.sample_type.empty();  // a user may have edited it
  if (!result.kept_dataset_yaml) write_file(dataset_path, dataset_yaml(request));
  Json counts = Json::object();
  for (const std::string& shard : shards) {
    counts.get_ref<Json::object_t&>().emplace_back(shard, scanned.counts.at(shard));
    result.samples += scanned.counts.at(shard);
  }
  const std::string info = Json({{"shard_counts", std::move(counts)}}).dump(2) + "\n";
  write_file(info_path, info);
  if (has_info_yaml) write_file(info_yaml_path, info);  // readers may prefer it
  count_splits(request.path, splits, included, result);
  return result;
}

Splits cut_splits(const PrepareRequest& request, const Names& shards) {
  Splits splits;
  for (const auto& [name, pattern] : request.patterns) splits.emplace_back(name, matching(shards, name, pattern));
  if (!splits.empty()) return splits;
  const auto ratios = request.ratios.empty() ? Ratios{{"train", 1.0}} : request.ratios;
  constexpr std::uint32_t kShuffleSeed = 42;  // Energon's
  std::vector<std::size_t> order(shards.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (request.shuffle) order = python_shuffle(shards.size(), kShuffleSeed);
  auto next = order.begin();
  const std::vector<std::size_t> sizes = split_sizes(ratios, shards.size());
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    Names& own = splits.emplace_back(ratios[i].first, Names()).second;
    for (std::size_t k = 0; k < sizes[i]; ++k) own.push_back(shards[*next++]);
  }
  return splits;
}

}  // namespace braid
