#include "models/encoders.h"

#include <algorithm>

#include "base/error.h"

namespace braid {

const EncoderConfig* find_encoder(const Provider& provider, std::string_view name) {
  const auto found = std::ranges::find(provider.encoders, name, &EncoderConfig::name);
  return found == provider.encoders.end() ? nullptr : &*found;
}

const EncoderConfig& encoder_named(const Provider& provider, std::string_view name) {
  const EncoderConfig* found = find_encoder(provider, name);
  if (!found) throw_check_failed(__FILE__, __LINE__, fmt::format("{} has no encoder '{}'", provider.name, name));
  return *found;
}

ItemRows rows_of_items(const EncoderConfig& config, const std::vector<std::vector<std::int64_t>>& extents) {
  ItemRows rows;
  for (const std::vector<std::int64_t>& extent : extents) {
    const std::int64_t hidden = hidden_rows_of(config.model, extent);
    rows.embedded += std::holds_alternative<AudioConfig>(config.model) ? hidden : extent.at(0) * extent.at(1);
    rows.hidden += hidden;
    rows.embeddings += rows_of(config, extent);
    rows.longest = std::max(rows.longest, hidden);
    rows.squares += static_cast<double>(hidden) * static_cast<double>(hidden);
  }
  return rows;
}

}  // namespace braid
