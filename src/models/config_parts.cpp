#include "models/config_parts.h"

#include <algorithm>

#include "base/strings.h"
#include "plan/topology_config.h"

namespace braid {

void Checks::add(const char* field, std::string what, std::string fix) {
  problems_.push_back({std::move(what), where_ + "." + field, std::move(fix)});
}

void Checks::size(const char* field, std::int64_t value, std::int64_t most) {
  if (value < 1) add(field, fmt::format("{}={} must be at least 1", field, value), "use 1 or more");
  if (value > most) add(field, fmt::format("{}={} is too large", field, value), fmt::format("use {} or less", most));
}

void Checks::divides(const char* field, std::int64_t value, std::int64_t parts, const std::string& split) {
  if (parts < 1 || value < 1 || value % parts == 0) return;
  std::string fix = nearest_of(split.substr(0, split.find('=')), divisors(value), parts);
  // A vocabulary is padded; other sizes are those of the model.
  if (std::string_view(field) == "vocab") fix += fmt::format(", or pad it: vocab={}", (value / parts + 1) * parts);
  add(field, fmt::format("{}={} is not divisible by {}", field, value, split), std::move(fix));
}

void Checks::grouped_heads(const Heads& heads, const Heads& groups, const LayoutSizes& layout) {
  divides(heads.field, heads.count, groups.count, fmt::format("{}={}", groups.field, groups.count));
  divides(groups.field, groups.count, layout.tp, fmt::format("tp={}", layout.tp));
  if (layout.tp < 1 || layout.cp < 1 || groups.count < 1) return;
  if (heads.count % groups.count != 0 || groups.count % layout.tp != 0) return;
  const std::int64_t own_heads = heads.count / layout.tp, own = groups.count / layout.tp;
  if (own % layout.cp == 0 || (layout.cp % own == 0 && own_heads % layout.cp == 0)) return;
  add(groups.field,
      fmt::format("cp={} ranks cannot share {} {} in {} groups evenly", layout.cp, own_heads, heads.field, own),
      fmt::format("cp must divide {}, or be a multiple of {} that divides {}", own, own, own_heads));
}

void Checks::stages(const char* field, int layers, const LayoutSizes& layout) {
  if (layout.stages() <= layers || layers < 1) return;
  if (layout.vpp == 1)
    add(field, fmt::format("{} cannot fill pp={} stages", counted(layers, "layer"), layout.pp),
        fmt::format("use pp={} or less", layers));
  else
    add(field, fmt::format("{} cannot fill pp={} x vpp={} stages", counted(layers, "layer"), layout.pp, layout.vpp),
        fmt::format("use vpp={} or less", std::max(layers / layout.pp, 1)));
}

}  // namespace braid
