#include "ops/gradients.h"
#include "ops/rows.h"

namespace braid {
namespace {

using namespace testing;

constexpr Roundings kNoRounding = {0, /*stored=*/0};

at::Tensor op(const Tensors& in) { return select_rows(in[0], in[1]); }
at::Tensor naive(const Tensors& in) { return in[0].index({in[1]}); }

TEST(SelectRows, OfManyRows) {
  const at::Tensor rows = at::randperm(300, at::kLong).narrow(0, 0, 170).to(test_device());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    check_precision(op, {random_tensor({300, 72}, 2), rows}, dtype, kNoRounding);
}

TEST(SelectRows, IsIndexingForwardAndBackward) {
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{4, 0, 2}, {}, {0, 1, 2, 3, 4}}) {
    const Tensors inputs = {random_tensor({5, 3}, 1), at::tensor(rows, at::kLong).to(test_device())};
    check_gradients(op, naive, inputs);
    check_partial_gradients(op, inputs);
    check_precision(op, inputs, at::kBFloat16, kNoRounding);
  }
}

}  // namespace
}  // namespace braid
