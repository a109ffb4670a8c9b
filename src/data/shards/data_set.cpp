#include "data/shards/data_set.h"
#include <fmt/ranges.h>
#include "base/files.h"
#include "base/strings.h"
#include "data/shards/document.h"
#include "data/shards/energon_random.h"
#include "data/shards/indexed_file.h"

namespace braid {
namespace {

constexpr std::int64_t kMaxSamples = std::int64_t{1} << 50;  // numbers of samples stay exact in double
constexpr int kMaxDepth = 16;                                // of metadatasets
constexpr std::size_t kMaxLeaves = 100'000;                  // nested files can multiply
constexpr std::int64_t kMaxShuffleEpochs = 1 << 20;
constexpr double kMaxWeight = 1e18;  // weights may be numbers of tokens
constexpr double kMaxRepetitions = 1e9;

// Endings in lower case and how many files have them. Folders of pictures may have millions.
std::map<std::string, std::int64_t> endings_in(const std::string& folder) {
  constexpr int kMost = 100'000;
  std::map<std::string, std::int64_t> endings;
  std::error_code error, ignored;
  int files = 0;
  for (fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && entry != end && files < kMost; entry.increment(error)) {
    if (!entry->is_regular_file(ignored)) continue;
    std::string ending = entry->path().extension().string();
    std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
    ++endings[ending];
    ++files;
  }
  return endings;
}

fs::path meta(const std::string& folder, const std::string& file) { return fs::path(folder) / kMetaFolder / file; }

std::string info_path(const std::string& folder) {
  for (const char* name : {".info.json", ".info.yaml"})
    if (is_file(meta(folder, name))) return meta(folder, name);
  return "";
}

using Counts = std::unordered_map<std::string, std::int64_t>;

std::string split_path(const std::string& folder, const std::optional<std::string>& split_config) {
  const bool only_json = !is_file(meta(folder, "split.yaml")) && is_file(meta(folder, "split.json"));
  return meta(folder, split_config.value_or(only_json ? "split.json" : "split.yaml"));
}

// The part of a file about a split, under its name.
DocumentNode node_of_split(const DocumentNode& splits, const std::string& split) {
  if (auto node = splits.find(split)) return *std::move(node);
  const auto names = vector_of<std::string>(splits.entries(), [](const auto& entry) { return entry.first; });
  splits.fail(
      fmt::format("there is no split {}", in_quotes(split)),
      fmt::format("choose one of: {} (--split, or the recipe's data.split or data.valid_split)", joined(names, ", ")));
}

// All splits of a file, or `only` one of them.
SplitFile read_splits(const std::string& path, const std::optional<std::string>& only) {
  const DocumentNode root = read_document(path);
  root.expect_keys({"split_parts", "exclude"});
  SplitFile file;
  if (const auto exclude = root.find("exclude"))
    for (const DocumentNode& entry : exclude->items()) {
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
  if (only) add(*only, node_of_split(parts, *only));
  if (!only)
    for (const auto& [name, part] : parts.entries()) add(name, part);
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
  for (std::size_t slash = entry.find('/'); slash != entry.npos; slash = entry.find('/', slash + 1))
    if (counts.contains(entry.substr(0, slash))) return true;
  return counts.contains(entry);
}

// Entries "shard/key" name single samples. Their indices are looked up in the shards.
void find_excluded_samples(DataSet& data, const std::set<std::string>& excluded) {
  for (std::uint32_t i = 0; i < data.shards.size(); ++i) {
    const std::string prefix = data.shards[i].name + "/";
    std::set<std::string> names;
    for (auto entry = excluded.lower_bound(prefix); entry != excluded.end() && entry->starts_with(prefix); ++entry)
      names.insert(*entry);
    if (names.empty()) continue;
    const OpenShard shard(data.shards[i]);
    std::set<std::string> unknown = names;
    for (std::int64_t index = 0; index < data.shards[i].samples; ++index) {
      const std::string name = prefix + shard.key(index);
      if (!names.contains(name)) continue;
      data.excluded.emplace(i, index);
      unknown.erase(name);
    }
    data.unknown_excludes.merge(unknown);
  }
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

DataSet open_indexed_text(const std::string& path, const std::string& split) {
  DataSet data{.path = path, .split = split, .starts = {0}};
  add_shard(data, {fs::path(path).filename(), path, IndexedFile(indexed_prefix(path)).documents()}, path);
  return data;
}

DataSet open_folder(const std::string& path, const std::string& split, const std::optional<std::string>& split_config) {
  const DocumentNode info = read_document(info_path(path));
  info.expect_keys({"energon_version", "shard_counts"});
  Counts counts;
  for (const auto& [name, count] : info.at("shard_counts").entries()) counts[name] = count.integer(0);
  const std::string where = split_path(path, split_config);
  const SplitFile file = read_splits(where, split);
  DataSet data{.path = path, .split = split, .starts = {0}};
  for (const std::string& name : file.splits[0].second) {
    const auto count = counts.find(name);
    if (count == counts.end()) {
      const std::string again = fmt::format("run `braid data prepare --force {}`", path);
      throw ConfigError(
          {fmt::format("the split {} names shard {}, which .info.json does not know", in_quotes(split),
                       in_quotes(name)),
           where,
           is_file(fs::path(path) / name)
               ? again
               : fmt::format("correct the name, restore the shard, or {} with new splits (--split)", again)});
    }
    add_shard(data, {name, fs::path(path) / name, count->second}, where);
  }
  for (const std::string& entry : file.excluded)
    if (!names_shard(entry, counts)) data.unknown_excludes.insert(entry);
  find_excluded_samples(data, file.excluded);
  return data;
}

// What a data set inherits from the metadatasets around it.
struct Context {
  std::string split;
  std::optional<Subset> subset{};
  ShuffleEpochs shuffle_epochs = 1;
  int depth = 0;
};

Blend open_path(const std::string& path, const Context& context, const DocumentNode* reference);

// A share ("25%" is 0.25) or a number of samples; neither stands for the end.
struct Bound {
  std::optional<double> share{};
  std::optional<std::int64_t> samples{};
};

Bound read_bound(const DocumentNode& node) {
  if (node.json().is_number_integer()) return {.samples = node.integer(0)};
  const std::string text = node.text();
  if (text == "end") return {};
  const auto percent = text.ends_with('%') ? parse_double(text.substr(0, text.size() - 1)) : std::nullopt;
  if (!percent || !(*percent >= 0 && *percent <= 100))
    node.fail(fmt::format("{} is not a bound of a subset", in_quotes(text)),
              "write a number of samples, a share such as 25%, or end");
  return {.share = *percent / 100};
}

Subset read_subset(const DocumentNode& node) {
  node.expect_keys({"range"});
  const DocumentNode range = node.at("range");
  const std::vector<DocumentNode> bounds = range.items();
  if (bounds.size() != 2) range.fail("a range has two bounds", "write [25%, 75%] or [100, 200]");
  const Bound begin = read_bound(bounds[0]), end = read_bound(bounds[1]);
  if (begin.samples && !end.share) return {.absolute = {{*begin.samples, end.samples}}};
  if (!begin.share || !end.share || *begin.share > *end.share)
    range.fail("the two bounds do not make a range", "write [25%, 75%], [100, 200] or [100, end]");
  return {.share = {*begin.share, *end.share}};
}

// The share of the outer subset is taken of the inner one.
std::optional<Subset> subset_within(const DocumentNode& node, const std::optional<Subset>& outer) {
  if (outer && outer->absolute)
    node.fail("a range in samples is given for a metadataset",
              "give shares such as [25%, 75%], or ranges at the data sets");
  const auto own = node.find("subset");
  if (!own) return outer;
  Subset inner = read_subset(*own);
  if (!outer) return inner;
  const auto [begin, end] = inner.share;
  inner.share = {begin + outer->share.first * (end - begin), begin + outer->share.second * (end - begin)};
  return inner;
}

ShuffleEpochs multiplied(const DocumentNode& node, const ShuffleEpochs& outer) {
  constexpr const char* key = "shuffle_over_epochs_multiplier";
  if (!node.json().contains(key)) return outer;
  const DocumentNode multiplier = node.at(key);
  if (multiplier.json().is_null()) return std::nullopt;
  const std::int64_t own = multiplier.integer(-1);
  if (own == 0 || own > kMaxShuffleEpochs)
    multiplier.fail(fmt::format("{} is not a number of epochs", own), "use 1 or more, or -1 to draw with replacement");
  if (!outer) return std::nullopt;
  if (own == -1 || *outer == -1) return -1;
  if (own * *outer > kMaxShuffleEpochs)
    multiplier.fail("the multipliers around this data set multiply to too many epochs", "use smaller ones");
  return own * *outer;
}

void refuse_unsupported(const DocumentNode& node) {
  if (const auto join = node.find("join"))
    join->fail("joined data sets are not supported", "write the joined samples into one data set, and name that");
  if (const auto aux = node.find("aux"))
    aux->fail("auxiliary data sets are not supported", "put the files into the samples that refer to them");
}

// A reference to a data set or another metadataset.
Blend open_reference(const DocumentNode& node, const std::string& file, const Context& outer) {
  refuse_unsupported(node);
  const Context context = {.split = node.optional_text("split_part").value_or(outer.split),
                           .subset = subset_within(node, outer.subset),
                           .shuffle_epochs = multiplied(node, outer.shuffle_epochs),
                           .depth = outer.depth + 1};
  const std::string path = node.at("path").text();
  if (path.find("://") != path.npos)
    node.at("path").fail(fmt::format("remote data sets cannot be read: {}", in_quotes(path)),
                         "copy or mount it, and give the local path");
  return open_path((fs::path(file).parent_path() / path).lexically_normal(), context, &node);
}

// Leaves of all entries of a blend. Their weights are products of each entry's share along the way.
Blend blended(const DocumentNode& list, BlendMode mode, const std::string& file, const Context& context) {
  const bool by_weight = mode == BlendMode::Weights;
  const auto value_of = [&](const DocumentNode& entry) {
    const auto value = entry.find(by_weight ? "weight" : "repetitions");
    return value ? value->positive_number(by_weight ? kMaxWeight : kMaxRepetitions) : 1.0;
  };
  const std::vector<DocumentNode> entries = list.items();
  if (entries.empty()) list.fail("the blend is empty", "list at least one data set");
  const auto total = sum_of<double>(entries, value_of);
  Blend result{.mode = mode};
  for (const DocumentNode& entry : entries) {
    Blend inner = open_reference(entry, file, context);
    if (inner.mode != BlendMode::Single && inner.mode != mode)
      entry.fail("`blend` and `blend_epochized` cannot contain each other", "use one of them at all levels");
    for (Leaf& leaf : inner.leaves) {
      if (by_weight)
        leaf.weight = leaf.weight * value_of(entry) / total;
      else
        leaf.repetitions = value_of(entry) * leaf.repetitions;
      if (static_cast<float>(leaf.weight) == 0)
        entry.fail(fmt::format("its share of the blend, {:g}, is too small to draw samples by", leaf.weight),
                   "use weights that differ less");
      result.leaves.push_back(std::move(leaf));
    }
    if (result.leaves.size() > kMaxLeaves)
      list.fail(fmt::format("there are more than {} data sets", kMaxLeaves), "split the blend");
  }
  return result;
}

Blend open_split(const DocumentNode& split, bool is_v2, const std::string& file, Context context) {
  const auto expect_reference = [](const DocumentNode& node, std::vector<std::string> more) {
    more.insert(more.end(), {"path", "split_part", "subflavors", "shuffle_over_epochs_multiplier", "dataset_config",
                             "split_config"});
    node.expect_keys(more);
  };
  if (is_v2) refuse_unsupported(split);
  const bool by_weight = !is_v2 || split.find("blend");
  if (!by_weight && !split.find("blend_epochized")) {
    expect_reference(split, {"subset"});
    return open_reference(split, file, context);
  }
  const char* key = !is_v2 ? "datasets" : by_weight ? "blend" : "blend_epochized";
  split.expect_keys(is_v2 ? std::vector<std::string>{key, "subset"} : std::vector<std::string>{key});
  if (is_v2) context.subset = subset_within(split, context.subset);
  for (const DocumentNode& entry : split.at(key).items()) {
    if (is_v2) refuse_unsupported(entry);
    expect_reference(entry, {by_weight ? "weight" : "repetitions", is_v2 ? "subset" : "subflavor"});
  }
  return blended(split.at(key), by_weight ? BlendMode::Weights : BlendMode::Repetitions, file, context);
}

Blend open_metadataset(const std::string& path, const Context& context) {
  if (context.depth > kMaxDepth)
    throw ConfigError({fmt::format("metadatasets are nested more than {} deep", kMaxDepth), path,
                       "look for a file that contains itself"});
  const DocumentNode root = read_document(path);
  root.expect_keys({"__module__", "__class__", "splits"});
  const std::string type = root.optional_text("__class__").value_or("Metadataset");
  if (type != "Metadataset" && type != "MetadatasetV2")
    root.at("__class__").fail(fmt::format("{} is not a kind of metadataset", in_quotes(type)), "use MetadatasetV2");
  return open_split(node_of_split(root.at("splits"), context.split), type == "MetadatasetV2", path, context);
}

Blend open_path(const std::string& path, const Context& context, const DocumentNode* reference) {
  const auto config = [&](const char* key) { return reference ? reference->optional_text(key) : std::nullopt; };
  const PathKind kind = kind_of_path(path);
  if (kind != PathKind::Folder)
    for (const char* key : {"dataset_config", "split_config"})
      if (config(key)) reference->fail(fmt::format("`{}` is only for folders of shards", key), "remove it");
  if (kind == PathKind::Metadataset) return open_metadataset(path, context);
  Leaf leaf{.data = open_data_set(path, context.split, config("split_config")),
            .subset = context.subset.value_or(Subset{}),
            .shuffle_epochs = context.shuffle_epochs};
  if (kind == PathKind::Folder) leaf.spec = read_sample_spec(path, config("dataset_config"));
  leaf.spec.has_ids = kind == PathKind::IndexedText;
  Blend blend;
  blend.leaves.push_back(std::move(leaf));
  return blend;
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
  if (is_file(path) && path.ends_with(".jsonl")) return PathKind::Jsonl;
  if (is_file(path) && path.ends_with(".yaml")) return PathKind::Metadataset;
  if (is_file(path) && path.ends_with(kIndexedTokens)) return PathKind::IndexedText;
  if (!info_path(path).empty()) return PathKind::Folder;
  if (is_file(path + std::string(kIndexedTokens)) && is_file(path + std::string(kIndexedIndex)))
    throw ConfigError({fmt::format("'{}' is the prefix of Megatron's indexed text, not a data set", path), "",
                       fmt::format("give '{}{}' for a data set of its documents; only data.path of a run takes the "
                                   "prefix, for samples in Megatron's order",
                                   path, kIndexedTokens)});
  if (!is_there(path)) throw ConfigError({fmt::format("'{}' does not exist", path), "", "check the path"});
  refuse_unfinished(path);
  if (!is_folder(path))
    throw ConfigError({fmt::format("'{}' is not a data set", path), "",
                       "give a prepared folder, a .jsonl file, a .bin file or a metadataset's .yaml file"});
  // Compressed ones are refused by `braid data prepare`.
  const auto endings = endings_in(path);
  if (!endings.contains(".tar") && !endings.contains(".tgz") && !endings.contains(".gz"))
    throw ConfigError(without_tar_files(path));
  throw ConfigError({fmt::format("'{}' is not a prepared data set: it has no {}/.info.json", path, kMetaFolder), "",
                     fmt::format("run `braid data prepare {}`", path)});
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
      path, joined(names, ", "), names.size() < unknown.size() ? ", ..." : "")};
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
  if (kind == PathKind::IndexedText) return open_indexed_text(path, split);
  return kind == PathKind::Jsonl ? open_jsonl(path, split) : open_folder(path, split, split_config);
}

std::pair<std::int64_t, std::int64_t> Subset::range(std::int64_t samples, const std::string& where) const {
  const auto [begin, end] = absolute.value_or(std::pair(std::int64_t{0}, std::optional(samples)));
  const std::int64_t last = end.value_or(samples);
  if (begin > last || last > samples)
    throw ConfigError(
        {fmt::format("the subset [{}, {}) is not within the {} of the split", begin, last, counted(samples, "sample")),
         where, "correct the range"});
  const auto length = static_cast<double>(last - begin);
  return {begin + static_cast<std::int64_t>(length * share.first),
          begin + static_cast<std::int64_t>(length * share.second)};
}

std::shared_ptr<const Blend> open_blend(const std::string& path, const std::string& split) {
  auto blend = std::make_shared<const Blend>(open_path(path, Context{.split = split}, nullptr));
  // Streams add up the samples of an epoch, and repetitions multiply along nested blends.
  double samples = 0;
  for (const Leaf& leaf : blend->leaves)
    samples += static_cast<double>(leaf.data.samples()) * std::max(leaf.repetitions, 1.0);
  if (samples > static_cast<double>(kMaxSamples))
    throw ConfigError({fmt::format("an epoch has {:g} samples, more than {}", samples, kMaxSamples), path,
                       "use fewer repetitions, or fewer data sets"});
  return blend;
}

}  // namespace braid
