#include "ops/product.h"

#include <chrono>
#include <cmath>
#include <thread>

#include "ops/gradients.h"

namespace braid {
namespace {

using namespace testing;

// On a GPU, the algorithm of a shape that is used for so long is chosen meanwhile.
constexpr int kUses = 6;
constexpr auto kPause = std::chrono::milliseconds(110);

// The same matrix, stored by rows or by columns.
std::vector<at::Tensor> stored_both_ways(const at::Tensor& x) { return {x, x.t().contiguous().t()}; }

TEST(Product, IsItsFormulaForEveryStorage) {
  for (const auto& [rows, depth, columns] : {std::tuple{264, 72, 520}, {1, 8, 8}, {40, 24, 13}, {0, 8, 8}})
    for (const at::Tensor& a : stored_both_ways(random_tensor({rows, depth}, 1).to(at::kBFloat16)))
      for (const at::Tensor& b : stored_both_ways(random_tensor({depth, columns}, 2).to(at::kBFloat16)))
        for (const at::Tensor& bias : {random_tensor({columns}, 3).to(at::kBFloat16), at::Tensor()}) {
          const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
          // Sums in float are far more exact than the result, which is rounded once, or twice with a bias.
          expect_close(product(a, b, bias), bias.defined() ? exact + bias : exact, 1.1 * epsilon_of(at::kBFloat16));
        }
}

TEST(Product, HasTheSameBitsInEveryUse) {
  const at::Tensor a = random_tensor({2056, 136}, 1).to(at::kBFloat16), b = random_tensor({520, 136}, 2).to(a.dtype());
  const at::Tensor first = product(a, b.t());
  for (int i = 1; i < kUses; ++i) {
    if (a.is_cuda()) std::this_thread::sleep_for(kPause);
    EXPECT_TRUE(at::equal(product(a, b.t()), first));
  }
}

// GELU and its slope change a result by less than 1.13 times the change of their argument, or 0.9 times.
TEST(Product, MayEndInAGeluOrItsSlope) {
  for (const GeluForm form : {GeluForm::Tanh, GeluForm::Erf})
    for (const auto& [rows, depth, columns] : {std::tuple{264, 72, 520}, {1, 8, 8}, {40, 24, 13}, {0, 8, 8}})
      for (const at::Tensor& bias : {random_tensor({columns}, 3).to(at::kBFloat16), at::Tensor()}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        const at::Tensor a = random_tensor({rows, depth}, 1).div(std::sqrt(depth)).to(at::kBFloat16);
        const at::Tensor b = random_tensor({columns, depth}, 2).to(at::kBFloat16).t();
        const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
        const at::Tensor exact_inner = bias.defined() ? exact + bias : exact;
        const auto [inner, activated] = product_with_gelu(a, b, bias, form);
        expect_close(inner, exact_inner, 1.1 * epsilon_of(at::kBFloat16));
        expect_close(activated, gelu_forward(exact_inner, form), 1.2 * epsilon_of(at::kBFloat16));
        const at::Tensor got = product_times_gelu_slope(a, b, inner, form);
        expect_close(got, gelu_backward(exact, inner.to(at::kDouble), form), 1.2 * epsilon_of(at::kBFloat16));
      }
}

TEST(Product, IsAddedToASum) {
  const at::Tensor a = random_tensor({264, 72}, 1).to(at::kBFloat16), b = random_tensor({72, 520}, 2).to(at::kBFloat16);
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  const at::Tensor memory = at::empty({264 * 520 + 4}, a.options().dtype(at::kFloat));
  for (const int first : {0, 4, 1}) {  // aligned to a block of memory, to a vector, to nothing
    const at::Tensor sum = memory.narrow(0, first, 264 * 520).view({264, 520});
    for (int i = 0; i < kUses; ++i) add_product(sum, a, b, /*is_first=*/i == 0);
    expect_close(sum, kUses * exact, 2 * kUses * epsilon_of(at::kFloat));
  }
}

}  // namespace
}  // namespace braid
