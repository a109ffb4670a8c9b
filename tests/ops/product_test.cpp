#include "ops/gradients.h"
#include "ops/linear.h"

namespace braid {
namespace {

using namespace testing;

constexpr int kUses = 6;

// Of a product of random factors, plus a bias if there is one. cuBLAS may store the product, or parts of its sum, in
// bf16 before it adds the bias.
double product_error(const at::Tensor& exact, const at::Tensor& with_bias, std::int64_t depth) {
  const Roundings before = {product_sum(depth)}, after = {0};
  return before.of(at::kBFloat16) * largest_magnitude(exact) + after.of(at::kBFloat16) * largest_magnitude(with_bias);
}

// The same matrix, stored by rows or by columns.
std::vector<at::Tensor> stored_both_ways(const at::Tensor& x) { return {x, x.t().contiguous().t()}; }

TEST(Product, IsItsFormulaForEveryStorage) {
  for (const auto& [rows, depth, columns] : {std::tuple{264, 72, 520}, {1, 8, 8}, {40, 24, 13}, {0, 8, 8}})
    for (const at::Tensor& a : stored_both_ways(random_tensor({rows, depth}, 1).to(at::kBFloat16)))
      for (const at::Tensor& b : stored_both_ways(random_tensor({depth, columns}, 2).to(at::kBFloat16)))
        for (const at::Tensor& bias : {random_tensor({columns}, 3).to(at::kBFloat16), at::Tensor()}) {
          const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
          const at::Tensor expected = bias.defined() ? exact + bias : exact;
          expect_within(product(a, b, bias), expected, product_error(exact, expected, depth));
        }
}

// Of rows of a larger tensor, into rows of another one.
TEST(Product, OfSeveralMatricesIsThatOfEach) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16})
    for (const at::Tensor& bias : {random_tensor({40}, 3).to(dtype), at::Tensor()}) {
      const at::Tensor a = random_tensor({3, 20, 24}, 1).to(dtype).narrow(1, 5, 9);
      const at::Tensor b = random_tensor({40, 24}, 2).to(dtype).t();
      const at::Tensor all = at::full({3, 30, 40}, 7, a.options()), rows = all.narrow(1, 11, 9);
      products(a, b, bias, rows);
      for (std::int64_t i = 0; i < 3; ++i) {
        const at::Tensor exact = a[i].to(at::kDouble).mm(b.to(at::kDouble));
        const at::Tensor expected = bias.defined() ? exact + bias : exact;
        expect_within(rows[i], expected, product_error(exact, expected, 24));
      }
      EXPECT_TRUE(at::equal(products(a, b, bias), rows));
      EXPECT_TRUE((all.narrow(1, 0, 11) == 7).all().item<bool>());
      EXPECT_TRUE((all.narrow(1, 20, 10) == 7).all().item<bool>());
    }
}

TEST(Product, HasTheSameBitsInEveryUse) {
  const at::Tensor a = random_tensor({2056, 136}, 1).to(at::kBFloat16), b = random_tensor({520, 136}, 2).to(a.dtype());
  const at::Tensor first = product(a, b.t());
  for (int i = 1; i < kUses; ++i) EXPECT_TRUE(at::equal(product(a, b.t()), first));
}

// The slope of GELU is below 1.13: it multiplies the error of its argument, or of the product, if that is stored
// before. The result is rounded once more. Errors of GELU itself in fp32 are far smaller, as those of the sums.
TEST(Product, MayEndInAGeluOrItsSlope) {
  for (const Activation form : {Activation::GeluTanh, Activation::GeluErf})
    for (const auto& [rows, depth, columns] : {std::tuple{264, 72, 520}, {1, 8, 8}, {40, 24, 13}, {0, 8, 8}})
      for (const at::Tensor& bias : {random_tensor({columns}, 3).to(at::kBFloat16), at::Tensor()}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        const at::Tensor a = random_tensor({rows, depth}, 1).div(std::sqrt(depth)).to(at::kBFloat16);
        const at::Tensor b = random_tensor({columns, depth}, 2).to(at::kBFloat16).t();
        const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
        const at::Tensor exact_inner = bias.defined() ? exact + bias : exact;
        const auto [inner, activated] = product_with_gelu(a, b, bias, form);
        const double of_inner = product_error(exact, exact_inner, depth),
                     of_product = product_error(exact, exact, depth);
        const auto expect_stored = [](const at::Tensor& got, const at::Tensor& expected, double before) {
          const Roundings roundings = {slope_of_tanh_gate()};
          expect_within(got, expected, 1.13 * before + roundings.of(at::kBFloat16) * largest_magnitude(expected));
        };
        expect_within(inner, exact_inner, of_inner);
        expect_stored(activated, activation(exact_inner, form), of_inner);
        const at::Tensor got = product_times_gelu_slope(a, b, inner, form);
        expect_stored(got, activation_backward(exact, inner.to(at::kDouble), form), of_product);
      }
}

TEST(Product, IsAddedToASum) {
  const at::Tensor a = random_tensor({264, 72}, 1).to(at::kBFloat16), b = random_tensor({72, 520}, 2).to(at::kBFloat16);
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  const at::Tensor memory = at::empty({264 * 520 + 4}, a.options().dtype(at::kFloat));
  for (const int first : {0, 4, 1}) {  // aligned to a block of memory, to a vector, to nothing
    const at::Tensor sum = memory.narrow(0, first, 264 * 520).view({264, 520});
    for (int i = 0; i < kUses; ++i) add_product(sum, a, b, /*is_first=*/i == 0);
    // Each use rounds a sum that is not yet the whole, and adds the same product, with the same error.
    expect_close(sum, kUses * exact, Roundings{kUses + product_sum(72)});
  }
}

}  // namespace
}  // namespace braid
