// What the operators along a sequence read about each token, compared with lists written by hand.
#include "ops/packed_sequences.h"
#include <stdexcept>
#include "ops/gradients.h"

namespace braid {
namespace {

using testing::test_device;
using Integers = std::vector<std::int64_t>;

PackedSequences pack(const Integers& offsets) { return pack_sequences(offsets, test_device()); }

void expect_numbers(const at::Tensor& got, const Integers& expected, at::ScalarType dtype) {
  EXPECT_EQ(got.device().type(), test_device().type());
  EXPECT_EQ(got.scalar_type(), dtype);
  EXPECT_TRUE(at::equal(got.cpu(), at::tensor(expected, dtype))) << got;
}

void check(const Integers& offsets, const Integers& sequence_of, const Integers& position_of, std::int64_t max_length) {
  SCOPED_TRACE(::testing::Message() << offsets.size() << " offsets to " << offsets.back());
  const PackedSequences got = pack(offsets);
  EXPECT_EQ(got.offsets, offsets);
  expect_numbers(got.cu_seqlens, offsets, at::kInt);
  expect_numbers(got.sequence_of, sequence_of, at::kLong);
  expect_numbers(got.position_of, position_of, at::kLong);
  EXPECT_EQ(got.max_length, max_length);
}

// An odd number of offsets leaves a gap before the int64 numbers, an even one none.
TEST(PackedSequences, SayOfEachTokenItsSequenceAndPosition) {
  check({0, 0, 3, 3, 5}, {1, 1, 1, 3, 3}, {0, 1, 2, 0, 1}, 3);
  check({0, 2}, {0, 0}, {0, 1}, 2);
}

TEST(PackedSequences, MayHaveNoTokens) {
  for (const Integers& offsets : {Integers{0}, Integers{0, 0}}) {
    check(offsets, {}, {}, 0);
    EXPECT_EQ(pack(offsets).chunks.sizes(), at::IntArrayRef({0, 4}));
  }
}

TEST(PackedSequences, ChunksStayInsideSequences) {
  const at::Tensor expected = at::tensor({0, 128, 0, 1, 128, 2, 0, 2, 130, 128, 2, 3, 258, 1, 3, 3}, at::kInt);
  const at::Tensor chunks = pack({0, 130, 130, 258, 259}).chunks;
  EXPECT_EQ(chunks.device().type(), test_device().type());
  EXPECT_TRUE(at::equal(chunks.cpu(), expected.view({4, 4}))) << chunks;
}

TEST(PackedSequences, NeedOffsetsThatStartAtZeroAndNeverDecrease) {
  for (const Integers& offsets : {Integers{}, Integers{1, 2}, Integers{0, 3, 2}})
    EXPECT_THROW(pack(offsets), std::logic_error);
}

}  // namespace
}  // namespace braid
