// The naive rotation multiplies complex numbers: channels i and i + D / 2 are the real and imaginary part of one.
#include "base/error.h"
#include "ops/gradients.h"
#include "ops/packed_sequences.h"

namespace braid {
namespace {

using namespace testing;

constexpr double kTheta = 100;

at::Tensor op(const Tensors& in) { return rotary_embedding(in[0], in[1], kTheta, in[0].size(-2)); }

at::Tensor naive(const Tensors& in) {
  const std::int64_t half = in[0].size(-1) / 2;
  std::vector<at::Tensor> rows;
  for (std::int64_t t = 0; t < in[0].size(0); ++t) {
    const double position = static_cast<double>(in[1][t].item<std::int64_t>());
    std::vector<at::Tensor> channels(static_cast<std::size_t>(2 * half));
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = position / std::pow(kTheta, static_cast<double>(i) / static_cast<double>(half));
      const at::Tensor number = at::complex(in[0][t].select(-1, i), in[0][t].select(-1, i + half));
      const at::Tensor turned = number * c10::Scalar(c10::complex<double>(std::cos(angle), std::sin(angle)));
      channels[static_cast<std::size_t>(i)] = at::real(turned);
      channels[static_cast<std::size_t>(i + half)] = at::imag(turned);
    }
    rows.push_back(at::stack(channels, -1));
  }
  return at::stack(rows);
}

at::Tensor positions() { return at::tensor({0, 1, 2, 0, 1, 700}, at::kLong).to(test_device()); }

TEST(RotaryEmbedding, IsItsFormulaForwardAndBackward) {
  check_gradients(op, naive, {random_tensor({6, 1, 8}, 1), positions()});
  check_gradients(op, naive, {random_tensor({6, 2, 3, 4}, 2), positions()});
  check_gradients(op, naive, {random_tensor({2, 4, 6}, 3).transpose(0, 2), positions()});
  check_partial_gradients(op, {random_tensor({6, 1, 8}, 1), positions()});
}

TEST(RotaryEmbedding, LeavesTheVectorsAfterTheFirstOnes) {
  const auto first_two = [](const Tensors& in) { return rotary_embedding(in[0], in[1], kTheta, 2); };
  const auto naive_first_two = [](const Tensors& in) {
    return at::cat({naive({in[0].narrow(2, 0, 2), in[1]}), in[0].narrow(2, 2, 1)}, 2);
  };
  check_gradients(first_two, naive_first_two, {random_tensor({6, 2, 3, 4}, 2), positions()});
}

// Of |a cos| + |b sin| three roundings: of cosine or sine, of a product and of their sum. That is at most sqrt(2) times
// the length of (a, b), and the larger number of the rotated pair is at least 1 / sqrt(2) of the length.
constexpr Roundings kRotaryRoundings = {3 * 2};

TEST(RotaryEmbedding, RoundsLittle) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    check_precision(op, {random_tensor({6, 3, 8}, 4), positions()}, dtype, kRotaryRoundings);
}

// Some heads of a wider tensor: in vectors, in vectors that are not aligned, and in numbers that fit no vector.
TEST(RotaryEmbedding, RoundsLittleOnPartsOfAWiderTensor) {
  for (const auto& [width, begin] : {std::pair<std::int64_t, std::int64_t>{128, 8}, {128, 1}, {36, 0}, {2, 0}}) {
    SCOPED_TRACE(::testing::Message() << width << " channels from " << begin);
    const Operator part = [width = width, begin = begin](const Tensors& in) {
      return rotary_embedding(in[0].slice(1, begin, begin + 5 * width).unflatten(1, {5, width}), in[1], kTheta, 5);
    };
    const Tensors inputs = {random_tensor({6, 5 * width + 16}, 7), positions()};
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      check_precision(part, inputs, dtype, kRotaryRoundings);
  }
}

TEST(RotaryEmbedding, ScoresDependOnDistanceAlone) {
  const at::Tensor q = random_tensor({1, 1, 8}, 5), k = random_tensor({1, 1, 8}, 6);
  const auto score = [&](std::int64_t of_q, std::int64_t of_k) {
    const auto at_position = [](const at::Tensor& x, std::int64_t position) {
      return rotary_embedding(x, at::full({1}, position, at::TensorOptions(at::kLong).device(x.device())), kTheta, 1);
    };
    return (at_position(q, of_q) * at_position(k, of_k)).sum();
  };
  // An angle near 1000 has an error of 1000 roundings to double, 1e-13.
  expect_close(score(1005, 1002), score(3, 0), 1e-12);
  EXPECT_GT((score(4, 0) - score(3, 0)).abs().item<double>(), 1e-3);
}

TEST(RotaryEmbedding, RefusesWhatDoesNotFit) {
  EXPECT_ANY_THROW(op({random_tensor({6, 1, 7}, 1), positions()}));
  EXPECT_ANY_THROW(op({random_tensor({5, 1, 8}, 1), positions()}));
}

TEST(Sinusoids, GoFromOneToTenThousand) {
  const at::Tensor got = sinusoids(positions(), 6, at::kDouble);
  ASSERT_EQ(got.sizes(), (std::vector<std::int64_t>{6, 6}));
  const double position = 700, wavelengths[] = {1, 100, 10000};
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(got[5][i].item<double>(), std::sin(position / wavelengths[i]), 1e-12);
    EXPECT_NEAR(got[5][3 + i].item<double>(), std::cos(position / wavelengths[i]), 1e-12);
  }
  EXPECT_TRUE(at::equal(got[0], got[3]));
  EXPECT_EQ(sinusoids(positions(), 6, at::kBFloat16).scalar_type(), at::kBFloat16);
  EXPECT_ANY_THROW(sinusoids(positions(), 2, at::kDouble));
}

}  // namespace
}  // namespace braid
