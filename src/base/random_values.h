// The values of base/philox.h, for the host and for CUDA kernels. Both give the same bits: they use only operations
// that IEEE 754 rounds exactly, and files that include this one are compiled without fused multiply-adds.
#pragma once

// Read by nvcc too.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define BRAID_HOST_DEVICE __host__ __device__
#else
#define BRAID_HOST_DEVICE
#endif

namespace braid {

// One block of Philox 4x32 with ten rounds.
BRAID_HOST_DEVICE inline std::array<std::uint32_t, 4> philox(const std::array<std::uint32_t, 4>& counter,
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

// Values 2i and 2i + 1 of a field.
struct RandomPair {
  double first, second;
};

// In [0, 1), of 53 bits: a block of Philox has 128 bits.
BRAID_HOST_DEVICE inline RandomPair uniform_pair(std::uint64_t seed, std::uint64_t name, std::uint64_t block) {
  const auto words = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                             static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)},
                            {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const auto join = [](std::uint32_t high, std::uint32_t low) {
    return static_cast<double>((static_cast<std::uint64_t>(high) << 32 | low) >> 11) * 0x1.0p-53;
  };
  return {join(words[0], words[1]), join(words[2], words[3])};
}

// c0 + c1 x + c2 x^2 + ...
template <class... Rest>
BRAID_HOST_DEVICE inline double polynomial(double x, double c0, Rest... rest) {
  if constexpr (sizeof...(rest) == 0)
    return c0;
  else
    return c0 + x * polynomial(x, rest...);
}

// The natural logarithm of a positive, normal number, to about one unit in the last place.
BRAID_HOST_DEVICE inline double log_of(double x) {
  constexpr std::uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd;
  constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;  // the high part times an int is exact
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t above = bits - kRootOfHalf;
  const auto exponent = static_cast<int>(static_cast<std::int32_t>(above >> 32) >> 20);
  // x = 2^exponent (1 + f) with 1 + f between the roots of 1/2 and 2; log(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + ...)
  const double f = std::bit_cast<double>(bits - (above & 0xfff0000000000000)) - 1, s = f / (2 + f), z = s * s;
  const double series =
      z * polynomial(z, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21);
  const double half_square = 0.5 * f * f;
  return exponent * kLn2High + (f - (half_square - (s * (half_square + series) + exponent * kLn2Low)));
}

// The cosine and the sine of 2 pi `turns`, for turns in [0, 1): to one unit in the last place for the rounded angle.
BRAID_HOST_DEVICE inline RandomPair on_circle(double turns) {
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  constexpr double kQuarterHigh = 0x1.921fb544p0, kQuarterLow = 0x1.0b4611a626331p-34;  // pi / 2
  const auto quarters = static_cast<int>(4 * turns + 0.5);
  const double r = (kTwoPi * turns - quarters * kQuarterHigh) - quarters * kQuarterLow, z = r * r;  // |r| <= pi / 4
  const double sine = r + r * z *
                              polynomial(z, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
                                         1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000);
  const double cosine = 1 - (0.5 * z - z * z *
                                           polynomial(z, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800,
                                                      1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000));
  const double x = quarters % 2 == 0 ? cosine : sine, y = quarters % 2 == 0 ? sine : cosine;
  return {quarters == 1 || quarters == 2 ? -x : x, quarters == 2 || quarters == 3 ? -y : y};
}

// Box-Muller.
BRAID_HOST_DEVICE inline RandomPair normal_pair(const RandomPair& uniform) {
  const double radius = std::sqrt(-2 * log_of(1 - uniform.first));
  const RandomPair point = on_circle(uniform.second);
  return {radius * point.first, radius * point.second};
}

}  // namespace braid
