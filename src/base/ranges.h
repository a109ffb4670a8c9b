// Loops over ranges and look-ups in maps, as expressions; and indices.
#pragma once

namespace braid {

constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// What `make`, a function or a member, gives for each element of a range.
template <class Value>
std::vector<Value> vector_of(auto&& range, const auto& make) {
  std::vector<Value> values;
  for (auto&& element : range) values.push_back(Value(std::invoke(make, element)));
  return values;
}

// The value of a key in a map; nothing if it has none.
template <class Map>
std::optional<typename Map::mapped_type> value_in(const Map& map, const auto& key) {
  const auto found = map.find(key);
  return found == map.end() ? std::nullopt : std::optional(found->second);
}

// The sum of what `number`, a function or a member, gives for each element of a range.
template <class Sum>
Sum sum_of(auto&& range, const auto& number) {
  Sum sum = 0;
  for (auto&& element : range) sum += static_cast<Sum>(std::invoke(number, element));
  return sum;
}

}  // namespace braid
