#include "base/worker_pool.h"
#include <gtest/gtest.h>
#include <stdexcept>

namespace braid {
namespace {

TEST(WorkerPool, DoesEveryItemOnceInManyRounds) {
  for (const int threads : {1, 2, 4}) {
    WorkerPool pool(threads);
    for (std::size_t count = 0; count < 200; ++count) {
      std::vector<std::atomic<int>> done(count);
      pool.run(count, [&](std::size_t i) { ++done[i]; });
      for (const auto& times : done) EXPECT_EQ(times, 1);
    }
  }
}

TEST(WorkerPool, ThrowsTheFirstExceptionByIndexAndGoesOn) {
  WorkerPool pool(4);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> done = 0;
    try {
      pool.run(40, [&](std::size_t i) {
        ++done;
        if (i % 8 == 5) throw std::runtime_error(std::to_string(i));
      });
      ADD_FAILURE() << "no exception";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "5");
    }
    EXPECT_EQ(done, 40) << "the other items are done";
  }
}

TEST(WorkerPool, MayBeDestroyedUnused) {
  for (int round = 0; round < 50; ++round) WorkerPool pool(4);
}

}  // namespace
}  // namespace braid
