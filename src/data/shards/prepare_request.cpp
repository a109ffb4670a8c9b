// What `braid data prepare` was asked for: refused before it looks at the shards, cut into splits, or warned about,
// where it is legal, but rarely meant.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/data_set.h"
#include "data/shards/draws.h"
#include "data/shards/prepare.h"
#include "data/shards/sample_spec.h"

namespace braid {
namespace {

void check_fields(const PrepareRequest& request, const SampleType& type) {
  std::vector<std::string> known = type.fields;
  known.insert(known.end(), type.optional_fields.begin(), type.optional_fields.end());
  std::set<std::string> mapped;
  for (const auto& [field, source] : request.field_map) {
    if (!contains(known, field))
      throw ConfigError({fmt::format("a {} has no field {}", type.name, in_quotes(field)), "--field-map",
                         fmt::format("its fields are {}", fmt::join(known, ", "))});
    if (!mapped.insert(field).second)
      throw ConfigError({fmt::format("the field {} is mapped twice", in_quotes(field)), "--field-map",
                         fmt::format("map it once; it may have alternatives: --field-map {}=jpg,png", field)});
  }
}

void check_type(const PrepareRequest& request) {
  const SampleType* type = find_sample_type(request.sample_type);
  if (!type)
    throw ConfigError({fmt::format("there is no sample type {}", in_quotes(request.sample_type)), "--sample-type",
                       fmt::format("use one of {}; or give no type, and map the parts in the recipe (data.fields)",
                                   sample_type_names())});
  check_fields(request, *type);
  std::vector<std::string> missing;
  for (const std::string& needed : type->fields)
    if (std::none_of(request.field_map.begin(), request.field_map.end(),
                     [&](const auto& mapped) { return mapped.first == needed; }))
      missing.push_back(needed);
  if (!missing.empty())
    throw ConfigError({fmt::format("a {} also needs {}", type->name, fmt::join(missing, " and ")), "--field-map",
                       fmt::format("add --field-map {}=PART", fmt::join(missing, "=PART --field-map "))});
}

void add_fields_without_parts(const PrepareRequest& request, const std::set<std::string>& parts,
                              std::vector<std::string>& warnings) {
  for (const auto& [field, source] : request.field_map) {
    const auto alternatives = parse_field_source(source, field).alternatives;
    if (std::none_of(alternatives.begin(), alternatives.end(),
                     [&](const auto& path) { return parts.contains(path[0]); }))
      warnings.push_back(fmt::format("no sample has the part for --field-map {}={}; parts: {}", field, source,
                                     fmt::join(parts, ", ")));
  }
}

void add_shared_shards(const Splits& splits, std::vector<std::string>& warnings) {
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
}

using Names = std::vector<std::string>;
using Ratios = decltype(PrepareRequest::ratios);

constexpr std::uint32_t kShuffleSeed = 42;  // Energon's

Names shuffled(const Names& names) {
  Names result;
  for (const std::size_t from : python_shuffle(names.size(), kShuffleSeed)) result.push_back(names[from]);
  return result;
}

bool matches(const std::string& name, const std::regex& pattern) {
  return std::regex_search(name, pattern, std::regex_constants::match_continuous);
}

Names matching(const Names& shards, const std::string& split, const std::string& pattern) {
  const std::string where = fmt::format("--split-parts {}:{}", split, pattern);
  std::vector<std::regex> expressions;
  for (const std::string& text : expand_braces(pattern, where)) {
    try {
      expressions.emplace_back(text);
    } catch (const std::regex_error& e) {
      throw ConfigError(
          {fmt::format("{} is not a regular expression: {}", in_quotes(text), e.what()), where, "correct it"});
    }
  }
  Names found;
  for (const std::string& shard : shards)
    if (std::any_of(expressions.begin(), expressions.end(), [&](const std::regex& e) { return matches(shard, e); }))
      found.push_back(shard);
  if (found.empty())
    throw ConfigError(
        {fmt::format("no shard matches {}", in_quotes(pattern)), where,
         "patterns are regular expressions that match from the start of the shard's path: train/.*, not train/*"});
  return found;
}

// The number of shards up to the end of each split.
std::vector<std::size_t> split_ends(const Ratios& ratios, std::size_t shards) {
  const auto count = static_cast<double>(shards);
  double sum = 0;
  for (const auto& [name, ratio] : ratios) sum += ratio;
  if (sum <= 0)
    throw ConfigError({"the ratios of the splits add up to zero", "", "use train:0.9,val:0.1, for example"});
  std::vector<std::size_t> ends;
  double total = 0;
  for (const auto& [name, ratio] : ratios)
    ends.push_back(std::min(static_cast<std::size_t>(count * (total += ratio / sum)), shards));
  if (ends.back() == shards) return ends;
  // Energon adds the shares up. Their sum may round to less than 1 (0.6 + 0.3 + 0.1), and the last shard is then in no
  // split. Here every shard is in one: each cut is at the ratios' own sum, and rounds up if it is that close below.
  constexpr double kRounding = 1e-9;
  total = 0;
  for (std::size_t i = 0; i < ratios.size(); ++i)
    ends[i] = std::min(static_cast<std::size_t>(count * ((total += ratios[i].second) / sum) * (1 + kRounding)), shards);
  return ends;
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

}  // namespace

void check_request(const PrepareRequest& request) {
  if (!request.ratios.empty() && !request.patterns.empty())
    throw ConfigError({"splits are given by ratio and by pattern", "", "use --split or --split-parts"});
  if (request.shuffle && request.ratios.empty())
    throw ConfigError({"--shuffle-tars shuffles the shards that --split divides, but there is no --split",
                       "--shuffle-tars", "add --split train:0.9,val:0.1, for example"});
  std::set<std::string> names;
  const auto check_name = [&](const std::string& name, const char* fix) {
    if (name.empty()) throw ConfigError({"a split has no name", "", fix});
    if (!names.insert(name).second)
      throw ConfigError({fmt::format("the split {} is named twice", in_quotes(name)), "", fix});
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

std::vector<std::string> prepare_warnings(const PrepareRequest& request, const Splits& splits,
                                          const std::set<std::string>& parts) {
  std::vector<std::string> warnings;
  add_shared_shards(splits, warnings);
  add_fields_without_parts(request, parts, warnings);
  return warnings;
}

Splits cut_splits(const PrepareRequest& request, Names shards) {
  Splits splits;
  for (const auto& [name, pattern] : request.patterns) splits.emplace_back(name, matching(shards, name, pattern));
  if (!splits.empty()) return splits;
  const auto ratios = request.ratios.empty() ? Ratios{{"train", 1.0}} : request.ratios;
  if (request.shuffle) shards = shuffled(shards);
  auto begin = shards.begin();
  const std::vector<std::size_t> sizes = split_sizes(ratios, shards.size());
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const auto end = begin + static_cast<std::ptrdiff_t>(sizes[i]);
    splits.emplace_back(ratios[i].first, Names(begin, end));
    begin = end;
  }
  return splits;
}

}  // namespace braid
