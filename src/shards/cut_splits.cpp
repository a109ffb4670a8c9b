// cut_splits(): which shards belong to which split.
#include <algorithm>
#include <regex>

#include "base/error.h"
#include "base/strings.h"
#include "shards/brace_expansion.h"
#include "shards/prepare.h"
#include "shards/python_random.h"

namespace braid {
namespace {

using Names = std::vector<std::string>;

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

}  // namespace

Splits cut_splits(const PrepareRequest& request, Names shards) {
  Splits splits;
  for (const auto& [name, pattern] : request.patterns) splits.emplace_back(name, matching(shards, name, pattern));
  if (!splits.empty()) return splits;
  const auto ratios = request.ratios.empty() ? decltype(request.ratios){{"train", 1.0}} : request.ratios;
  if (request.shuffle) shards = shuffled(shards);
  double sum = 0;
  for (const auto& [name, ratio] : ratios) sum += ratio;
  if (sum <= 0)
    throw ConfigError({"the ratios of the splits add up to zero", "", "use train:0.9,val:0.1, for example"});
  double total = 0;
  std::size_t begin = 0;
  for (const auto& [name, ratio] : ratios) {
    total += ratio / sum;
    // Rounding may put the last cut before the last shard; Energon then leaves that shard out, and so do we.
    const auto end = std::min(static_cast<std::size_t>(static_cast<double>(shards.size()) * total), shards.size());
    splits.emplace_back(name, Names(shards.begin() + static_cast<std::ptrdiff_t>(begin),
                                    shards.begin() + static_cast<std::ptrdiff_t>(end)));
    begin = end;
  }
  return splits;
}

}  // namespace braid
