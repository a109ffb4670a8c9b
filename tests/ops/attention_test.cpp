#include "ops/attention.h"
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include "ops/gradients.h"
#ifdef BRAID_CUDNN
#include <cuda_runtime_api.h>
#endif

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

constexpr double kScale = 0.4;

struct Heads {
  std::int64_t query = 4, key = 2, width = 3;
};

Tensors inputs(std::int64_t tokens, Heads heads) {
  return {random_tensor({tokens, heads.query, heads.width}, 1), random_tensor({tokens, heads.key, heads.width}, 2),
          random_tensor({tokens, heads.key, heads.width}, 3)};
}

// As a fused projection gives them.
at::Tensor join_groups(const Tensors& q_k_v) {
  const std::int64_t groups = q_k_v[1].size(1);
  return at::cat({q_k_v[0].unflatten(1, {groups, -1}), q_k_v[1].unsqueeze(2), q_k_v[2].unsqueeze(2)}, 2);
}

Operator packed_attention(const std::vector<std::int64_t>& offsets, bool causal) {
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  return [=](const Tensors& in) { return attention(join_groups(in), sequences, causal, kScale); };
}

// One [T, T] matrix for each head.
Operator naive(const std::vector<std::int64_t>& offsets, bool causal) {
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  return [=](const Tensors& in) {
    const at::Tensor& of = sequences.sequence_of;
    at::Tensor hidden = of.unsqueeze(1) != of.unsqueeze(0);
    if (causal) hidden = hidden.logical_or(at::ones_like(hidden).triu(1));
    const std::int64_t sharing = in[0].size(1) / in[1].size(1);
    Tensors heads;
    for (std::int64_t head = 0; head < in[0].size(1); ++head) {
      const at::Tensor q = in[0].select(1, head), k = in[1].select(1, head / sharing);
      const at::Tensor scores =
          at::mm(q, k.t()).mul(kScale).masked_fill(hidden, -std::numeric_limits<double>::infinity());
      heads.push_back(at::mm(scores.softmax(-1), in[2].select(1, head / sharing)));
    }
    return at::stack(heads, 1);
  };
}

void check_all_shapes(bool causal) {
  for (const std::vector<std::int64_t>& offsets :
       {std::vector<std::int64_t>{0, 6}, {0, 0, 3, 4, 4, 9}, {0, 3, 6, 9}, {0, 2, 5, 8, 9}, {0}, {0, 0}})
    for (const Heads& heads : {Heads{1, 1, 4}, Heads{4, 4, 3}, Heads{4, 2, 3}, Heads{3, 1, 2}}) {
      SCOPED_TRACE(::testing::Message() << offsets.size() - 1 << " sequences, " << heads.query << " query heads on "
                                        << heads.key);
      check_gradients(packed_attention(offsets, causal), naive(offsets, causal), inputs(offsets.back(), heads));
    }
}

TEST(Attention, CausalIsItsFormulaInsideEachSequence) { check_all_shapes(/*causal=*/true); }
TEST(Attention, BidirectionalIsItsFormulaInsideEachSequence) { check_all_shapes(/*causal=*/false); }

// Longer than a block of queries, and not a multiple of it.
TEST(Attention, LongSequencesAreTheSameInBlocks) {
  for (const bool causal : {true, false}) {
    const std::vector<std::int64_t> offsets = {0, 600, 601, 900};
    const Tensors in = inputs(900, {4, 2, 8});
    const at::Tensor grad = random_tensor({900, 4, 8}, 4);
    testing::expect_same_evaluation(evaluate(packed_attention(offsets, causal), in, grad),
                                    evaluate(naive(offsets, causal), in, grad), 1e-12);  // see check_gradients
  }
}

// Scores of 10^6 have an error of 10^6 roundings to double, 1e-10, and so, relatively, have their exponentials.
TEST(Attention, HugeScoresDoNotOverflow) {
  Tensors in = inputs(6, {});
  in[0] = in[0] * 1e6;
  expect_close(packed_attention({0, 6}, true)(in), naive({0, 6}, true)(in), 1e-9);
}

// The terms of a score, kScale q k, have a root of squares of about kScale sqrt(width), and up to twice that. Its error
// is the relative error of its probability, which also has those of an exponent of up to 8, of exp (4) and of the sum
// of probabilities. A gradient has it twice, as it contains the output; the other sums are over the keys or the width.
// Stored in bf16: the probabilities, the output, the gradients of scores and the result; and, if query heads share a
// key head, the keys' gradients of each, and their sum.
Roundings attention_roundings(std::int64_t keys, std::int64_t width) {
  const double of_score = testing::random_sum(width, 1) * 2 * kScale * std::sqrt(static_cast<double>(width));
  const double of_probability = of_score + 8 + 4 + testing::positive_sum(keys);
  return {2 * of_probability + testing::random_sum(keys, 1) + 2 * testing::random_sum(width, 1), /*stored=*/4 + 2};
}

TEST(Attention, NarrowTypesAreRoundedAtTheEnds) {
  for (const bool causal : {true, false}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      check_precision(packed_attention({0, 17, 40}, causal), inputs(40, {4, 2, 8}), dtype, attention_roundings(23, 8));
  }
}

// Shapes of real models, which a GPU computes in other ways than small ones: one sequence, equal ones, packed ones; and
// multiples of tiles of 96 keys and 192 queries.
TEST(Attention, RealShapesAreRoundedAtTheEnds) {
  struct Case {
    std::vector<std::int64_t> offsets;
    Heads heads;
  };
  for (const Case& c :
       {Case{{0, 300}, {8, 2, 128}}, Case{{0, 130, 260, 390}, {3, 3, 80}}, Case{{0, 130, 260}, {4, 2, 64}},
        Case{{0, 1, 200, 200, 333, 340}, {8, 2, 128}}, Case{{0, 7, 200, 210}, {3, 3, 80}},
        Case{{0, 0, 1, 200, 1234}, {4, 2, 80}}, Case{{0, 192, 384}, {2, 2, 96}}, Case{{0, 449}, {3, 1, 96}}})
    for (const bool causal : {true, false})
      check_precision(packed_attention(c.offsets, causal), inputs(c.offsets.back(), c.heads), at::kBFloat16,
                      attention_roundings(c.offsets.back(), c.heads.width));
}

// A kernel that moves over the keys meets ever larger scores, in one of the two directions.
TEST(Attention, ScoresMayGrowFromKeyToKey) {
  for (const bool flipped : {false, true}) {
    Tensors in = inputs(900, {2, 2, 80});
    const at::Tensor growth = at::linspace(0.1, 3, 900, in[1].options()).view({900, 1, 1});
    in[1] = in[1] * (flipped ? growth.flip(0) : growth);
    Roundings roundings = attention_roundings(500, 80);
    roundings.in_float *= 3;  // as the keys
    check_precision(packed_attention({0, 400, 900}, /*causal=*/false), in, at::kBFloat16, roundings);
  }
}

TEST(Attention, ReadsHeadsWhereTheyAre) {
  const at::Tensor wider = random_tensor({300, 3, 3, 160}, 1).to(at::kBFloat16);
  const PackedSequences sequences = pack_sequences({0, 100, 300}, test_device());
  const at::Tensor groups = wider.narrow(1, 1, 2).narrow(3, 16, 80);
  EXPECT_TRUE(at::equal(attention(groups, sequences, /*causal=*/false, kScale),
                        attention(groups.contiguous(), sequences, /*causal=*/false, kScale)));
}

#ifdef BRAID_CUDNN
TEST(Attention, HopperHasAKernelForBidirectionalHeadsOf80And96) {
  int major = 0;
  if (test_device().is_cuda()) cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  if (major != 9) GTEST_SKIP() << "needs a Hopper GPU";
  const PackedSequences sequences = pack_sequences({0, 100, 300}, test_device());
  const auto takes_it = [&](std::int64_t width, bool causal) {
    const at::Tensor groups = random_tensor({300, 2, 4, width}, 1).to(at::kBFloat16);
    return attention_forward(groups, sequences, causal, kScale).saved.path == AttentionPath::BraidFlash;
  };
  EXPECT_TRUE(takes_it(80, false));
  EXPECT_TRUE(takes_it(96, false));
  EXPECT_FALSE(takes_it(80, true));
  EXPECT_FALSE(takes_it(64, false));
  EXPECT_FALSE(takes_it(128, false));
}
#endif

// A batch without images must not appear in the log as slow attention.
TEST(Attention, OfNoTokensTakesNoPath) {
  const auto paths_of = [](const std::vector<std::int64_t>& offsets) {
    for (std::atomic<bool>& taken : attention_paths_taken) taken = false;
    packed_attention(offsets, /*causal=*/false)(inputs(offsets.back(), {}));
    return std::count(attention_paths_taken.begin(), attention_paths_taken.end(), true);
  };
  EXPECT_EQ(paths_of({0, 5}), 1);
  EXPECT_EQ(paths_of({0, 0}), 0);
}

TEST(Attention, NothingCrossesABorder) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    Tensors in = inputs(9, {4, 2, 8});
    for (at::Tensor& x : in) x = x.to(dtype);
    at::Tensor grad = at::zeros_like(in[0]);
    grad.slice(0, 4, 7).copy_(random_tensor({3, 4, 8}, 4));  // of the middle sequence
    for (const at::Tensor& gradient : evaluate(packed_attention({0, 4, 7, 9}, false), in, grad).gradients) {
      EXPECT_TRUE(gradient.slice(0, 0, 4).eq(0).all().item<bool>());
      EXPECT_TRUE(gradient.slice(0, 4, 7).ne(0).all().item<bool>());
      EXPECT_TRUE(gradient.slice(0, 7, 9).eq(0).all().item<bool>());
    }
  }
}

TEST(Attention, CausalTokensDoNotSeeWhatComesLater) {
  Tensors in = inputs(6, {});
  const at::Tensor before = packed_attention({0, 6}, true)(in);
  for (at::Tensor& x : in) x = at::cat({x.slice(0, 0, 4), x.slice(0, 4) * -7});
  EXPECT_TRUE(at::equal(packed_attention({0, 6}, true)(in).slice(0, 0, 4), before.slice(0, 0, 4)));
}

TEST(Attention, PackedSequencesAreTheSequencesOneByOne) {
  const Tensors in = inputs(9, {});
  const at::Tensor packed = packed_attention({0, 4, 4, 9}, true)(in);
  const auto alone = [&](std::int64_t begin, std::int64_t end) {
    Tensors part;
    for (const at::Tensor& x : in) part.push_back(x.slice(0, begin, end));
    return packed_attention({0, end - begin}, true)(part);
  };
  EXPECT_TRUE(at::equal(packed.slice(0, 0, 4), alone(0, 4)));
  EXPECT_TRUE(at::equal(packed.slice(0, 4, 9), alone(4, 9)));
}

class Deterministic {
 public:
  Deterministic() { set_deterministic(true); }
  ~Deterministic() { set_deterministic(false); }
};

constexpr c10::DeviceIndex kGpu = 0;

std::int64_t allocated_bytes(bool peak) {
  const auto all_pools = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::accelerator::getDeviceStats(kGpu).allocated_bytes[all_pools];
  return peak ? stats.peak : stats.current;
}

// On a GPU, the deterministic backward of many heads runs in pieces, because each needs much memory. One sequence, with
// keys that heads share and without; equal ones, packed ones. The first and the last group are those of a call for
// themselves.
TEST(Attention, RunsTheDeterministicBackwardInPieces) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "needs a GPU: such long sequences take minutes on a CPU";
  const Deterministic guard;
  struct Case {
    std::vector<std::int64_t> offsets;
    Heads heads;
  };
  for (const Case& c : {Case{{0, 8192}, {32, 8, 128}}, Case{{0, 8192}, {32, 32, 128}},
                        Case{{0, 8192, 16384}, {16, 16, 128}}, Case{{0, 5000, 13192}, {32, 8, 128}}}) {
    SCOPED_TRACE(::testing::Message() << c.offsets.size() - 1 << " sequences, " << c.heads.key << " key heads");
    Tensors in = inputs(c.offsets.back(), c.heads);
    for (at::Tensor& x : in) x = x.to(at::kBFloat16);
    const at::Tensor grad = random_tensor(in[0].sizes(), 4).to(at::kBFloat16);
    const auto op = packed_attention(c.offsets, /*causal=*/true);

    const std::int64_t before = allocated_bytes(/*peak=*/false);
    at::accelerator::resetPeakStats(kGpu);
    const testing::Evaluation all = evaluate(op, in, grad);
    // Besides the workspace: copies of the inputs, the joined groups, the output, and gradients of each.
    const auto tensors = 8 * static_cast<std::int64_t>(in[0].nbytes() + in[1].nbytes() + in[2].nbytes());
    EXPECT_LE(allocated_bytes(/*peak=*/true) - before, (std::int64_t{9} << 28) + tensors);  // 2.25 GiB

    for (const std::int64_t group : {std::int64_t{0}, c.heads.key - 1}) {
      const auto of_group = [&](const at::Tensor& x) {
        const std::int64_t heads = x.size(1) / c.heads.key;
        return x.narrow(1, group * heads, heads).contiguous();
      };
      const testing::Evaluation alone =
          evaluate(op, {of_group(in[0]), of_group(in[1]), of_group(in[2])}, of_group(grad));
      for (std::size_t i = 0; i < in.size(); ++i)
        EXPECT_TRUE(at::equal(of_group(all.gradients[i]), alone.gradients[i])) << "group " << group << ", " << i;
    }
  }
}

TEST(Attention, ComputesGradientsOnlyForWhoWantsThem) {
  check_partial_gradients(packed_attention({0, 3, 7}, true), inputs(7, {}));
}

}  // namespace
}  // namespace braid
