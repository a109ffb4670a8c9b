// The experts' linear maps against a loop of plain ones, with gradients in a bucket: output, gradient of the rows, and
// the sum over several backwards, which must stay where the optimizer put it.
#include <ATen/ATen.h>
#include <stdexcept>
#include "nn/linear.h"
#include "ops/gradients.h"
#include "support/expert_rows.h"

namespace braid {
namespace {

using namespace testing;
using Counts = std::vector<std::int64_t>;

constexpr std::int64_t kExperts = 4, kOut = 16, kIn = 8, kSize = kExperts * kOut * kIn, kOffset = 24;
constexpr int kMicrobatches = 3;

ParamSpec spec_of(int tp_dim, bool expert = true) {
  return {.name = "fc.weight",
          .shape = {kExperts, kOut, kIn},
          .tp_dim = tp_dim,
          .expert = expert,
          .init = {.kind = InitRule::Normal, .scale = 1}};
}

// A bucket that holds other gradients before and after the experts'.
struct Bucket {
  Bucket(const Parameters& parameters, at::ScalarType dtype)
      : flat(at::full({kOffset + kSize + 8}, 7, at::TensorOptions(dtype))),
        sum(flat.narrow(0, kOffset, kSize).view({kExperts, kOut, kIn}).zero_()) {
    parameters.entries()[0].gradient->value = sum;
    parameters.entries()[0].gradient->added = [this] { ++additions; };
  }
  at::Tensor flat, sum;
  int additions = 0;
};

// The sum has the roundings of its dtype: of products of up to 9 rows in each microbatch.
void check_against_plain_linears(const Counts& counts, at::ScalarType dtype, double tolerance) {
  SCOPED_TRACE(::testing::Message() << counts[0] << " rows for the first expert, " << dtype);
  Parameters parameters({spec_of(1)}, 0, {}, dtype, at::kCPU);
  parameters.initialize(3);
  Bucket bucket(parameters, dtype == at::kDouble ? at::kDouble : at::kFloat);
  const void* const storage = bucket.sum.data_ptr();
  const GroupedLinear fc(parameters, "fc.", Split::Columns);

  const at::Tensor weights = parameters.get("fc.weight").detach().to(at::kDouble);
  at::Tensor expected_sum = at::zeros_like(weights);
  for (std::uint64_t microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const at::Tensor rows = random_tensor({total, kIn}, microbatch).to(dtype).requires_grad_();
    const at::Tensor grad = random_tensor({total, kOut}, microbatch + 10).to(dtype);
    const at::Tensor y = fc(rows, expert_rows(counts, at::kCPU));
    y.backward(grad);
    ASSERT_EQ(y.sizes(), at::IntArrayRef({total, kOut}));
    std::int64_t begin = 0;
    for (std::int64_t expert = 0; expert < kExperts; begin += counts[static_cast<std::size_t>(expert++)]) {
      const auto own = [&](const at::Tensor& all) {
        return all.detach().to(at::kDouble).narrow(0, begin, counts[static_cast<std::size_t>(expert)]);
      };
      expect_close(own(y), at::linear(own(rows), weights[expert]), tolerance, "output");
      expect_close(own(rows.grad()), own(grad).mm(weights[expert]), tolerance, "gradient of the rows");
      expected_sum[expert] += own(grad).t().mm(own(rows));
    }
  }
  EXPECT_EQ(bucket.additions, kMicrobatches);
  const double sum_tolerance = random_sum(9 * kMicrobatches, /*of_term=*/1) * epsilon_of(bucket.sum.scalar_type()) / 2;
  EXPECT_FALSE(parameters.get("fc.weight").grad().defined());
  EXPECT_EQ(parameters.entries()[0].gradient->value.data_ptr(), storage);
  expect_close(bucket.flat.narrow(0, kOffset, kSize).view_as(expected_sum), expected_sum, sum_tolerance,
               "sum, not rounded to the rows' dtype");
  EXPECT_TRUE((bucket.flat.narrow(0, 0, kOffset) == 7).all().item<bool>());
  EXPECT_TRUE((bucket.flat.narrow(0, kOffset + kSize, 8) == 7).all().item<bool>());
}

TEST(GroupedLinearLayer, IsALoopOfPlainLinears) {
  for (const Counts& counts : {Counts{3, 1, 2, 5}, Counts{0, 6, 0, 1}, Counts{0, 0, 0, 9}, Counts{0, 0, 0, 0}}) {
    check_against_plain_linears(counts, at::kDouble, 1e-14);
    check_against_plain_linears(counts, at::kBFloat16, Roundings{product_sum(std::max(kIn, kOut))}.of(at::kBFloat16));
  }
}

// With a wrong split, combine() would sum output features, or leave partial sums apart.
TEST(GroupedLinearLayer, RefusesAWeightOfAnotherSplit) {
  const auto make = [](const ParamSpec& spec, Split split) {
    return GroupedLinear(Parameters({spec}, 0, {}, at::kFloat, at::kCPU), "fc.", split);
  };
  EXPECT_NO_THROW(make(spec_of(1), Split::Columns));
  EXPECT_NO_THROW(make(spec_of(2), Split::Rows));
  EXPECT_THROW(make(spec_of(2), Split::Columns), std::logic_error);
  EXPECT_THROW(make(spec_of(1), Split::Rows), std::logic_error);
  EXPECT_THROW(make(spec_of(1, /*expert=*/false), Split::Columns), std::logic_error);
}

}  // namespace
}  // namespace braid
