#include "data/text/vocabulary.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/flat_table.h"

namespace braid {

Vocabulary::Vocabulary(const JsonPlace& place) {
  if (!place.value().is_object()) place.expected("an object from tokens to ids");
  const auto& entries = place.value().get_ref<const nlohmann::json::object_t&>();
  count_ = static_cast<int>(entries.size());
  // Ids may have gaps, but a table of them must not be much larger than the file.
  const std::int64_t largest = 4 * static_cast<std::int64_t>(entries.size()) + 100'000;
  std::int64_t end = 0;
  for (const auto& [token, id] : entries)
    end = std::max(end, JsonPlace(id, fmt::format("{}[{}]", place.path(), in_quotes(token))).integer(0, largest) + 1);
  tokens_.resize(static_cast<std::size_t>(end));
  is_used_.resize(tokens_.size());
  slots_.assign(std::bit_ceil(2 * entries.size() + 1), -1);
  for (const auto& [token, id_value] : entries) {
    const auto id = id_value.get<std::size_t>();
    if (is_used_[id])
      place.refuse(fmt::format("gives the id {} to {} and to {}", id, in_quotes(tokens_[id]), in_quotes(token)));
    tokens_[id] = token;
    is_used_[id] = true;
    slots_[place_of(token)] = static_cast<int>(id);
  }
}

std::optional<int> Vocabulary::find(std::string_view token) const {
  const int id = slots_[place_of(token)];
  return id < 0 ? std::nullopt : std::optional(id);
}

std::size_t Vocabulary::place_of(std::string_view token) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = hash_of(token) & mask;
  while (slots_[place] >= 0 && tokens_[static_cast<std::size_t>(slots_[place])] != token) place = (place + 1) & mask;
  return place;
}

}  // namespace braid
