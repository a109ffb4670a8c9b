// Philox against the known answers published with Random123; fields against the moments of their distributions, with
// bounds of five standard deviations of the estimate (a wrong one fails by hundreds).
#include "base/philox.h"
#include <gtest/gtest.h>
#include "base/random_values.h"

namespace braid {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, GivesThePublishedAnswers) {
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The first `count` values of a field, drawn from the last to the first.
std::vector<double> drawn_backwards(std::uint64_t seed, const char* name, std::size_t count) {
  const RandomField field(seed, name);
  std::vector<double> values(count);
  for (std::size_t i = count; i-- > 0;) values[i] = field.normal(i);
  return values;
}

TEST(RandomField, DependsOnSeedNameAndIndexAlone) {
  const RandomField field(7, "weight");
  const std::vector<double> backwards = drawn_backwards(7, "weight", 9);
  for (std::size_t i = 0; i < backwards.size(); ++i) EXPECT_EQ(field.normal(i), backwards[i]) << i;
}

// Pinned: a run without a checkpoint is repeated from its seed alone.
TEST(RandomField, ValuesNeverChange) {
  struct Pinned {
    std::uint64_t index;
    double uniform, normal;
  };
  const RandomField field(1234, "x");
  for (const auto& [index, uniform, normal] :
       {Pinned{0, 0.49493407036378456, 0.065329219466668823}, Pinned{1, 0.75890035972830583, -1.1669895895294289},
        Pinned{2, 0.91547776868636888, -1.2473668981350086}, Pinned{7, 0.33465975698176531, 2.2779788629954747},
        Pinned{8589934592, 0.8707675696422309, 0.33799874293355969},
        Pinned{8589934593, 0.22328261519147308, 1.9945030133132009}}) {
    EXPECT_EQ(field.uniform(index), uniform) << index;
    EXPECT_EQ(field.normal(index), normal) << index;
  }
}

// Against the math library, which is good to one unit in the last place, as are the parts here. The logarithm's errors
// are halved by the root. With the rounding of the root and of the product that is at most 2 * (1 / 2 + 1 + 1) = 5
// units.
TEST(RandomField, NormalIsBoxAndMullersTransform) {
  const RandomField field(3, "normal");
  for (std::uint64_t i = 0; i < 200'000; i += 2) {
    const double radius = std::sqrt(-2 * std::log1p(-field.uniform(i)));
    const double angle = 6.283185307179586476925286766559 * field.uniform(i + 1);
    const double first = radius * std::cos(angle), second = radius * std::sin(angle);
    constexpr double kUnits = 5 * 0x1.0p-52;
    ASSERT_NEAR(field.normal(i), first, kUnits * std::abs(first)) << i;
    ASSERT_NEAR(field.normal(i + 1), second, kUnits * std::abs(second)) << i;
  }
}

// Where the uniform values reach the ends of their intervals and the borders between octants.
TEST(RandomValues, LogarithmAndCircleAreRightAtTheirBorders) {
  for (const double x : {0x1.0p-53, 0x1.8p-53, 0.25, 0.5, 0x1.6a09e667f3bccp-1, 0x1.6a09e667f3bcdp-1,
                         0x1.6a09e667f3bcep-1, 1 - 0x1.0p-53, 1.0})
    EXPECT_DOUBLE_EQ(log_of(x), std::log(x)) << x;
  for (int eighth = 0; eighth < 8; ++eighth)
    for (const double turns : {eighth / 8.0, eighth / 8.0 + 0x1.0p-53, (eighth + 1) / 8.0 - 0x1.0p-53}) {
      const double angle = 6.283185307179586476925286766559 * turns;
      const RandomPair point = on_circle(turns);
      EXPECT_NEAR(point.first, std::cos(angle), 0x1.0p-52) << turns;
      EXPECT_NEAR(point.second, std::sin(angle), 0x1.0p-52) << turns;
    }
}

// Ranges from even and odd indices to even and odd ones, including none and one value.
TEST(RandomField, FillsWithTheValuesItGivesOneByOne) {
  const RandomField field(7, "weight");
  for (const std::uint64_t begin : {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{1} << 33})
    for (std::size_t count = 0; count < 6; ++count) {
      std::vector<double> uniforms(count), normals(count);
      field.fill_uniform(begin, uniforms);
      field.fill_normal(begin, normals);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(uniforms[i], field.uniform(begin + i)) << begin << " + " << i;
        EXPECT_EQ(normals[i], field.normal(begin + i)) << begin << " + " << i;
      }
    }
}

TEST(RandomField, ChangesWithEachOfThem) {
  const RandomField field(7, "weight");
  for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{1} << 33}) {
    for (const std::uint64_t seed : {std::uint64_t{8}, 7 + (std::uint64_t{1} << 32)})  // either half of the key
      EXPECT_NE(field.uniform(index), RandomField(seed, "weight").uniform(index));
    for (const char* name : {"weighs", "Weight", "weight ", "thgiew", ""})
      EXPECT_NE(field.uniform(index), RandomField(7, name).uniform(index)) << name;
    for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{1} << 33})
      EXPECT_NE(field.uniform(index), field.uniform(index + step));
  }
}

constexpr std::uint64_t kCount = 100'000;

// The mean of `value` over the first indices is `expected`, if a single value has this variance.
void expect_mean(const std::function<double(std::uint64_t)>& value, double expected, double variance,
                 const char* what) {
  double sum = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) sum += value(i);
  EXPECT_NEAR(sum / kCount, expected, 5 * std::sqrt(variance / kCount)) << what;
}

TEST(RandomField, UniformFillsTheIntervalEvenly) {
  const RandomField field(1, "uniform");
  const auto centred = [&](std::uint64_t i) { return field.uniform(i) - 0.5; };
  expect_mean(centred, 0, 1.0 / 12, "mean");
  expect_mean([&](auto i) { return centred(i) * centred(i); }, 1.0 / 12, 1.0 / 80 - 1.0 / 144, "variance");
  expect_mean([&](auto i) { return centred(2 * i) * centred(2 * i + 1); }, 0, 1.0 / 144, "values of one block");
  expect_mean([&](auto i) { return centred(i) * centred(i + 2); }, 0, 1.0 / 144, "values of neighbouring blocks");
  for (int bin = 0; bin < 16; ++bin)
    expect_mean([&](auto i) { return std::floor(16 * field.uniform(i)) == bin; }, 1.0 / 16, 15.0 / 256, "share");
}

TEST(RandomField, UniformHas53BitsBelowOne) {
  const RandomField field(1, "uniform");
  bool odd = false;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double steps = std::ldexp(field.uniform(i), 53);
    ASSERT_TRUE(steps >= 0 && steps < 0x1.0p53 && steps == std::floor(steps)) << i;
    odd = odd || std::fmod(steps, 2) == 1;
  }
  EXPECT_TRUE(odd) << "the last bit is never set";
}

// E x^2 = 1, E x^4 = 3, E x^8 = 105.
TEST(RandomField, NormalHasTheMomentsOfANormal) {
  const RandomField field(1, "normal");
  const auto power = [&](std::uint64_t i, int exponent) { return std::pow(field.normal(i), exponent); };
  expect_mean([&](auto i) { return power(i, 1); }, 0, 1, "mean");
  expect_mean([&](auto i) { return power(i, 2); }, 1, 3 - 1, "variance");
  expect_mean([&](auto i) { return power(i, 3); }, 0, 15, "skewness");
  expect_mean([&](auto i) { return power(i, 4); }, 3, 105 - 9, "kurtosis");
  expect_mean([&](auto i) { return power(2 * i, 1) * power(2 * i + 1, 1); }, 0, 1, "values of one block");
  expect_mean([&](auto i) { return power(i, 1) * power(i + 2, 1); }, 0, 1, "values of neighbouring blocks");
  for (std::uint64_t i = 0; i < kCount; ++i) ASSERT_TRUE(std::isfinite(field.normal(i))) << i;
}

}  // namespace
}  // namespace braid
