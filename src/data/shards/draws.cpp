#include "data/shards/draws.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/shards/sha1.h"

namespace braid {
namespace {

constexpr std::uint32_t kWords = std::mt19937::state_size;

// The state of MT19937 that Python makes of a seed, as the seed sequence of std::mt19937.
struct PythonSeed {
  using result_type = std::uint32_t;
  std::uint32_t seed;

  template <class Iterator>
  void generate(Iterator state, Iterator) const {
    state[0] = 19650218;
    for (std::uint32_t i = 1; i < kWords; ++i) state[i] = 1812433253u * (state[i - 1] ^ state[i - 1] >> 30) + i;
    std::uint32_t i = 1;
    const auto advance = [&] {
      if (++i < kWords) return;
      state[0] = state[kWords - 1];
      i = 1;
    };
    for (std::uint32_t k = 0; k < kWords; ++k, advance())
      state[i] = (state[i] ^ (state[i - 1] ^ state[i - 1] >> 30) * 1664525u) + seed;
    for (std::uint32_t k = 1; k < kWords; ++k, advance())
      state[i] = (state[i] ^ (state[i - 1] ^ state[i - 1] >> 30) * 1566083941u) - i;
    state[0] = 0x80000000;
  }
};

}  // namespace

std::uint32_t Draws::word() {
  ++words_;
  return static_cast<std::uint32_t>(engine_());
}

std::uint64_t Draws::below(std::uint64_t n) {
  BRAID_CHECK(n > 0, "nothing to draw from");
  if (n < std::uint64_t{1} << 28) return word() % n;
  const std::uint64_t high = word();
  return (high << 32 | word()) % n;
}

float Draws::uniform() { return static_cast<float>(word() & 0xffffff) * 0x1p-24f; }

std::vector<std::uint32_t> Draws::permutation(std::uint32_t n) {
  BRAID_CHECK(n <= kMaxPermutation, "a permutation of {}", n);
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint32_t i = 0; i + 1 < n; ++i) std::swap(order[i], order[i + word() % (n - i)]);
  return order;
}

std::size_t Draws::choose(const std::vector<float>& weights) {
  if (weights.size() == 1) return 0;
  // torch.cumsum adds float32 values in double and rounds each sum.
  double sum = 0;
  for (const float weight : weights) sum += static_cast<double>(weight);
  const float target = uniform() * static_cast<float>(sum);
  sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += static_cast<double>(weights[i]);
    if (static_cast<float>(sum) > target) return i;
  }
  throw_check_failed(__FILE__, __LINE__, "no weight is above zero");
}

void Draws::skip_to(std::uint64_t words) {
  BRAID_CHECK(words <= kMaxWords, "{} draws", words);
  engine_.seed(seed_);
  engine_.discard(words);
  words_ = words;
}

std::uint32_t worker_seed(std::int64_t global_worker, std::int64_t seed) {
  const auto digest = sha1(fmt::format("{},{}", global_worker, seed));
  std::uint32_t value = 0;
  for (std::size_t i = 16; i < 20; ++i) value = value << 8 | digest[i];
  return value;
}

std::vector<std::size_t> python_shuffle(std::size_t size, std::uint32_t seed) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  PythonSeed python_seed{seed};
  std::mt19937 random(python_seed);
  // As many of a word's highest bits as n has, drawn again until they are below n.
  const auto below = [&](std::uint32_t n) {
    std::uint32_t value;
    do value = static_cast<std::uint32_t>(random()) >> (32 - std::bit_width(n));
    while (value >= n);
    return value;
  };
  for (std::size_t i = size; i-- > 1;) std::swap(order[i], order[below(static_cast<std::uint32_t>(i + 1))]);
  return order;
}

}  // namespace braid
