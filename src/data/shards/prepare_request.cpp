// check_request(): what `braid data prepare` refuses before it looks at the shards.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/prepare.h"
#include "data/shards/sample_spec.h"

namespace braid {
namespace {

void check_fields(const PrepareRequest& request, const SampleType& type) {
  std::vector<std::string> known = type.fields;
  known.insert(known.end(), type.optional_fields.begin(), type.optional_fields.end());
  std::set<std::string> mapped;
  for (const auto& [field, source] : request.field_map) {
    if (std::find(known.begin(), known.end(), field) == known.end())
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

}  // namespace braid
