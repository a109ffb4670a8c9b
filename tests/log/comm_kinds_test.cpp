#include <gtest/gtest.h>
#include "log/iteration_log.h"

namespace braid {
namespace {

TEST(CommKinds, FollowFromGroupAndOperation) {
  EXPECT_EQ(kind_of({"language.tp", "all_gather"}), CommKind::Tensor);
  EXPECT_EQ(kind_of({"language.cp", "all_to_all"}), CommKind::Context);
  EXPECT_EQ(kind_of({"language.ep", "all_to_all"}), CommKind::Expert);
  EXPECT_EQ(kind_of({"language.expt_tp", "all_gather"}), CommKind::Expert);
  EXPECT_EQ(kind_of({"images.dp-cp", "reduce_scatter"}), CommKind::Gradients);
  EXPECT_EQ(kind_of({"images.dp-cp", "all_reduce"}), CommKind::Gradients);
  EXPECT_EQ(kind_of({"language.expt_dp", "all_gather"}), CommKind::Parameters);
  EXPECT_EQ(kind_of({"language.pp-cp-tp", "broadcast"}), CommKind::Batches);
  EXPECT_EQ(kind_of({"language.dp-cp-tp", "all_reduce"}), CommKind::Other);
  EXPECT_EQ(kind_of({"world", "all_reduce"}), CommKind::Other);
}

TEST(CommKinds, APurposeDecidesFirst) {
  EXPECT_EQ(kind_of({"images.embeddings", "exchange", ""}), CommKind::Bridge);
  EXPECT_EQ(kind_of({"images.embedding-gradients", "exchange", ""}), CommKind::Bridge);
  EXPECT_EQ(kind_of({"language.activations-1", "exchange", ""}), CommKind::Pipeline);
  EXPECT_EQ(kind_of({"language.activation-gradients-0", "exchange", ""}), CommKind::Pipeline);
  EXPECT_EQ(kind_of({"language.tp", "all_gather", kForEvaluation}), CommKind::Other);
}

TEST(CommKinds, AReportIsAMeanOverIterations) {
  const auto use = [](double bytes, int begin_ms, int end_ms, int exposed_ms) {
    const auto at = [](int ms) { return CoveredTime::TimePoint(std::chrono::milliseconds(ms)); };
    CommUse made = {bytes};
    made.exposed.add(at(begin_ms), at(begin_ms + exposed_ms));
    made.in_flight.add(at(begin_ms), at(end_ms));
    return made;
  };
  const CommReport report = report_of({{{"language.tp", "all_gather"}, use(100, 0, 8, 6)},
                                       {{"language.tp", "reduce_scatter"}, use(300, 6, 10, 0)},
                                       {{"images.embeddings", "exchange", ""}, use(10, 0, 4, 1)}},
                                      2);
  const CommTotals& tp = report[static_cast<std::size_t>(CommKind::Tensor)];
  EXPECT_DOUBLE_EQ(tp.bytes, 200);
  EXPECT_DOUBLE_EQ(tp.in_flight_ms, 5);
  EXPECT_DOUBLE_EQ(tp.exposed_ms, 3);
  EXPECT_DOUBLE_EQ(tp.hidden(), 0.4);
  EXPECT_DOUBLE_EQ(report[static_cast<std::size_t>(CommKind::Bridge)].hidden(), 0.75);
  EXPECT_DOUBLE_EQ(report[static_cast<std::size_t>(CommKind::Gradients)].in_flight_ms, 0);
}

}  // namespace
}  // namespace braid
