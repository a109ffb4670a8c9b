#include "data/shards/metadataset.h"

#include <algorithm>
#include <filesystem>

#include "base/strings.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxLeaves = 100'000;  // nested files can multiply
constexpr std::int64_t kMaxShuffleEpochs = 1 << 20;
constexpr double kMaxWeight = 1e18;  // weights may be numbers of tokens
constexpr double kMaxRepetitions = 1e9;

// What a data set inherits from the metadatasets around it.
struct Context {
  std::string split;
  std::optional<Subset> subset{};
  ShuffleEpochs shuffle_epochs = 1;
  int depth = 0;
};

Blend open_path(const std::string& path, const Context& context, const DocumentNode* reference);

// "25%" as 0.25, "end" and plain numbers as they are.
struct Bound {
  std::optional<double> share{};
  std::optional<std::int64_t> samples{};
  bool is_end = false;
};

Bound read_bound(const DocumentNode& node) {
  if (node.json().is_number_integer()) return {.samples = node.integer(0)};
  const std::string text = node.text();
  if (text == "end") return {.is_end = true};
  const auto percent = text.ends_with('%') ? parse_double(text.substr(0, text.size() - 1)) : std::nullopt;
  if (!percent || !(*percent >= 0 && *percent <= 100))
    node.fail(fmt::format("{} is not a bound of a subset", in_quotes(text)),
              "write a number of samples, a share such as 25%, or end");
  return {.share = *percent / 100};
}

Subset read_subset(const DocumentNode& node) {
  node.expect_keys({"range"});
  const std::vector<DocumentNode> bounds = node.at("range").items();
  if (bounds.size() != 2) node.at("range").fail("a range has two bounds", "write [25%, 75%] or [100, 200]");
  const Bound begin = read_bound(bounds[0]), end = read_bound(bounds[1]);
  if (begin.samples && (end.samples || end.is_end)) return {.absolute = {{*begin.samples, end.samples}}};
  if (!begin.share || !end.share || *begin.share > *end.share)
    node.at("range").fail("the two bounds do not make a range", "write [25%, 75%], [100, 200] or [100, end]");
  return {.share = {*begin.share, *end.share}};
}

// The share of the outer subset is taken of the inner one.
std::optional<Subset> subset_within(const DocumentNode& node, const std::optional<Subset>& outer) {
  if (outer && outer->absolute)
    node.fail("a range in samples is given for a metadataset",
              "give shares such as [25%, 75%], or ranges at the data sets");
  if (!node.has("subset")) return outer;
  Subset inner = read_subset(node.at("subset"));
  if (!outer) return inner;
  const double length = inner.share.second - inner.share.first;
  inner.share = {inner.share.first + outer->share.first * length, inner.share.first + outer->share.second * length};
  return inner;
}

ShuffleEpochs multiplied(const DocumentNode& node, const ShuffleEpochs& outer) {
  constexpr const char* key = "shuffle_over_epochs_multiplier";
  if (node.json().contains(key) && node.at(key).json().is_null()) return std::nullopt;
  const std::int64_t own = node.has(key) ? node.at(key).integer(-1) : 1;
  if (own == 0 || own > kMaxShuffleEpochs)
    node.at(key).fail(fmt::format("{} is not a number of epochs", own),
                      "use 1 or more, or -1 to draw with replacement");
  if (!outer) return std::nullopt;
  if (own == -1 || *outer == -1) return -1;
  if (own * *outer > kMaxShuffleEpochs)
    node.at(key).fail("the multipliers around this data set multiply to too many epochs", "use smaller ones");
  return own * *outer;
}

void refuse_unsupported(const DocumentNode& node) {
  if (node.has("join"))
    node.at("join").fail("joined data sets are not supported",
                         "write the joined samples into one data set, and name that");
  if (node.has("aux"))
    node.at("aux").fail("auxiliary data sets are not supported", "put the files into the samples that refer to them");
}

// A reference to a data set or another metadataset.
Blend open_reference(const DocumentNode& node, const std::string& file, const Context& outer) {
  refuse_unsupported(node);
  Context context = outer;
  ++context.depth;
  context.split = node.optional_text("split_part").value_or(outer.split);
  context.subset = subset_within(node, outer.subset);
  context.shuffle_epochs = multiplied(node, outer.shuffle_epochs);
  const std::string path = node.at("path").text();
  if (path.find("://") != path.npos)
    node.at("path").fail(fmt::format("remote data sets cannot be read: {}", in_quotes(path)),
                         "copy or mount it, and give the local path");
  return open_path((fs::path(file).parent_path() / path).lexically_normal(), context, &node);
}

// Leaves of all entries of a blend. Their weights are products of each entry's share along the way.
Blend blended(const std::vector<DocumentNode>& entries, const DocumentNode& list, BlendMode mode,
              const std::string& file, const Context& context) {
  const bool by_weight = mode == BlendMode::Weights;
  const auto value_of = [&](const DocumentNode& entry) {
    const char* key = by_weight ? "weight" : "repetitions";
    return entry.has(key) ? entry.at(key).positive_number(by_weight ? kMaxWeight : kMaxRepetitions) : 1.0;
  };
  if (entries.empty()) list.fail("the blend is empty", "list at least one data set");
  double total = 0;
  for (const DocumentNode& entry : entries) total += value_of(entry);
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

Blend open_v1(const DocumentNode& split, const std::string& file, const Context& context) {
  split.expect_keys({"datasets"});
  const auto entries = split.at("datasets").items();
  for (const DocumentNode& entry : entries)
    entry.expect_keys({"path", "split_part", "subflavor", "subflavors", "shuffle_over_epochs_multiplier",
                       "dataset_config", "split_config", "weight"});
  return blended(entries, split.at("datasets"), BlendMode::Weights, file, context);
}

Blend open_v2(const DocumentNode& split, const std::string& file, Context context) {
  refuse_unsupported(split);
  const bool by_weight = split.has("blend");
  if (!by_weight && !split.has("blend_epochized")) {
    split.expect_keys({"path", "split_part", "subflavors", "shuffle_over_epochs_multiplier", "dataset_config",
                       "split_config", "subset"});
    return open_reference(split, file, context);
  }
  const char* key = by_weight ? "blend" : "blend_epochized";
  split.expect_keys({key, "subset"});
  context.subset = subset_within(split, context.subset);
  const auto entries = split.at(key).items();
  for (const DocumentNode& entry : entries) {
    refuse_unsupported(entry);
    entry.expect_keys({"path", "split_part", "subflavors", "shuffle_over_epochs_multiplier", "dataset_config",
                       "split_config", "subset", by_weight ? "weight" : "repetitions"});
  }
  return blended(entries, split.at(key), by_weight ? BlendMode::Weights : BlendMode::Repetitions, file, context);
}

Blend open_metadataset(const std::string& path, const Context& context) {
  if (context.depth > kMaxDepth)
    throw ConfigError({fmt::format("metadatasets are nested more than {} deep", kMaxDepth), path,
                       "look for a file that contains itself"});
  const Json document = read_document(path);
  const DocumentNode root(document, path);
  root.expect_keys({"__module__", "__class__", "splits"});
  const std::string type = root.optional_text("__class__").value_or("Metadataset");
  if (type != "Metadataset" && type != "MetadatasetV2")
    root.at("__class__").fail(fmt::format("{} is not a kind of metadataset", in_quotes(type)), "use MetadatasetV2");
  const DocumentNode split = node_of_split(root.at("splits"), context.split);
  return type == "MetadatasetV2" ? open_v2(split, path, context) : open_v1(split, path, context);
}

Blend open_path(const std::string& path, const Context& context, const DocumentNode* reference) {
  const auto config = [&](const char* key) { return reference ? reference->optional_text(key) : std::nullopt; };
  const PathKind kind = kind_of_path(path);
  if (kind != PathKind::Folder)
    for (const char* key : {"dataset_config", "split_config"})
      if (config(key)) reference->fail(fmt::format("`{}` is only for folders of shards", key), "remove it");
  if (kind == PathKind::Metadataset) return open_metadataset(path, context);
  Leaf leaf{.data = open_data_set(path, context.split, config("split_config")),
            .shuffle_epochs = context.shuffle_epochs};
  if (kind == PathKind::Folder) leaf.spec = read_sample_spec(path, config("dataset_config"));
  leaf.subset = context.subset.value_or(Subset{});
  Blend blend;
  blend.leaves.push_back(std::move(leaf));
  return blend;
}

// Streams add up the samples of an epoch, and repetitions multiply along nested blends.
void check_total(const Blend& blend, const std::string& path) {
  double samples = 0;
  for (const Leaf& leaf : blend.leaves)
    samples += static_cast<double>(leaf.data.samples()) * std::max(leaf.repetitions, 1.0);
  if (samples > static_cast<double>(kMaxSamples))
    throw ConfigError({fmt::format("an epoch has {:g} samples, more than {}", samples, kMaxSamples), path,
                       "use fewer repetitions, or fewer data sets"});
}

}  // namespace

std::pair<std::int64_t, std::int64_t> Subset::range(std::int64_t samples, const std::string& where) const {
  std::int64_t begin = 0, end = samples;
  if (absolute) {
    begin = absolute->first;
    end = absolute->second.value_or(samples);
    if (begin > end || end > samples)
      throw ConfigError(
          {fmt::format("the subset [{}, {}) is not within the {} of the split", begin, end, counted(samples, "sample")),
           where, "correct the range"});
  }
  const auto length = static_cast<double>(end - begin);
  return {begin + static_cast<std::int64_t>(length * share.first),
          begin + static_cast<std::int64_t>(length * share.second)};
}

std::shared_ptr<const Blend> open_blend(const std::string& path, const std::string& split) {
  auto blend = std::make_shared<const Blend>(open_path(path, Context{.split = split}, nullptr));
  check_total(*blend, path);
  return blend;
}

}  // namespace braid
