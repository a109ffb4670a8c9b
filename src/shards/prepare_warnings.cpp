// prepare_warnings(): what is legal, but rarely meant.
#include <algorithm>
#include <map>

#include "base/strings.h"
#include "shards/prepare.h"
#include "shards/sample_spec.h"

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

}  // namespace

std::vector<std::string> prepare_warnings(const PrepareRequest& request, const std::set<std::string>& parts) {
  std::vector<std::string> warnings;
  add_fields_without_parts(request, parts, warnings);
  return warnings;
}

}  // namespace braid
