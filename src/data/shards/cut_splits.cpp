// cut_splits(): which shards belong to which split.
#include <algorithm>
#include <numeric>
#include <regex>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/brace_expansion.h"
#include "data/shards/prepare.h"
#include "data/shards/python_random.h"

namespace braid {
namespace {

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
