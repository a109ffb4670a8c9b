#include "data/shards/python_random.h"

#include <array>
#include <bit>
#include <numeric>
#include <utility>

namespace braid {
namespace {

// MT19937 with the seeding of Python, which std::mt19937 does not offer.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint32_t seed) {
    state_[0] = 19650218;
    for (std::uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ state_[i - 1] >> 30) + i;
    std::uint32_t i = 1;
    const auto advance = [&] {
      if (++i < kWords) return;
      state_[0] = state_[kWords - 1];
      i = 1;
    };
    for (std::uint32_t k = 0; k < kWords; ++k, advance())
      state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1664525u) + seed;
    for (std::uint32_t k = 1; k < kWords; ++k, advance())
      state_[i] = (state_[i] ^ (state_[i - 1] ^ state_[i - 1] >> 30) * 1566083941u) - i;
    state_[0] = 0x80000000;
  }

  // As many of a word's highest bits as `n` has, drawn again until they are below it.
  std::uint32_t below(std::uint32_t n) {
    std::uint32_t value;
    do value = word() >> (32 - std::bit_width(n));
    while (value >= n);
    return value;
  }

 private:
  static constexpr std::uint32_t kWords = 624, kShift = 397;

  std::uint32_t word() {
    if (next_ == kWords) twist();
    std::uint32_t y = state_[next_++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680;
    y ^= y << 15 & 0xefc60000;
    return y ^ y >> 18;
  }

  void twist() {
    for (std::uint32_t i = 0; i < kWords; ++i) {
      const std::uint32_t y = (state_[i] & 0x80000000) | (state_[(i + 1) % kWords] & 0x7fffffff);
      state_[i] = state_[(i + kShift) % kWords] ^ y >> 1 ^ (y & 1 ? 0x9908b0df : 0);
    }
    next_ = 0;
  }

  std::array<std::uint32_t, kWords> state_{};
  std::uint32_t next_ = kWords;
};

}  // namespace

std::vector<std::size_t> python_shuffle(std::size_t size, std::uint32_t seed) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  PythonRandom random(seed);
  for (std::size_t i = size; i-- > 1;) std::swap(order[i], order[random.below(static_cast<std::uint32_t>(i + 1))]);
  return order;
}

}  // namespace braid
