#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "report/report.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ReadMetrics, EveryStartIsAnAttempt) {
  const RunRecord contents =
      parse_metrics(R"({"iteration":1,"lm_loss":4.0,"time":100.0,"started":90.0,"skipped":false})"
                    "\n"
                    R"({"iteration":2,"lm_loss":3.0,"time":110.0,"started":90.0,"skipped":false})"
                    "\n"
                    R"({"iteration":3,"lm_loss":2.5,"time":210.0,"started":200.0,"skipped":false})"
                    "\n");
  EXPECT_THAT(contents.attempts, ElementsAre(Attempt{1, 2, 90.0, 110.0}, Attempt{3, 3, 200.0, 210.0}));
  EXPECT_THAT(contents.curves.at("lm_loss"), ElementsAre(Pair(1, 4), Pair(2, 3), Pair(3, 2.5)));
  EXPECT_EQ(contents.bad_lines, 0);
}

// Files of earlier versions have no times.
TEST(ReadMetrics, IterationsThatAreRunAgainAreARestart) {
  const RunRecord contents = parse_metrics(
      "{\"iteration\":1,\"lm_loss\":4}\n{\"iteration\":2,\"lm_loss\":3}\n{\"iteration\":2,\"lm_loss\":2.9}\n");
  EXPECT_THAT(contents.attempts, ElementsAre(Attempt{1, 2}, Attempt{2, 2}));
  EXPECT_THAT(contents.curves.at("lm_loss"), ElementsAre(Pair(1, 4), Pair(2, 2.9)));
}

TEST(ReadMetrics, CountsSkippedAndCutLines) {
  const RunRecord contents = parse_metrics(
      "{\"iteration\":1,\"lm_loss\":null,\"skipped\":true}\n[1]\n{\"iteration\":2,\"lm_loss\":3,\"skipped\":false}\n{"
      "\"iter");
  EXPECT_THAT(contents.skipped, ElementsAre(1));
  EXPECT_EQ(contents.nan_count, 1);
  EXPECT_TRUE(std::isnan(contents.curves.at("lm_loss").begin()->second));
  EXPECT_EQ(contents.lines, 2);
  EXPECT_EQ(contents.bad_lines, 2);
  EXPECT_THAT(parse_metrics("").attempts, IsEmpty());
}

TEST(ReadMetrics, NumbersThatAreNoIterationsAreBadLines) {
  const RunRecord contents = parse_metrics(
      "{\"iteration\":1e300,\"lm_loss\":3}\n{\"iteration\":-1,\"lm_loss\":3}\n{\"iteration\":9007199254740994}\n"
      "{\"iteration\":9007199254740992,\"lm_loss\":2}\n");
  EXPECT_EQ(contents.bad_lines, 3);
  EXPECT_THAT(contents.curves.at("lm_loss"), ElementsAre(Pair(9007199254740992, 2)));
}

RunRecord log_of(const std::string& text) { return merged(parse_starts(text)); }

constexpr const char* kLog =
    "braid: 6 ranks: images on 0-1 (dp 2), language on 2-5 (tp 2, dp 2)\n"
    "initialized the weights of images.encoder, language in 0.2 s\n"
    " [2026-11-17 17:39:02.500000] iteration        5/      30 | consumed samples:           40 | elapsed time per "
    "iteration (ms): 960.6 | throughput per GPU (TFLOP/s/GPU): 1.5 | tokens per GPU (tokens/s/GPU): 177.7 | learning "
    "rate: 2.883286E-03 | global batch size:     8 | lm loss: 5.783883E+00 | seq_load_balancing_loss: 1.017587E+00 | "
    "loss scale: 1.0 | grad norm: 1.419 | number of skipped iterations:   1 | number of nan iterations:   1 |\n"
    " time (ms) | images   | bridge wait (language):   686.6 (69 %) | forward:    20.1 ( 2 %) |\n"
    " time (ms) | language | bridge wait (images):       6.8 ( 1 %) | forward:   366.6 (36 %) |\n"
    " comm (ms) | images   | bridge:  694.9/ 2519.4 (hidden  72 %) | tp:                             - |\n"
    "[maximum over 6 ranks] (after 5 iterations) memory (MB) | host: 160.07 | max host: 161.21\n"
    "saved iteration 5 to /a: b/ckpt: 6.50 MiB in 0.3 s (23.58 MiB/s)\n"
    " validation loss at iteration 5 | lm loss value: 3.888896E+00 | lm loss PPL: 4.885690E+01 | right tokens: 48.9 % "
    "| right answers: 12.5 % | \n"
    "rank 0: sample 7 of shard 'a.tar' is skipped: truncated (1 skipped)\n"
    "rank 2: sample 7 of shard 'a.tar' is skipped: truncated (1 skipped)\n";

TEST(ReadMetrics, AnIterationWithNothingToPredictIsNotNan) {
  const RunRecord contents = parse_metrics(
      "{\"iteration\":1,\"lm_loss\":3,\"skipped\":false}\n{\"iteration\":2,\"lm_loss\":null,\"skipped\":false}\n");
  EXPECT_EQ(contents.nan_count, 0);
  EXPECT_THAT(contents.curves.at("lm_loss"), ElementsAre(Pair(1, 3)));
}

TEST(ReadLog, BraidsLines) {
  const RunRecord contents = log_of(kLog);
  EXPECT_EQ(contents.iterations, 30);
  EXPECT_EQ(contents.ranks, 6);
  EXPECT_EQ(contents.layout, "images on 0-1 (dp 2), language on 2-5 (tp 2, dp 2)");
  EXPECT_THAT(contents.curves.at("lm_loss"), ElementsAre(Pair(5, 5.783883)));
  EXPECT_THAT(contents.curves.at("tflops_per_gpu"), ElementsAre(Pair(5, 1.5)));
  EXPECT_THAT(contents.curves.at("load_balancing_loss"), ElementsAre(Pair(5, 1.017587)));
  EXPECT_THAT(contents.curves.at("validation_loss"), ElementsAre(Pair(5, 3.888896)));
  EXPECT_THAT(contents.curves.at("right_answers"), ElementsAre(Pair(5, 0.125)));
  EXPECT_THAT(contents.modules.at("images").phase_ms.at("bridge wait"), ElementsAre(Pair(5, 686.6)));
  EXPECT_THAT(contents.modules.at("language").phase_ms.at("forward"), ElementsAre(Pair(5, 366.6)));
  EXPECT_THAT(contents.modules.at("images").exposed_ms.at("bridge"), ElementsAre(Pair(5, 694.9)));
  EXPECT_THAT(contents.modules.at("images").in_flight_ms.at("bridge"), ElementsAre(Pair(5, 2519.4)));
  EXPECT_EQ(contents.modules.at("images").exposed_ms.count("tp"), 0u);
  EXPECT_THAT(contents.memory_mb.at("host, most"), ElementsAre(Pair(5, 161.21)));
  EXPECT_EQ(contents.skipped_count, 1);
  EXPECT_EQ(contents.nan_count, 1);
  EXPECT_EQ(contents.unusable.at("damaged"), 1);  // two ranks read the same one
  ASSERT_EQ(contents.checkpoints.size(), 1u);
  EXPECT_EQ(contents.checkpoints[0].iteration, 5);
  EXPECT_EQ(contents.checkpoints[0].bytes, 6.5 * 1024 * 1024);
  EXPECT_EQ(contents.checkpoints[0].seconds, 0.3);
  ASSERT_EQ(contents.attempts.size(), 1u);
  EXPECT_EQ(contents.attempts[0].first, 1);
  EXPECT_EQ(contents.attempts[0].last, 5);
  EXPECT_EQ(contents.end.text, "");
}

TEST(ReadLog, TheSummaryCountsSamplesThatWereLeftOutOrCut) {
  const RunRecord contents = log_of("too long samples       20\ncut samples            5\nwithout targets        4\n");
  EXPECT_THAT(contents.unusable, ElementsAre(Pair("cut", 5), Pair("too_long", 20), Pair("without_targets", 4)));
}

std::string iteration_line(int iteration, double loss) {
  return " [2026-11-17 17:39:02] iteration " + std::to_string(iteration) +
         "/ 30 | consumed samples: 8 | lm loss: " + std::to_string(loss) + " |\n";
}

TEST(ReadLog, ARestartRunsIterationsAgain) {
  const RunRecord contents =
      log_of(iteration_line(5, 4) + iteration_line(10, 3) + "the run continues after iteration 7 and 56 samples\n" +
             iteration_line(10, 2) + "run ended              all iterations done\n");
  ASSERT_EQ(contents.attempts.size(), 2u);
  EXPECT_EQ(contents.attempts[1].first, 8);
  EXPECT_EQ(contents.attempts[1].last, 10);
  EXPECT_THAT(contents.curves.at("lm_loss"), ElementsAre(Pair(5, 4), Pair(10, 2)));
  EXPECT_EQ(contents.end.text, "all iterations done");
}

TEST(ReadLog, AnEndBeforeARestartIsNotTheEnd) {
  EXPECT_EQ(log_of("run ended              SIGTERM\n" + iteration_line(10, 2)).end.text, "");
}

// Two starts in a folder of --log-dir, of which the second has another logging rank, and the launcher's output of the
// first up to where it was cut. The second start runs iterations 11 to 15 again, with another length of its interval.
TEST(ReadLog, LogsOfAllStartsAreReadTogether) {
  const auto lines = [](int iteration, const char* minute, double ms) {
    return fmt::format(
        " [2026-11-17 17:{}:00.5] iteration {}/ 30 | consumed samples: 8 | elapsed time per iteration (ms): {} |\n"
        " time (ms) | language | forward: {} (75 %) | other: {} (25 %) |\n",
        minute, iteration, ms, 0.75 * ms, 0.25 * ms);
  };
  const std::string cut = "initialized the weights of language in 1.0 s\n" + lines(5, "10", 100),
                    first = cut + lines(10, "11", 80) + lines(15, "12", 80) + "run ended              SIGTERM\n",
                    mark = "\nbraid: restart, ranks: 2 [2026-11-17 17:30:00]\n";
  const std::string second = "the run continues after iteration 10 and 80 samples\n" + lines(20, "31", 40);
  const auto run_of = [&](const std::string& rank_2, const std::string& rank_1) {
    return merged(starts_of_all({parse_starts(cut), parse_starts(rank_1), parse_starts(rank_2)}));
  };
  const RunRecord run = run_of(first + mark, mark + second + "run ended              all iterations done\n");
  EXPECT_THAT(run.curves.at("iteration_ms"), ElementsAre(Pair(5, 100), Pair(10, 80), Pair(20, 40)));
  const Curves& phases = run.modules.at("language").phase_ms;
  for (const auto& [iteration, whole] : run.curves.at("iteration_ms"))
    EXPECT_THAT(phases.at("other"), ::testing::Contains(Pair(iteration, 0.25 * whole)));
  EXPECT_DOUBLE_EQ(mean_value(phases.at("forward")) + mean_value(phases.at("other")),
                   mean_value(run.curves.at("iteration_ms")));
  ASSERT_EQ(run.attempts.size(), 2u);
  EXPECT_EQ(run.attempts[0].last, 15);
  EXPECT_EQ(run.attempts[1].first, 11);
  EXPECT_EQ(run.lines, 4);
  EXPECT_EQ(run.end.text, "all iterations done");
  EXPECT_EQ(run_of(first + mark, mark + second).end.text, "");  // it still runs, or failed
  EXPECT_EQ(run_of(first + mark, mark).end.text, "");           // likewise, before its first line
  EXPECT_EQ(run_of(first, "").end.text, "SIGTERM");
}

TEST(ReadLog, RatesOfRanksOnCpus) {
  const RunRecord contents = log_of(
      " [2026-11-17 17:39:02] iteration 5/ 30 | consumed samples: 8 | throughput per rank (TFLOP/s/rank): 1.5 | tokens "
      "per rank (tokens/s/rank): 177.7 |\n");
  EXPECT_THAT(contents.curves.at("tflops_per_gpu"), ElementsAre(Pair(5, 1.5)));
  EXPECT_THAT(contents.curves.at("tokens_per_gpu"), ElementsAre(Pair(5, 177.7)));
}

TEST(ReadLog, MegatronsLineWithARanksLabel) {
  const RunRecord contents = log_of(
      "3: [2024-05-01 10:00:00] iteration      100/  500 | consumed samples:  12800 | elapsed time per iteration (ms): "
      "5500.1 | learning rate: 1.0E-04 | lm loss: nan | number of skipped iterations: 0 |\n");
  EXPECT_EQ(contents.iterations, 500);
  EXPECT_THAT(contents.curves.at("iteration_ms"), ElementsAre(Pair(100, 5500.1)));
  EXPECT_TRUE(std::isnan(contents.curves.at("lm_loss").begin()->second));
}

TEST(ReadLog, AFailureThatEveryRankReportsIsOne) {
  const RunRecord contents = log_of(
      "[1] braid: root cause: rank 4 (host a) failed: killed\n[2] braid: root cause: rank 4 (host a) failed: killed\n");
  EXPECT_THAT(contents.failures, ElementsAre("rank 4 (host a) failed: killed"));
}

TEST(ReadLog, ASizeInAnotherUnitIsNotKnown) {
  const auto bytes = [](const char* size) {
    return log_of(std::string("saved iteration 5 to a: ") + size + " in 0.3 s (1 MiB/s)\n").checkpoints.at(0).bytes;
  };
  EXPECT_EQ(bytes("2 GiB"), 2048.0 * 1024 * 1024);
  EXPECT_EQ(bytes("2 GB"), 0);
  EXPECT_EQ(bytes("2"), 0);
}

TEST(ReadLog, CountsThatNoRunReachesAreIgnored) {
  const RunRecord contents = log_of(
      "[maximum over 1e300 ranks] (after 1 iterations) memory (MB) | host: 1.0\n"
      " iteration 9223372036854775807/ 30 | consumed samples: 8 |\n"
      "the run continues after iteration 9223372036854775807 and 1 samples\n"
      " iteration 7/ 9223372036854775807 | consumed samples: 8 | number of skipped iterations: 1e300 |\n");
  EXPECT_EQ(contents.ranks, std::nullopt);
  EXPECT_EQ(contents.iterations, std::nullopt);
  EXPECT_EQ(contents.skipped_count, 0);
  EXPECT_THAT(contents.attempts, ElementsAre(Attempt{.first = 7, .last = 7, .first_is_known = false}));
}

TEST(ReadLog, OtherTextIsIgnored) {
  const RunRecord contents = log_of("iteration\n| consumed samples: x\n iteration x | consumed samples: 1 |\n|||\n");
  EXPECT_EQ(contents.lines, 0);
  EXPECT_THAT(contents.curves, IsEmpty());
}

}  // namespace
}  // namespace braid
