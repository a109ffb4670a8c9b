#include "base/philox.h"

#include <cmath>

namespace braid {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// FNV-1a
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

// Two values in [0, 1) of 53 bits: a block has 128 bits.
struct Pair {
  double first, second;
};

Pair uniform_pair(std::uint64_t seed, std::uint64_t name, std::uint64_t block) {
  const auto words = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                             static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)},
                            {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const auto join = [](std::uint32_t high, std::uint32_t low) {
    return static_cast<double>((static_cast<std::uint64_t>(high) << 32 | low) >> 11) * 0x1.0p-53;
  };
  return {join(words[0], words[1]), join(words[2], words[3])};
}

Pair normal_pair(const Pair& uniform) {  // Box-Muller
  const double radius = std::sqrt(-2 * std::log1p(-uniform.first)), angle = kTwoPi * uniform.second;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double value_of(const Pair& pair, std::uint64_t index) { return index % 2 == 0 ? pair.first : pair.second; }

template <class PairOf>
void fill(std::uint64_t begin, std::span<double> values, PairOf pair_of) {
  std::size_t i = 0;
  if (begin % 2 == 1 && !values.empty()) values[i++] = pair_of(begin / 2).second;
  for (; i + 1 < values.size(); i += 2) {
    const Pair pair = pair_of((begin + i) / 2);
    values[i] = pair.first;
    values[i + 1] = pair.second;
  }
  if (i < values.size()) values[i] = pair_of((begin + i) / 2).first;
}

}  // namespace

std::array<std::uint32_t, 4> philox(const std::array<std::uint32_t, 4>& counter,
                                    const std::array<std::uint32_t, 2>& key) {
  auto [c0, c1, c2, c3] = counter;
  auto [k0, k1] = key;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c0, product1 = std::uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(product1);
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(product0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

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
