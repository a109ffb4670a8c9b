// Batches come in order whatever the reader's pace; errors come in place of their batch; nothing is read without bound.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include "data/batches/batch.h"

namespace braid {
namespace {

constexpr std::int64_t kTokens = 10, kBytes = 2 * 8 * kTokens;

struct Counts {
  std::atomic<int> started = 0, finished = 0;
};

ReadAhead<LanguageBatch> reader_of(Counts& counts, std::size_t ahead, std::int64_t most_bytes = 1 << 20,
                                   int fails_at = -1) {
  const auto count = [&counts, fails_at]() -> LanguageBatch {
    const int number = counts.started++;
    if (number == fails_at) throw std::runtime_error("batch " + std::to_string(number));
    const at::Tensor tokens = at::full({kTokens}, number, at::kLong);
    ++counts.finished;
    return {.ids = tokens, .labels = tokens, .offsets = {0, kTokens}};
  };
  return {count, ahead, most_bytes, false};
}

std::int64_t number_of(const LanguageBatch& batch) { return batch.ids[0].item<std::int64_t>(); }

// Returns when the reader has finished `count` batches; fails if it finishes more in a while.
void expect_to_stop_at(const Counts& counts, int count) {
  while (counts.finished < count) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(counts.finished, count);
}

TEST(ReadAhead, KeepsTheOrderAndTheLimits) {
  Counts counts;
  ReadAhead<LanguageBatch> reader = reader_of(counts, 3);
  expect_to_stop_at(counts, 3);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(number_of(reader.next()), i);

  Counts by_bytes;
  ReadAhead<LanguageBatch> small = reader_of(by_bytes, 100, 2 * kBytes);
  expect_to_stop_at(by_bytes, 2);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(number_of(small.next()), i);

  Counts of_large;  // a batch that exceeds the limit alone still comes
  ReadAhead<LanguageBatch> large = reader_of(of_large, 100, 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(number_of(large.next()), i);
}

TEST(ReadAhead, ThrowsAnErrorInPlaceOfItsBatch) {
  Counts counts;
  ReadAhead<LanguageBatch> reader = reader_of(counts, 8, 1 << 20, 2);
  EXPECT_EQ(number_of(reader.next()), 0);
  EXPECT_EQ(number_of(reader.next()), 1);
  for (int again = 0; again < 2; ++again) EXPECT_THROW(reader.next(), std::runtime_error);
}

TEST(ReadAhead, EndsWhileItsReaderIsAhead) {
  Counts counts;
  {
    ReadAhead<LanguageBatch> reader = reader_of(counts, 2);
    expect_to_stop_at(counts, 2);
  }
  EXPECT_LE(counts.started, 3);
}

}  // namespace
}  // namespace braid
