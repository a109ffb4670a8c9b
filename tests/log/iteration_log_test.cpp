#include "log/iteration_log.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

using std::chrono::milliseconds;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Lines have local times; these tests use an unusual time zone, so that a mix-up with UTC would show.
class IterationLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* zone = std::getenv("TZ")) usual_zone_ = zone;
    set_zone("NST+3:30");
  }
  void TearDown() override { set_zone(usual_zone_); }

  static void set_zone(const std::optional<std::string>& zone) {
    zone ? ::setenv("TZ", zone->c_str(), 1) : ::unsetenv("TZ");
    ::tzset();
  }

  // 2026-11-15 03:02:04.003760 UTC, and the same moment some time later.
  static Moment after(int ms) {
    const auto wall = std::chrono::system_clock::from_time_t(1794711724) + std::chrono::microseconds(3760);
    return {std::chrono::steady_clock::time_point(milliseconds(ms)), wall + milliseconds(ms)};
  }

 private:
  std::optional<std::string> usual_zone_;
};

TEST_F(IterationLogTest, IterationsWithNothingToPredictHaveNoPartInTheLoss) {
  IterationLog log({.iterations = 100}, 3, after(0));
  const auto step = [&](int iteration, std::optional<double> loss) {
    return log.add({.iteration = iteration, .lm_loss = loss}, after(100 * iteration));
  };
  step(1, 4.0);
  step(2, std::nullopt);
  const auto some = step(3, 2.0);
  ASSERT_TRUE(some);
  EXPECT_EQ(some->step.lm_loss, 3.0);
  EXPECT_EQ(some->nan_iterations, 0);
  EXPECT_THAT(to_line(*some), ::testing::EndsWith("nan iterations:   0 | iterations with nothing to predict:   1 |"));
  step(4, 2.0);
  step(5, 2.0);
  EXPECT_THAT(to_line(*step(6, 2.0)), ::testing::EndsWith("number of nan iterations:   0 |"));
  for (const int iteration : {7, 8}) step(iteration, std::nullopt);
  EXPECT_THAT(to_line(*step(9, std::nullopt)),
              ::testing::AllOf(::testing::Not(::testing::HasSubstr("lm loss")),
                               ::testing::EndsWith("iterations with nothing to predict:   3 |")));
}

TEST_F(IterationLogTest, TheWholeLine) {
  const IterationRecord record = {.step = {.iteration = 20,
                                           .consumed_samples = 640,
                                           .learning_rate = 2e-5,
                                           .lm_loss = 0.3395549,
                                           .loss_scale = 1,
                                           .grad_norm = 1.2345,
                                           .num_zeros = 42,
                                           .seq_load_balancing_loss = 1.0625},
                                  .time = after(0).wall,
                                  .iterations = 200,
                                  .elapsed_ms = 1234.56,
                                  .tflops_per_device = 345.67,
                                  .tokens_per_device = 65536,
                                  .global_batch = 32,
                                  .skipped_iterations = 1,
                                  .nan_iterations = 2};
  EXPECT_EQ(to_line(record),
            " [2026-11-14 23:32:04.003760] iteration       20/     200 | consumed samples:          640 | elapsed time "
            "per iteration (ms): 1234.6 | throughput per GPU (TFLOP/s/GPU): 345.7 | tokens per GPU (tokens/s/GPU): "
            "65536.0 | learning rate: 2.000000E-05 | global batch size:    32 | lm loss: 3.395549E-01 | "
            "seq_load_balancing_loss: 1.062500E+00 | loss scale: 1.0 | grad norm: 1.234 | num zeros: 42 | number of "
            "skipped iterations:   1 | number of nan iterations:   2 |");
}

TEST_F(IterationLogTest, OptionalPartsAreLeftOut) {
  EXPECT_EQ(
      to_line(
          {.step = {.iteration = 1, .consumed_samples = 3}, .time = after(0).wall, .iterations = 2, .global_batch = 4}),
      " [2026-11-14 23:32:04.003760] iteration        1/       2 | consumed samples:            3 | elapsed time "
      "per iteration (ms): 0.0 | global batch size:     4 | loss scale: 1.0 | number of skipped iterations:   0 | "
      "number of nan iterations:   0 |");
}

TEST_F(IterationLogTest, ARecordAtEachIntervalAndAfterTheLastIteration) {
  IterationLog log({.iterations = 7, .global_batch = 8}, 3, after(0));
  std::vector<std::int64_t> recorded;
  for (int iteration = 1; iteration <= 7; ++iteration)
    if (log.add({.iteration = iteration}, after(iteration))) recorded.push_back(iteration);
  EXPECT_THAT(recorded, ::testing::ElementsAre(3, 6, 7));
}

TEST_F(IterationLogTest, ARunThatEndsEarlyHasARecordOfItsLastIteration) {
  IterationLog log({.iterations = 100, .global_batch = 8}, 10, after(0));
  EXPECT_FALSE(log.add({.iteration = 11, .lm_loss = 4}, after(100)));
  const auto record = log.add({.iteration = 12, .lm_loss = 2, .last = true}, after(200));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->step.lm_loss, 3);
  EXPECT_EQ(record->elapsed_ms, 100);
}

TEST_F(IterationLogTest, AnIntervalIsClosedOnceIfItHasIterations) {
  IterationLog log({.iterations = 100, .global_batch = 8}, 10, after(0));
  log.add({.iteration = 11, .lm_loss = 4}, after(100));
  log.leave_out(milliseconds(5000));
  const auto record = log.close(after(5100));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->step.iteration, 11);
  EXPECT_EQ(record->step.lm_loss, 4);
  EXPECT_EQ(record->elapsed_ms, 100);
  EXPECT_FALSE(log.close(after(5200)));
}

// 3e12 operations and 600 tokens an iteration, on 4 ranks: two iterations in half a second.
TEST_F(IterationLogTest, ThroughputIsPerSecondAndRank) {
  IterationLog log({.iterations = 8, .global_batch = 8, .ranks = 4, .flops_per_iteration = 3e12}, 2, after(0));
  log.add({.iteration = 1, .num_tokens = 500}, after(100));
  const auto record = log.add({.iteration = 2, .num_tokens = 700}, after(500));
  ASSERT_TRUE(record);
  EXPECT_DOUBLE_EQ(record->tflops_per_device.value(), 2 * 3 / 0.5 / 4);
  EXPECT_DOUBLE_EQ(record->tokens_per_device.value(), 1200 / 0.5 / 4);
}

TEST_F(IterationLogTest, AnIntervalIsSummedUp) {
  IterationLog log({.iterations = 8, .global_batch = 8}, 4, after(0));
  log.add({.iteration = 1, .lm_loss = 4, .seq_load_balancing_loss = 1}, after(100));
  log.add({.iteration = 2, .lm_loss = kNan, .seq_load_balancing_loss = kNan}, after(200));
  log.add({.iteration = 3, .lm_loss = 100, .seq_load_balancing_loss = 100, .skipped = true}, after(300));
  const auto record = log.add({.iteration = 4,
                               .consumed_samples = 32,
                               .learning_rate = 0.5,
                               .lm_loss = 2,
                               .loss_scale = 16,
                               .grad_norm = 7,
                               .num_zeros = 9,
                               .seq_load_balancing_loss = 2},
                              after(500));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->time, after(500).wall);
  EXPECT_EQ(record->step.iteration, 4);
  EXPECT_EQ(record->iterations, 8);
  EXPECT_EQ(record->step.consumed_samples, 32);
  EXPECT_EQ(record->elapsed_ms, 125);  // skipped iterations count
  EXPECT_EQ(record->step.learning_rate, 0.5);
  EXPECT_EQ(record->global_batch, 8);
  EXPECT_EQ(record->step.lm_loss, 3);  // the mean of 4 and 2
  EXPECT_EQ(record->step.seq_load_balancing_loss, 1.5);
  EXPECT_FALSE(record->tflops_per_device || record->tokens_per_device);  // unknown
  EXPECT_EQ(record->step.loss_scale, 16);
  EXPECT_EQ(record->step.grad_norm, 7);
  EXPECT_EQ(record->step.num_zeros, 9);
  EXPECT_EQ(record->skipped_iterations, 1);
  EXPECT_EQ(record->nan_iterations, 1);
}

TEST_F(IterationLogTest, CountsStartAgainAfterARecord) {
  IterationLog log({.iterations = 2, .global_batch = 8}, 1, after(0));
  log.add({.iteration = 1, .lm_loss = kNan, .skipped = true}, after(900));
  const auto record = log.add({.iteration = 2, .lm_loss = 2}, after(1000));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->elapsed_ms, 100);
  EXPECT_EQ(record->step.lm_loss, 2);
  EXPECT_EQ(record->skipped_iterations, 0);
  EXPECT_EQ(record->nan_iterations, 0);
}

TEST_F(IterationLogTest, WithoutAnyFiniteLossTheLineShowsIt) {
  IterationLog log({.iterations = 1, .global_batch = 8}, 1, after(0));
  const auto record = log.add({.iteration = 1, .lm_loss = kNan}, after(1));
  ASSERT_TRUE(record);
  EXPECT_THAT(to_line(*record), ::testing::HasSubstr("| lm loss: NAN |"));  // as Python writes it
}

}  // namespace
}  // namespace braid
