// Closed forms of every style, rejected configs, and how lengths resolve. tests/oracles/lr_schedule_test.py compares
// the same code with Megatron's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "optim/optimizer_config.h"

namespace braid {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

// Up to a few roundings in double.
auto about(double value) { return testing::DoubleNear(value, 1e-14 * std::abs(value)); }

// 100 iterations of 10 samples.
TrainLength thousand() { return {.iterations = 100, .global_batch = 10}; }

// From 1 to 3 in 200 samples of warm-up, then down to 0.5 at sample 1000.
LrScheduleConfig with_style(const std::string& decay_style) {
  return {.lr = 3, .min_lr = 0.5, .init_lr = 1, .decay_style = decay_style, .warmup_samples = 200};
}

LrSchedule wsd(const std::string& style) {
  LrScheduleConfig config = with_style("WSD");
  config.wsd_decay_samples = 400;
  config.wsd_decay_style = style;
  return resolve(config, thousand());
}

// --- learning rate

TEST(LrSchedule, WarmsUpLinearlyWhateverFollows) {
  for (const char* style : {"constant", "linear", "cosine", "inverse-square-root", "WSD"}) {
    const LrSchedule schedule = resolve(with_style(style), thousand());
    EXPECT_THAT(schedule.learning_rate_at(0), about(1.0));
    EXPECT_THAT(schedule.learning_rate_at(50), about(1.5));
    EXPECT_THAT(schedule.learning_rate_at(200), about(3.0));
  }
}

TEST(LrSchedule, WithoutWarmUpTheFirstIterationHasTheHighestRate) {
  for (const char* style : {"constant", "linear", "cosine", "inverse-square-root"})
    EXPECT_THAT(resolve({.lr = 3, .decay_style = style}, thousand()).learning_rate(), about(3.0));
}

TEST(LrSchedule, ConstantStaysEvenAfterTheDecayLength) {
  const LrSchedule schedule = resolve(with_style("constant"), thousand());
  EXPECT_EQ(schedule.learning_rate_at(201), 3.0);
  EXPECT_EQ(schedule.learning_rate_at(5000), 3.0);
}

TEST(LrSchedule, LinearGoesFromTheEndOfTheWarmUpToTheLowest) {
  const LrSchedule schedule = resolve(with_style("linear"), thousand());
  EXPECT_THAT(schedule.learning_rate_at(600), about(1.75));
  EXPECT_THAT(schedule.learning_rate_at(800), about(0.5 + 0.25 * 2.5));
  EXPECT_THAT(schedule.learning_rate_at(1000), about(0.5));
  EXPECT_THAT(schedule.learning_rate_at(1001), about(0.5));
}

TEST(LrSchedule, CosineIsHalfAWave) {
  const LrSchedule schedule = resolve(with_style("cosine"), thousand());
  EXPECT_THAT(schedule.learning_rate_at(400), about(0.5 + (0.5 + std::sqrt(0.125)) * 2.5));
  EXPECT_THAT(schedule.learning_rate_at(600), about(1.75));
  EXPECT_THAT(schedule.learning_rate_at(1000), about(0.5));
  EXPECT_THAT(schedule.learning_rate_at(1001), about(0.5));
}

TEST(LrSchedule, InverseSquareRootStopsAtTheLowest) {
  LrScheduleConfig config = with_style("inverse-square-root");
  config.min_lr = 1.4;
  const LrSchedule schedule = resolve(config, thousand());
  EXPECT_THAT(schedule.learning_rate_at(450), about(2.0));
  EXPECT_THAT(schedule.learning_rate_at(800), about(1.5));
  EXPECT_THAT(schedule.learning_rate_at(1000), about(1.4));
  EXPECT_THAT(schedule.learning_rate_at(1001), about(1.4));
}

TEST(LrSchedule, WsdHoldsAndThenFallsInItsStyle) {
  const std::vector<std::pair<std::string, double>> left_after_a_quarter = {
      {"linear", 0.75},
      {"cosine", 0.5 + std::sqrt(0.125)},
      {"exponential", 2 * std::sqrt(std::sqrt(0.5)) - 1},
      {"minus_sqrt", 0.5}};
  for (const auto& [style, left] : left_after_a_quarter) {
    SCOPED_TRACE(style);
    const LrSchedule schedule = wsd(style);
    EXPECT_THAT(schedule.learning_rate_at(201), about(3.0));
    EXPECT_THAT(schedule.learning_rate_at(600), about(3.0));
    EXPECT_THAT(schedule.learning_rate_at(700), about(0.5 + left * 2.5));
    EXPECT_THAT(schedule.learning_rate_at(1000), about(0.5));
    EXPECT_THAT(schedule.learning_rate_at(1001), about(0.5));
  }
}

TEST(LrSchedule, WhatHasNotFallenByTheEndOfTheDecayDropsBehindIt) {
  LrSchedule sudden = wsd("linear");
  sudden.wsd_decay_steps = 0;
  EXPECT_THAT(sudden.learning_rate_at(1000), about(3.0));
  EXPECT_THAT(sudden.learning_rate_at(1001), about(0.5));
  const LrSchedule slow = resolve(with_style("inverse-square-root"), thousand());
  EXPECT_THAT(slow.learning_rate_at(1000), about(3 * std::sqrt(0.2)));
  EXPECT_THAT(slow.learning_rate_at(1001), about(0.5));
}

// What Megatron printed for such a run; its log shows the rate after the step, with four digits.
TEST(LrSchedule, AfterEachStepItIsWhatMegatronLogs) {
  const int global_batch = 16;
  LrSchedule schedule =
      resolve({.lr = 2e-4, .min_lr = 2e-6, .decay_style = "cosine"}, {.iterations = 10, .global_batch = global_batch});
  std::vector<std::string> logged;
  for (int iteration = 1; iteration <= 5; ++iteration) {
    schedule.step(global_batch);
    logged.push_back(fmt::format("{:.3e}", schedule.learning_rate()));
  }
  EXPECT_THAT(std::vector(logged.begin() + 2, logged.end()), ElementsAre("1.592e-04", "1.316e-04", "1.010e-04"));
}

TEST(LrSchedule, ARunOf122MillionSamples) {
  const LrSchedule schedule = resolve({.lr = 1.2e-3,
                                       .min_lr = 1.2e-5,
                                       .decay_style = "WSD",
                                       .warmup_samples = 1'024'000,
                                       .decay_samples = 121'046'313,
                                       .wsd_decay_samples = 18'310'547,
                                       .wsd_decay_style = "minus_sqrt",
                                       .weight_decay = 0.1},
                                      {.samples = 122'070'313, .global_batch = 768});
  EXPECT_EQ(schedule.wd_incr_steps, 158'946 * std::int64_t{768});
  EXPECT_THAT(schedule.learning_rate_at(512'000), about(6e-4));
  EXPECT_THAT(schedule.learning_rate_at(1'024'000), about(1.2e-3));
  EXPECT_THAT(schedule.learning_rate_at(102'735'766), about(1.2e-3));
  EXPECT_LT(schedule.learning_rate_at(102'735'767), 1.2e-3);
  // A quarter of the way, except for a fraction of a sample.
  EXPECT_NEAR(schedule.learning_rate_at(102'735'766 + 18'310'547 / 4), 6.06e-4, 1e-10);
  EXPECT_THAT(schedule.learning_rate_at(121'046'313), about(1.2e-5));
  EXPECT_THAT(schedule.learning_rate_at(122'070'528), about(1.2e-5));
  EXPECT_EQ(schedule.weight_decay_at(122'070'528), 0.1);
}

// --- weight decay

TEST(LrSchedule, WeightDecayStaysByDefault) {
  const LrSchedule schedule = resolve({.weight_decay = 0.1}, thousand());
  for (const int samples : {0, 1, 1000, 1001}) EXPECT_EQ(schedule.weight_decay_at(samples), 0.1);
}

TEST(LrSchedule, WeightDecayRisesOverTheRun) {
  LrScheduleConfig config = {.weight_decay = 0.25, .end_weight_decay = 0.75, .weight_decay_incr_style = "linear"};
  config.decay_samples = 100;  // has no effect here
  EXPECT_THAT(resolve(config, thousand()).weight_decay_at(0), about(0.25));
  EXPECT_THAT(resolve(config, thousand()).weight_decay_at(250), about(0.375));
  EXPECT_THAT(resolve(config, thousand()).weight_decay_at(1000), about(0.75));
  EXPECT_THAT(resolve(config, thousand()).weight_decay_at(1001), about(0.75));
  config.weight_decay_incr_style = "cosine";
  EXPECT_THAT(resolve(config, thousand()).weight_decay_at(0), about(0.25));
  EXPECT_THAT(resolve(config, thousand()).weight_decay_at(250), about(0.25 + (0.5 - std::sqrt(0.125)) * 0.5));
  EXPECT_THAT(resolve(config, thousand()).weight_decay_at(500), about(0.5));
  EXPECT_THAT(resolve(config, thousand()).weight_decay_at(1000), about(0.75));
}

// --- lengths and state

TEST(LrSchedule, SamplesWinOverIterations) {
  const LrScheduleConfig config = {.warmup_iterations = 1,
                                   .warmup_samples = 25,
                                   .decay_iterations = 2,
                                   .decay_samples = 35,
                                   .wsd_decay_iterations = 3,
                                   .wsd_decay_samples = 5};
  const LrSchedule schedule = resolve(config, {.iterations = 7, .samples = 41, .global_batch = 10});
  EXPECT_EQ(schedule.lr_warmup_steps, 25);
  EXPECT_EQ(schedule.lr_decay_steps, 35);
  EXPECT_EQ(schedule.wsd_decay_steps, 5);
  EXPECT_EQ(schedule.wd_incr_steps, 50);
}

TEST(LrSchedule, IterationsAreGlobalBatchesEvenBeyond32Bits) {
  const LrSchedule schedule =
      resolve({.warmup_iterations = 1'000'000, .decay_iterations = 3'000'000, .wsd_decay_iterations = 2'000'000},
              {.iterations = 4'000'000, .global_batch = 4096});
  EXPECT_EQ(schedule.lr_warmup_steps, 4'096'000'000);
  EXPECT_EQ(schedule.lr_decay_steps, 12'288'000'000);
  EXPECT_EQ(schedule.wsd_decay_steps, 8'192'000'000);
  EXPECT_EQ(schedule.wd_incr_steps, 16'384'000'000);
}

TEST(LrSchedule, DecayLastsTheWholeRunInWholeBatches) {
  EXPECT_EQ(resolve({}, {.samples = 40, .global_batch = 10}).lr_decay_steps, 40);
  EXPECT_EQ(resolve({}, {.samples = 41, .global_batch = 10}).lr_decay_steps, 50);
  EXPECT_EQ(resolve({}, thousand()).lr_decay_steps, 1000);
}

TEST(LrSchedule, ACopyGoesItsOwnWay) {
  LrSchedule one = wsd("linear"), other = one;
  EXPECT_EQ(one, other);
  one.step(700);
  EXPECT_NE(one, other);
  EXPECT_EQ(one.learning_rate(), other.learning_rate_at(700));
  other.step(300);
  other.step(400);
  EXPECT_EQ(one, other);
  EXPECT_ANY_THROW(one.step(-1));
}

TEST(LrSchedule, StateHasMegatronsNames) {
  LrSchedule schedule = resolve(with_style("cosine"), thousand());
  schedule.step(20);
  EXPECT_EQ(to_string(schedule),
            "max_lr=3 lr_warmup_steps=200 num_steps=20 lr_decay_style=cosine lr_decay_steps=1000 min_lr=0.5 "
            "start_wd=0.01 end_wd=0.01 wd_incr_style=constant wd_incr_steps=1000");
}

TEST(LrSchedule, PrintedConfigReadsBackTheSame) {
  LrScheduleConfig config = with_style("WSD");
  config.wsd_decay_iterations = 12;
  config.wsd_decay_style = "minus_sqrt";
  config.end_weight_decay = 0.5;
  YamlWriter writer;
  describe(writer, config);
  LrScheduleConfig read;
  YamlReader reader = YamlReader::from_text(writer.text(), "recipe");
  describe(reader, read);
  EXPECT_THAT(reader.finish(), IsEmpty());
  EXPECT_EQ(resolve(read, thousand()), resolve(config, thousand()));
}

// --- rejected configs

auto problem(const std::string& what, const std::string& where, const std::string& fix) {
  return testing::AllOf(Field("what", &Problem::what, HasSubstr(what)), Field("where", &Problem::where, where),
                        Field("fix", &Problem::fix, HasSubstr(fix)));
}

std::vector<Problem> problems_of(const LrScheduleConfig& config, const TrainLength& length = thousand()) {
  return validate(config, length, "optimizer");
}

TEST(LrScheduleValidate, GoodSchedulesHaveNoProblems) {
  EXPECT_THAT(problems_of({}), IsEmpty());
  EXPECT_THAT(problems_of(with_style("cosine")), IsEmpty());
  EXPECT_THAT(problems_of({.lr = 1, .min_lr = 1, .init_lr = 1, .weight_decay = 0, .end_weight_decay = 0}), IsEmpty());
  EXPECT_THAT(problems_of({.warmup_iterations = 99}), IsEmpty());
  EXPECT_THAT(problems_of({.decay_style = "WSD", .wsd_decay_iterations = 1, .wsd_decay_style = "linear"}), IsEmpty());
}

TEST(LrScheduleValidate, RatesLieBetween0AndTheHighest) {
  EXPECT_THAT(problems_of({.lr = 0.1, .min_lr = 0.2, .init_lr = 0.3}),
              ElementsAre(problem("min_lr=0.2 is above lr=0.1", "optimizer.min_lr", "min_lr=0.1 or less"),
                          problem("init_lr=0.3 is above lr=0.1", "optimizer.init_lr", "init_lr=0.1 or less")));
  EXPECT_THAT(problems_of({.min_lr = -1, .init_lr = -2}),
              ElementsAre(problem("min_lr=-1", "optimizer.min_lr", "0 or more"),
                          problem("init_lr=-2", "optimizer.init_lr", "0 or more")));
  EXPECT_THAT(problems_of({.lr = -1}), ElementsAre(problem("lr=-1", "optimizer.lr", "0 or more")));
  EXPECT_THAT(problems_of({.lr = NAN}), ElementsAre(problem("lr=nan", "optimizer.lr", "0 or more")));
}

TEST(LrScheduleValidate, TheWarmUpEndsBeforeTheDecay) {
  EXPECT_THAT(problems_of({.warmup_iterations = 100}),
              ElementsAre(problem("warm-up of 1000 samples", "optimizer.warmup_iterations", "warmup_iterations=99")));
  EXPECT_THAT(problems_of({.warmup_samples = 85, .decay_iterations = 8}),
              ElementsAre(problem("after 80 samples", "optimizer.warmup_samples", "warmup_samples=79 or less")));
  EXPECT_THAT(problems_of({.warmup_samples = -1}),
              ElementsAre(problem("warmup_samples=-1", "optimizer.warmup_samples", "0 or more")));
}

TEST(LrScheduleValidate, ADecayHasALength) {
  EXPECT_THAT(problems_of({.decay_iterations = 0}),
              ElementsAre(problem("after 0 samples", "optimizer.decay_iterations", "decay_iterations=1 or more")));
  EXPECT_THAT(problems_of({.decay_samples = -5}),
              ElementsAre(problem("after -5 samples", "optimizer.decay_samples", "decay_samples=1 or more")));
  EXPECT_THAT(problems_of({}, {.iterations = 0, .global_batch = 8}),
              ElementsAre(problem("after 0 samples", "optimizer.decay_iterations", "or train longer")));
}

TEST(LrScheduleValidate, WsdNeedsItsLengthAndItsStyle) {
  EXPECT_THAT(problems_of({.decay_style = "WSD"}),
              ElementsAre(problem("needs the length", "optimizer.wsd_decay_samples", "wsd_decay_iterations or"),
                          problem("needs the shape of the decay", "optimizer.wsd_decay_style", "minus_sqrt")));
  EXPECT_THAT(problems_of({.decay_style = "WSD", .wsd_decay_samples = -1, .wsd_decay_style = "linear"}),
              ElementsAre(problem("wsd_decay_samples=-1", "optimizer.wsd_decay_samples", "0 or more")));
}

TEST(LrScheduleValidate, WeightDecayOnlyRisesAndOnlyWhenToldHow) {
  EXPECT_THAT(problems_of({.weight_decay = 0.2, .end_weight_decay = 0.1, .weight_decay_incr_style = "linear"}),
              ElementsAre(problem("end_weight_decay=0.1", "optimizer.end_weight_decay", "0.2 or more")));
  EXPECT_THAT(problems_of({.weight_decay = 0.1, .end_weight_decay = 0.2}),
              ElementsAre(problem("from 0.1 to 0.2", "optimizer.weight_decay_incr_style", "linear or cosine")));
  EXPECT_THAT(problems_of({.weight_decay = -0.1}),
              ElementsAre(problem("weight_decay=-0.1", "optimizer.weight_decay", "0 or more")));
}

TEST(LrScheduleValidate, ABatchThatCannotBeIsNotDividedBy) {
  EXPECT_THAT(problems_of({.warmup_iterations = 5}, {.samples = 10, .global_batch = 0}), IsEmpty());
}

}  // namespace
}  // namespace braid
