// prepare_warnings(): what is legal, but rarely meant.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/strings.h"
#include "data/shards/prepare.h"
#include "data/shards/sample_spec.h"

namespace braid {
namespace {

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

}  // namespace

std::vector<std::string> prepare_warnings(const PrepareRequest& request, const Splits& splits,
                                          const std::set<std::string>& parts) {
  std::vector<std::string> warnings;
  add_shared_shards(splits, warnings);
  add_fields_without_parts(request, parts, warnings);
  return warnings;
}

}  // namespace braid
