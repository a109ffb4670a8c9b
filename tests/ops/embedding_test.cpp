// Looking up ids in slices of a vocabulary. The oracle looks them up in the whole.
#include "ops/gradients.h"
#include "ops/rows.h"

namespace braid {
namespace {

using namespace testing;

at::Tensor integers(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong).to(test_device()); }

Operator looked_up(const VocabularyShard& shard = {}) {
  return [shard](const Tensors& in) { return embedding(in[0], {in[1]}, shard); };
}

TEST(Embedding, IsItsRowsForwardAndBackward) {
  const Tensors inputs = {integers({3, 0, 7, 3, 3, 7}), random_tensor({8, 5}, 1)};
  check_gradients(
      looked_up(), [](const Tensors& in) { return in[1].index_select(0, in[0]); }, inputs);
  check_partial_gradients(looked_up(), inputs);
}

TEST(Embedding, OfAShardIsZeroForTheIdsOfOthers) {
  const at::Tensor ids = integers({3, 0, 7, 3, 4, 7}), whole = random_tensor({8, 5}, 1);
  for (const std::int64_t index : {0, 1}) {
    const at::Tensor own = (ids.div(4, "floor") == index).to(at::kDouble).unsqueeze(1);
    const auto naive = [&](const Tensors& in) { return in[1].index_select(0, in[0].remainder(4)) * own; };
    check_gradients(looked_up({index, 2}), naive, {ids, whole.narrow(0, 4 * index, 4)});
  }
}

TEST(Embedding, OfAnIdOutsideTheVocabularyIsNotANumber) {
  const at::Tensor ids = integers({0, 8, -1, 7, 1 << 20}), whole = random_tensor({8, 5}, 1);
  for (const VocabularyShard& shard : {VocabularyShard{0, 1}, VocabularyShard{0, 2}, VocabularyShard{1, 2}}) {
    const at::Tensor weight = whole.chunk(shard.count)[shard.index].clone().requires_grad_();
    const at::Tensor rows = embedding(ids, {weight}, shard), is_bad = (ids < 0).logical_or(ids >= 8);
    EXPECT_TRUE(at::equal(rows.isnan().all(1), is_bad));
    EXPECT_TRUE(at::equal(rows.isnan().any(1), is_bad));
    rows.sum().backward();
    EXPECT_EQ(weight.grad().sum().item<double>(), shard.count == 1 ? 10 : 5) << "bad ids have no gradient";
  }
}

// Each microbatch rounds a sum that is not yet the whole, after up to three terms of its own are added. A sum rounded
// to bf16 would be off by hundreds of times the tolerance. All but three rows stay untouched.
TEST(Embedding, AddsItsGradientToTheRowsOfASum) {
  constexpr int kMicrobatches = 20;
  const at::Tensor ids = integers({3, 0, 7, 3, 3, 7}), grad = random_tensor({6, 5}, 2).to(at::kBFloat16);
  const Weight weight = {random_tensor({8, 5}, 1).to(at::kBFloat16).requires_grad_()};
  weight.sum->value = at::full({8, 5}, 0.5, grad.options().dtype(at::kFloat));
  int additions = 0;
  weight.sum->added = [&] { ++additions; };
  for (int i = 0; i < kMicrobatches; ++i) embedding(ids, weight, {}).backward(grad);
  EXPECT_EQ(additions, kMicrobatches);
  EXPECT_FALSE(weight.value.grad().defined());
  const at::Tensor once = at::zeros({8, 5}, grad.options().dtype(at::kDouble)).index_add(0, ids, grad.to(at::kDouble));
  const at::Tensor terms =
      at::zeros({8, 5}, grad.options().dtype(at::kDouble)).index_add(0, ids, grad.to(at::kDouble).square()).sqrt();
  expect_close(weight.sum->value, 0.5 + kMicrobatches * once, Roundings{kMicrobatches + random_sum(3)}, "sum",
               kMicrobatches * terms);
  EXPECT_EQ((weight.sum->value == 0.5).all(1).sum().item<std::int64_t>(), 5);
}

// Ids that differ, that are all equal, and long and short runs of equal ones; rows of any width.
TEST(Embedding, SumsAnyNumberOfEqualIds) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const std::int64_t tokens : {1, 32, 33, 500})
      for (const std::int64_t width : {5, 264})
        for (const std::int64_t different : {1, 3, 97}) {
          const at::Tensor mixed = at::arange(tokens, at::kLong).to(test_device()).mul(7919).remainder(977);
          const at::Tensor ids = at::where(mixed.remainder(3) == 0, mixed.remainder(89), mixed.remainder(different));
          const at::Tensor grad = random_tensor({tokens, width}, 2).to(dtype);
          const Weight weight = {random_tensor({100, width}, 1).to(dtype).requires_grad_()};
          weight.sum->value = at::ones_like(weight.value, at::kFloat);
          embedding(ids, weight, {0, 2}).backward(grad);
          const at::Tensor zeros = at::zeros({100, width}, grad.options().dtype(at::kDouble)),
                           exact = zeros.index_add(0, ids, grad.to(at::kDouble)),
                           squares = zeros.index_add(0, ids, grad.to(at::kDouble).square());
          const Roundings roundings = {random_sum(tokens + 1)};
          expect_close(weight.sum->value, 1 + exact, roundings, "sum", (1 + squares).sqrt());
          if (dtype == at::kBFloat16 && test_device().is_cpu()) continue;  // there it sums in bf16
          weight.sum->value = at::Tensor();
          embedding(ids, weight, {0, 2}).backward(grad);
          expect_close(weight.value.grad(), exact, roundings, "gradient", squares.sqrt());
        }
}

TEST(Embedding, OfNoIdsIsEmpty) {
  for (const bool with_sum : {false, true}) {
    const Weight weight = {random_tensor({8, 5}, 1).requires_grad_()};
    if (with_sum) weight.sum->value = at::zeros_like(weight.value);
    const at::Tensor rows = embedding(integers({}), weight, {});
    EXPECT_EQ(rows.sizes(), at::IntArrayRef({0, 5}));
    rows.sum().backward();
    const at::Tensor gradient = with_sum ? weight.sum->value : weight.value.grad();
    EXPECT_EQ(gradient.abs().sum().item<double>(), 0);
  }
}

}  // namespace
}  // namespace braid
