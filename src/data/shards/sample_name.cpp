#include "data/shards/sample_name.h"

namespace braid {

std::optional<SampleName> split_sample_name(std::string_view member_name) {
  const std::string_view top = member_name.substr(0, member_name.find('/'));
  if (top.size() >= 4 && top.starts_with("__") && top.ends_with("__")) return std::nullopt;
  const std::size_t slash = member_name.rfind('/');
  const std::size_t base = slash == member_name.npos ? 0 : slash + 1;
  const std::size_t dot = member_name.find('.', base);
  if (dot == member_name.npos) return std::nullopt;
  if (dot == base) {
    // Energon takes `folder/.txt` as part `txt` of the sample `folder/`, unless the folder's own name has a dot.
    if (base == 0) return std::nullopt;
    const std::size_t parent_slash = slash == 0 ? member_name.npos : member_name.rfind('/', slash - 1);
    const std::size_t parent = parent_slash == member_name.npos ? 0 : parent_slash + 1;
    if (member_name.substr(parent, slash - parent).find('.') != member_name.npos) return std::nullopt;
  }
  return SampleName{member_name.substr(0, dot), member_name.substr(dot + 1)};
}

}  // namespace braid
