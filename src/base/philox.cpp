#include "base/philox.h"
#include "base/random_values.h"

namespace braid {
namespace {

// FNV-1a
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

double value_of(const RandomPair& pair, std::uint64_t index) { return index % 2 == 0 ? pair.first : pair.second; }

template <class PairOf>
void fill(std::uint64_t begin, std::span<double> values, PairOf pair_of) {
  std::size_t i = 0;
  if (begin % 2 == 1 && !values.empty()) values[i++] = pair_of(begin / 2).second;
  for (; i + 1 < values.size(); i += 2) {
    const RandomPair pair = pair_of((begin + i) / 2);
    values[i] = pair.first;
    values[i + 1] = pair.second;
  }
  if (i < values.size()) values[i] = pair_of((begin + i) / 2).first;
}

}  // namespace

RandomField::RandomField(std::uint64_t seed, std::string_view name) : seed_(seed), name_(hash_of(name)) {}

double RandomField::uniform(std::uint64_t index) const {
  return value_of(uniform_pair(seed_, name_, index / 2), index);
}

double RandomField::normal(std::uint64_t index) const {
  return value_of(normal_pair(uniform_pair(seed_, name_, index / 2)), index);
}

void RandomField::fill_uniform(std::uint64_t begin, std::span<double> values) const {
  fill(begin, values, [&](std::uint64_t block) { return uniform_pair(seed_, name_, block); });
}

void RandomField::fill_normal(std::uint64_t begin, std::span<double> values) const {
  fill(begin, values, [&](std::uint64_t block) { return normal_pair(uniform_pair(seed_, name_, block)); });
}

}  // namespace braid
