#include "ops/ssd_scan.h"
#include "ops/gradients.h"

namespace braid {
namespace {

using testing::check_gradients;
using testing::check_partial_gradients;
using testing::check_precision;
using testing::evaluate;
using testing::expect_close;
using testing::Operator;
using testing::random_tensor;
using testing::Roundings;
using testing::Tensors;
using testing::test_device;

struct Shape {
  std::int64_t heads = 4, width = 3, groups = 2, state = 2;
};

Tensors inputs(std::int64_t tokens, Shape shape = {}) {
  return {random_tensor({tokens, shape.heads, shape.width}, 1),
          random_tensor({tokens, shape.heads}, 2),
          random_tensor({shape.heads}, 3) * 0.5,
          random_tensor({tokens, shape.groups, shape.state}, 4),
          random_tensor({tokens, shape.groups, shape.state}, 5),
          random_tensor({shape.heads}, 6),
          random_tensor({shape.heads}, 7)};
}

Operator scan(const std::vector<std::int64_t>& offsets, const SsdOptions& options) {
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  return [=](const Tensors& in) {
    return ssd_scan({in[0], in[1], in[2], in[3], in[4], in[5], in[6]}, options, sequences);
  };
}

// The recurrence, token by token.
Operator recurrence(const std::vector<std::int64_t>& offsets, const SsdOptions& options) {
  return [=](const Tensors& in) {
    const at::Tensor &x = in[0], &dt = in[1], &A_log = in[2], &B = in[3], &C = in[4], &D = in[5], &dt_bias = in[6];
    const std::int64_t sharing = x.size(1) / B.size(1);
    const at::Tensor s = at::log1p((dt + dt_bias).exp()).clamp(options.dt_min, options.dt_max);
    at::Tensor y = x * D.unsqueeze(1) + 0 * (s.sum() + A_log.sum() + B.sum() + C.sum());
    Tensors rows;
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      at::Tensor state = at::zeros({x.size(1), x.size(2), B.size(2)}, x.options());  // [h, p, n]
      for (std::int64_t t = offsets[i]; t < offsets[i + 1]; ++t) {
        const at::Tensor decay = (s[t] * -A_log.exp()).exp().view({-1, 1, 1});
        const at::Tensor b = B[t].repeat_interleave(sharing, 0), c = C[t].repeat_interleave(sharing, 0);  // [h, n]
        state = decay * state + (s[t].unsqueeze(1) * x[t]).unsqueeze(2) * b.unsqueeze(1);
        rows.push_back((state * c.unsqueeze(1)).sum(2));
      }
    }
    return rows.empty() ? y : y + at::stack(rows);
  };
}

const std::vector<std::vector<std::int64_t>> kPackings = {
    {0, 8},                       // whole chunks of 1, 2 and 4
    {0, 7},                       // no whole chunks
    {0, 0, 1, 3, 3, 8, 9, 9, 12}  // lengths 1, 2, 5, 3 and empty ones
};

TEST(SsdScan, IsTheRecurrenceForAnyChunkLength) {
  for (const std::vector<std::int64_t>& offsets : kPackings)
    for (const std::int64_t chunk : {1, 2, 3, 4, 100}) {
      SCOPED_TRACE(::testing::Message() << offsets.size() - 1 << " sequences, chunks of " << chunk);
      const SsdOptions options{.chunk = chunk};
      const Tensors in = inputs(offsets.back());
      const at::Tensor grad = random_tensor(in[0].sizes(), 8);
      testing::expect_same_evaluation(evaluate(scan(offsets, options), in, grad),
                                      evaluate(recurrence(offsets, options), in, grad), 1e-12);
    }
}

TEST(SsdScan, GradientsAreSlopes) {
  for (const Shape& shape : {Shape{1, 2, 1, 2}, Shape{4, 2, 2, 3}, Shape{2, 1, 2, 1}, Shape{3, 2, 1, 1}}) {
    SCOPED_TRACE(::testing::Message() << shape.heads << " heads in " << shape.groups << " groups");
    const std::vector<std::int64_t> offsets = {0, 5, 5, 6, 8};
    const SsdOptions options{.chunk = 2};
    check_gradients(scan(offsets, options), recurrence(offsets, options), inputs(8, shape));
  }
}

TEST(SsdScan, ClampedStepsPassNoGradient) {
  const SsdOptions options{.chunk = 2, .dt_min = 0.5, .dt_max = 1.0};
  const Tensors in = inputs(8);
  const at::Tensor steps = at::softplus(in[1] + in[6]);
  const at::Tensor clamped = (steps < 0.5).logical_or(steps > 1.0);
  ASSERT_TRUE((steps < 0.5).any().item<bool>() && (steps > 1.0).any().item<bool>() && !clamped.all().item<bool>());
  check_gradients(scan({0, 5, 8}, options), recurrence({0, 5, 8}, options), in);
  const at::Tensor grad_dt = evaluate(scan({0, 5, 8}, options), in, at::ones_like(in[0])).gradients[1];
  EXPECT_TRUE(at::equal(grad_dt == 0, clamped));
}

TEST(SsdScan, NoTokensGiveNoRowsAndZeroWeightGradients) {
  for (const std::vector<std::int64_t>& offsets : {std::vector<std::int64_t>{0}, {0, 0}})
    check_gradients(scan(offsets, {}), recurrence(offsets, {}), inputs(0));
}

// More chunks than one block holds, with enough heads that a block holds few.
// Running sums of 128 steps in double have up to 10 times the roundings of short ones.
TEST(SsdScan, ManyBlocksOfChunksAreTheSameAsTheRecurrence) {
  const std::vector<std::int64_t> offsets = {0, 300, 301, 400};
  const Tensors in = inputs(400, {.heads = 512, .width = 1, .groups = 2, .state = 2});
  const at::Tensor grad = random_tensor(in[0].sizes(), 8);
  testing::expect_same_evaluation(evaluate(scan(offsets, {.chunk = 128}), in, grad),
                                  evaluate(recurrence(offsets, {}), in, grad), 1e-11);
}

// Decays far below the smallest number, and steps in the linear range of softplus, neither overflow nor give NaN.
// Running sums reach 32 * 100 * exp(5), about 10^6, so that exponents have an error of 10^6 roundings to double, 1e-10.
TEST(SsdScan, StrongDecaysStayFinite) {
  Tensors in = inputs(64);
  in[1] = in[1] * 100;
  in[2] = in[2] + 5;
  const at::Tensor grad = random_tensor(in[0].sizes(), 8);
  const SsdOptions options{.chunk = 32};
  testing::expect_same_evaluation(evaluate(scan({0, 40, 64}, options), in, grad),
                                  evaluate(recurrence({0, 40, 64}, options), in, grad), 1e-9);
}

// The exponent of a decay over k steps of about 1 has k + 1 roundings of running sums of up to 16 such steps, each with
// an A of up to 2: with the decay exp(-k), 32 (k + 1) exp(-k) is at most 32. softplus and exp add 6, and three
// products. Then there are sums over the 23 tokens of a sequence, over all 40 for the parameters, and over the state.
TEST(SsdScan, NarrowTypesAreRoundedAtTheEndOnly) {
  const double of_term = 32 + 6 + 3;
  const Roundings roundings = {of_term + testing::random_sum(23) + testing::random_sum(40) + testing::random_sum(2)};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    check_precision(scan({0, 17, 40}, {.chunk = 16}), inputs(40), dtype, roundings);
}

TEST(SsdScan, NothingCrossesABorder) {
  const Tensors in = inputs(12);
  at::Tensor grad = at::zeros_like(in[0]);
  grad.slice(0, 4, 9).copy_(random_tensor({5, 4, 3}, 8));  // of the middle sequence
  const Tensors gradients = evaluate(scan({0, 4, 9, 12}, {.chunk = 2}), in, grad).gradients;
  for (const std::size_t per_token : {0, 1, 3, 4}) {
    EXPECT_TRUE(gradients[per_token].slice(0, 0, 4).eq(0).all().item<bool>());
    EXPECT_TRUE(gradients[per_token].slice(0, 4, 9).ne(0).all().item<bool>());
    EXPECT_TRUE(gradients[per_token].slice(0, 9, 12).eq(0).all().item<bool>());
  }
}

TEST(SsdScan, PackedSequencesAreTheSequencesOneByOne) {
  const Tensors in = inputs(9);
  const at::Tensor packed = scan({0, 4, 4, 9}, {.chunk = 2})(in);
  const auto alone = [&](std::int64_t begin, std::int64_t end) {
    Tensors part = in;
    for (const std::size_t per_token : {0, 1, 3, 4}) part[per_token] = in[per_token].slice(0, begin, end);
    return scan({0, end - begin}, {.chunk = 2})(part);
  };
  expect_close(packed.slice(0, 0, 4), alone(0, 4), 1e-14);
  expect_close(packed.slice(0, 4, 9), alone(4, 9), 1e-14);
}

TEST(SsdScan, ComputesGradientsOnlyForWhoWantsThem) {
  check_partial_gradients(scan({0, 3, 7}, {.chunk = 2}), inputs(7));
}

// Steps and weights are often fp32 while activations are bf16.
TEST(SsdScan, GradientsHaveTheTypesOfTheirInputs) {
  Tensors in = inputs(7);
  for (std::size_t i = 0; i < in.size(); ++i)
    in[i] = in[i].to(i == 0 || i == 3 || i == 4 ? at::kBFloat16 : at::kFloat).requires_grad_();
  const at::Tensor y = scan({0, 3, 7}, {.chunk = 2})(in);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.backward(at::ones_like(y));
  for (const at::Tensor& x : in) EXPECT_EQ(x.grad().scalar_type(), x.scalar_type());
}

// y and the final states as one vector, from inputs and initial states: so that both have gradients.
Operator scan_with_states(const std::vector<std::int64_t>& offsets, const SsdOptions& options) {
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  return [=](const Tensors& in) {
    const SsdOutput out =
        ssd_scan_with_states({in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7]}, options, sequences);
    return at::cat({out.y.flatten().to(out.final_states.scalar_type()), out.final_states.flatten()});
  };
}

Tensors inputs_and_states(std::int64_t tokens, std::int64_t sequences, Shape shape = {}) {
  Tensors in = inputs(tokens, shape);
  in.push_back(random_tensor({sequences, shape.heads, shape.width, shape.state}, 9));
  return in;
}

// The scan of a whole is that of its halves if the second starts from the state that the first one leaves.
Operator scan_in_halves(const std::vector<std::int64_t>& first, const std::vector<std::int64_t>& second,
                        const SsdOptions& options) {
  const PackedSequences before = pack_sequences(first, test_device()), after = pack_sequences(second, test_device());
  return [=](const Tensors& in) {
    const std::int64_t middle = first.back(), end = middle + second.back();
    const auto part = [&](std::int64_t from, std::int64_t to, const at::Tensor& state) {
      return SsdInputs{in[0].slice(0, from, to),
                       in[1].slice(0, from, to),
                       in[2],
                       in[3].slice(0, from, to),
                       in[4].slice(0, from, to),
                       in[5],
                       in[6],
                       state};
    };
    const SsdOutput a = ssd_scan_with_states(part(0, middle, in[7]), options, before);
    const SsdOutput b = ssd_scan_with_states(part(middle, end, a.final_states), options, after);
    return at::cat({a.y.flatten(), b.y.flatten(), b.final_states.flatten()});
  };
}

TEST(SsdScan, PassesStatesBetweenPartsOfASequence) {
  for (const std::int64_t chunk : {1, 2, 3, 100}) {
    SCOPED_TRACE(::testing::Message() << "chunks of " << chunk);
    const SsdOptions options{.chunk = chunk};
    check_gradients(scan_with_states({0, 8}, options), scan_in_halves({0, 5}, {0, 3}, options),
                    inputs_and_states(8, 1, {2, 2, 1, 2}));
    check_gradients(scan_with_states({0, 8}, options), scan_in_halves({0, 0}, {0, 8}, options),
                    inputs_and_states(8, 1, {2, 2, 1, 2}));
  }
}

TEST(SsdScan, EachSequenceHasItsOwnStates) {
  const std::vector<std::int64_t> offsets = {0, 3, 3, 8, 8};
  const Tensors in = inputs_and_states(8, 4);
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  const SsdOutput got =
      ssd_scan_with_states({in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7]}, {.chunk = 2}, sequences);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto part = [&](const at::Tensor& x) { return x.slice(0, offsets[i], offsets[i + 1]); };
    const at::Tensor state = in[7].narrow(0, static_cast<std::int64_t>(i), 1);
    const PackedSequences one = pack_sequences({0, offsets[i + 1] - offsets[i]}, test_device());
    const SsdOutput alone = ssd_scan_with_states(
        {part(in[0]), part(in[1]), in[2], part(in[3]), part(in[4]), in[5], in[6], state}, {.chunk = 2}, one);
    expect_close(part(got.y), alone.y, 1e-14);
    expect_close(got.final_states.narrow(0, static_cast<std::int64_t>(i), 1), alone.final_states, 1e-14);
  }
}

// Sizes that a GPU has a kernel for. It stores factors of products in bf16; the terms of a product have independent
// errors, which add up like the terms do, so that each counts like a rounding of the result. The gradients of A_log and
// dt_bias have most: of a state (decayed x, what a chunk adds, what arrives) and of its gradient (the same three), of
// scores and of the result. The fp32 errors of 256 running steps are below 1% of one of these.
constexpr Roundings kKernelRoundings = {/*in_float=*/256, /*stored=*/3 + 3 + 1 + 1};
constexpr Shape kKernelShape{.heads = 4, .width = 64, .groups = 2, .state = 128};

TEST(SsdScan, KernelSizesInBf16) {
  const std::vector<std::vector<std::int64_t>> packings = {
      {0, 1}, {0, 256}, {0, 0, 1, 18, 18, 147, 403, 404, 404}, {0, 40, 200}};
  for (const std::vector<std::int64_t>& offsets : packings)
    for (const Shape& shape :
         {kKernelShape, Shape{3, 64, 1, 64}, Shape{2, 64, 2, 128}, Shape{12, 64, 2, 128}, Shape{9, 64, 3, 64}}) {
      SCOPED_TRACE(::testing::Message() << offsets.back() << " tokens, " << shape.heads << " heads, state size "
                                        << shape.state);
      check_precision(scan(offsets, {}), inputs(offsets.back(), shape), at::kBFloat16, kKernelRoundings);
    }
}

// With fp32 steps and weights beside bf16 activations, whose rounding dominates.
TEST(SsdScan, FloatStepsInKernelSizes) {
  const std::vector<std::int64_t> offsets = {0, 40, 200};
  Tensors narrow = inputs(200, kKernelShape), wide;
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    narrow[i] = narrow[i].to(i == 0 || i == 3 || i == 4 ? at::kBFloat16 : at::kFloat);
    wide.push_back(narrow[i].to(at::kDouble));
  }
  const at::Tensor grad = random_tensor(narrow[0].sizes(), 8).to(at::kBFloat16);
  const testing::Evaluation got = evaluate(scan(offsets, {}), narrow, grad);
  EXPECT_EQ(got.output.scalar_type(), at::kBFloat16);
  for (std::size_t i = 0; i < narrow.size(); ++i) EXPECT_EQ(got.gradients[i].scalar_type(), narrow[i].scalar_type());
  testing::expect_same_evaluation(got, evaluate(scan(offsets, {}), wide, grad), kKernelRoundings.of(at::kBFloat16));
}

// With fp32 states beside bf16 inputs.
TEST(SsdScan, StatesInKernelSizes) {
  const std::vector<std::int64_t> offsets = {0, 150, 150, 290, 300};
  Tensors narrow = inputs_and_states(300, 4, kKernelShape), wide;
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    narrow[i] = narrow[i].to(i < 7 ? at::kBFloat16 : at::kFloat);
    wide.push_back(narrow[i].to(at::kDouble));
  }
  const Operator op = scan_with_states(offsets, {});
  at::Tensor output;
  {
    at::NoGradGuard guard;
    output = op(wide);
  }
  const std::int64_t y_size = wide[0].numel();
  at::Tensor grad = random_tensor(output.sizes(), 10);
  grad.slice(0, 0, y_size).copy_(grad.slice(0, 0, y_size).to(at::kBFloat16));
  const testing::Evaluation got = evaluate(op, narrow, grad), expected = evaluate(op, wide, grad);
  const double tolerance = kKernelRoundings.of(at::kBFloat16);
  expect_close(got.output.slice(0, 0, y_size), expected.output.slice(0, 0, y_size), tolerance, "y");
  expect_close(got.output.slice(0, y_size), expected.output.slice(0, y_size), tolerance, "final states");
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    EXPECT_EQ(got.gradients[i].scalar_type(), narrow[i].scalar_type());
    expect_close(got.gradients[i], expected.gradients[i], tolerance, "gradient of input " + std::to_string(i));
  }
}

TEST(SsdScan, SizesOfTheRealModelInBf16) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "needs a GPU: it is too much for a CPU";
  check_precision(scan({0, 5000, 8192}, {}), inputs(8192, {.heads = 64, .width = 64, .groups = 8, .state = 128}),
                  at::kBFloat16, kKernelRoundings);
}

// Steps of about 5 with A near -20: nothing survives a few tokens, and sums of a chunk reach -10^4.
TEST(SsdScan, StrongDecaysInKernelSizes) {
  Tensors in = inputs(200, kKernelShape);
  in[1] = in[1] + 5;
  in[2] = in[2] + 3;
  check_precision(scan({0, 200}, {}), in, at::kBFloat16, kKernelRoundings);
}

TEST(SsdScan, ClampedStepsInKernelSizes) {
  check_precision(scan({0, 150}, {.dt_min = 0.5, .dt_max = 1.0}), inputs(150, kKernelShape), at::kBFloat16,
                  kKernelRoundings);
}

// A clamp must not replace NaN by one of its limits.
TEST(SsdScan, KeepsNaNOfATimeStep) {
  Tensors in = inputs(150, kKernelShape);
  in[1].select(0, 5).select(0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  for (at::Tensor& x : in) x = x.to(at::kBFloat16);
  const testing::Evaluation got = evaluate(scan({0, 150}, {.dt_min = 0.5, .dt_max = 1.0}), in, at::ones_like(in[0]));
  EXPECT_TRUE(got.output.select(0, 5).select(0, 1).isnan().all().item<bool>());
  EXPECT_TRUE(got.gradients[1].select(0, 5).select(0, 1).isnan().item<bool>());
}

// The inputs as columns of one wide matrix, and their gradients written into another one's columns: with rows aligned
// to 16 bytes, and not.
TEST(SsdScan, InputsAndGradientsAreColumns) {
  const std::vector<std::int64_t> offsets = {0, 30, 170};
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  const std::int64_t tokens = offsets.back(), x_width = 4 * 64, shared = 2 * 128;
  for (const std::int64_t first : {0, 8, 3}) {
    SCOPED_TRACE(::testing::Message() << "from column " << first);
    const auto columns = [&](const at::Tensor& wide, const Tensors& weights) {
      return SsdInputs{wide.narrow(1, first, x_width).unflatten(1, {4, 64}),
                       wide.narrow(1, first + x_width + 2 * shared, 4),
                       weights[2],
                       wide.narrow(1, first + x_width, shared).unflatten(1, {2, 128}),
                       wide.narrow(1, first + x_width + shared, shared).unflatten(1, {2, 128}),
                       weights[5],
                       weights[6]};
    };
    Tensors weights = inputs(0, kKernelShape);
    for (at::Tensor& weight : weights) weight = weight.to(at::kFloat);
    const at::Tensor wide = random_tensor({tokens, first + x_width + 2 * shared + 4 + first}, 1).to(at::kBFloat16);
    const SsdInputs in = columns(wide, weights);
    const auto dense = [](const at::Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); };
    const SsdInputs copy{dense(in.x), dense(in.dt), in.A_log, dense(in.B), dense(in.C), in.D, in.dt_bias};
    const at::Tensor grad = random_tensor(in.x.sizes(), 2).to(at::kBFloat16);

    const auto [y, states] = ssd_scan_forward(in, {}, sequences);
    const auto [expected_y, expected_states] = ssd_scan_forward(copy, {}, sequences);
    EXPECT_TRUE(at::equal(y, expected_y));
    const SsdInputs expected = ssd_scan_backward(grad, copy, expected_states, {}, sequences);
    Tensors weight_grads;
    for (const at::Tensor& weight : weights) weight_grads.push_back(at::full_like(weight, 7));
    const at::Tensor wide_grad = at::full_like(wide, 7);
    const SsdInputs got = columns(wide_grad, weight_grads);
    ssd_scan_backward_into(grad, in, states, {}, sequences, got);
    EXPECT_TRUE(at::equal(got.x, expected.x) && at::equal(got.dt, expected.dt) &&
                at::equal(got.A_log, expected.A_log) && at::equal(got.B, expected.B) && at::equal(got.C, expected.C) &&
                at::equal(got.D, expected.D) && at::equal(got.dt_bias, expected.dt_bias));
    EXPECT_TRUE(wide_grad.narrow(1, 0, first).eq(7).all().item<bool>());
    EXPECT_TRUE(wide_grad.narrow(1, wide.size(1) - first, first).eq(7).all().item<bool>());
  }
}

TEST(SsdScan, NoTokensInKernelSizes) {
  Tensors in = inputs(0, kKernelShape);
  for (at::Tensor& x : in) x = x.to(at::kBFloat16);
  for (const at::Tensor& gradient : evaluate(scan({0, 0}, {}), in, in[0]).gradients)
    EXPECT_TRUE(gradient.eq(0).all().item<bool>());
}

TEST(SsdScan, GivesTheSameBitsAgain) {
  Tensors in = inputs(300, kKernelShape);
  for (at::Tensor& x : in) x = x.to(at::kBFloat16);
  const auto once = [&] { return evaluate(scan({0, 100, 300}, {}), in, at::ones_like(in[0])); };
  const testing::Evaluation first = once(), again = once();
  EXPECT_TRUE(at::equal(first.output, again.output));
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(at::equal(first.gradients[i], again.gradients[i]));
}

}  // namespace
}  // namespace braid
