#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "log/iteration_log.h"
#include "plan/topology.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

// Two encoders of one and two ranks before a language module of four; colocated, all of them on four.
Topology make_topology(bool colocated) {
  TopologyConfig config;
  config.colocated = colocated;
  config.modules.resize(3);
  config.modules[0] = {.name = "images", .kind = ModuleKind::Encoder, .dp = colocated ? 4 : 1};
  config.modules[1] = {.name = "sound", .kind = ModuleKind::Encoder, .dp = colocated ? 4 : 2};
  config.modules[2] = {.name = "language", .dp = 4};
  return Topology(config, {.micro_batch = 1, .global_batch = 4});
}

PhaseReport report_of(double forward, double bridge_wait) {
  PhaseReport report;
  report.phase_ms[static_cast<std::size_t>(Phase::Forward)] = forward;
  report.phase_ms[static_cast<std::size_t>(Phase::BridgeWait)] = bridge_wait;
  return report;
}

// Rank r gets r kB over the bridge, in 4 ms of which 1 is exposed.
CommReport communication_of(int rank) {
  CommReport report;
  report[static_cast<std::size_t>(CommKind::Bridge)] = {.bytes = 1e3 * rank, .in_flight_ms = 4, .exposed_ms = 1};
  return report;
}

// The values of all ranks, summed as by the training loop's all-reduce. Rank r spends 10 r ms in forward, waits 1 ms.
std::vector<double> summed(const PhaseTable& table, int ranks) {
  std::vector<double> sum = table.to_values(0, report_of(0, 1), communication_of(0));
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<double> values = table.to_values(rank, report_of(10 * rank, 1), communication_of(rank));
    EXPECT_EQ(values.size(), sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

TEST(ModulePhases, AModulesTimesAreMeansOverItsRanks) {
  const PhaseTable table(make_topology(false));
  const auto rows = table.means(summed(table, 7));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT((std::vector{rows[0].module, rows[1].module, rows[2].module}),
              ElementsAre("images", "sound", "language"));
  EXPECT_DOUBLE_EQ(rows[0].mean.ms(Phase::Forward), 0);   // rank 0
  EXPECT_DOUBLE_EQ(rows[1].mean.ms(Phase::Forward), 15);  // ranks 1 and 2
  EXPECT_DOUBLE_EQ(rows[2].mean.ms(Phase::Forward), 45);  // ranks 3 to 6
  for (const ModulePhases& row : rows) EXPECT_DOUBLE_EQ(row.mean.ms(Phase::BridgeWait), 1);
}

TEST(ModulePhases, SoIsWhatItCommunicates) {
  const PhaseTable table(make_topology(false));
  const auto rows = table.means(summed(table, 7));
  const auto bridge = [&](std::size_t row) {
    return rows[row].communication[static_cast<std::size_t>(CommKind::Bridge)];
  };
  EXPECT_DOUBLE_EQ(bridge(0).bytes, 0);     // rank 0
  EXPECT_DOUBLE_EQ(bridge(1).bytes, 1500);  // ranks 1 and 2
  EXPECT_DOUBLE_EQ(bridge(2).bytes, 4500);  // ranks 3 to 6
  EXPECT_DOUBLE_EQ(bridge(2).in_flight_ms, 4);
  EXPECT_DOUBLE_EQ(bridge(2).exposed_ms, 1);
}

TEST(ModulePhases, EncodersWaitForTheLanguageModuleAndItForThem) {
  const PhaseTable table(make_topology(false));
  const auto rows = table.means(summed(table, 7));
  EXPECT_THAT((std::vector{rows[0].waits_for, rows[1].waits_for, rows[2].waits_for}),
              ElementsAre("language", "language", "images and sound"));
}

TEST(ModulePhases, ModulesOnTheSameRanksShareARow) {
  const PhaseTable table(make_topology(true));
  const auto rows = table.means(summed(table, 4));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].module, "images + sound + language");
  EXPECT_EQ(rows[0].waits_for, "");
  EXPECT_DOUBLE_EQ(rows[0].mean.ms(Phase::Forward), 15);
}

TEST(ModulePhases, ColumnsStandBelowEachOther) {
  EXPECT_EQ(to_lines({{"images", "language", report_of(20, 60)}, {"language", "images", report_of(79, 1)}}),
            " time (ms) | images   | bridge wait (language):    60.0 (75 %) | forward:    20.0 (25 %) |\n"
            " time (ms) | language | bridge wait (images):       1.0 ( 1 %) | forward:    79.0 (99 %) |\n");
}

TEST(ModulePhases, WaitingForDataHasItsOwnColumn) {
  PhaseReport waits = report_of(30, 0);
  waits.phase_ms[static_cast<std::size_t>(Phase::DataWait)] = 10;
  EXPECT_EQ(to_lines({{"images", "language", waits}, {"language", "images", report_of(40, 0)}}),
            " time (ms) | images   | data wait:    10.0 (25 %) | forward:    30.0 (75 %) |\n"
            " time (ms) | language | data wait:     0.0 ( 0 %) | forward:    40.0 (100 %) |\n");
}

TEST(ModulePhases, CommunicationHasLinesOfItsOwn) {
  ModulePhases images = {"images", "language", report_of(20, 60)}, language = {"language", "images", report_of(79, 1)};
  const auto of = [](ModulePhases& row, CommKind kind) -> CommTotals& {
    return row.communication[static_cast<std::size_t>(kind)];
  };
  of(images, CommKind::Bridge) = {.in_flight_ms = 72.4, .exposed_ms = 12.3};
  of(language, CommKind::Bridge) = {.in_flight_ms = 50, .exposed_ms = 0};
  of(language, CommKind::Tensor) = {.in_flight_ms = 1234.5, .exposed_ms = 1234.5};
  EXPECT_EQ(to_lines({images, language}),
            " time (ms) | images   | bridge wait (language):    60.0 (75 %) | forward:    20.0 (25 %) |\n"
            " time (ms) | language | bridge wait (images):       1.0 ( 1 %) | forward:    79.0 (99 %) |\n"
            " comm (ms) | images   | bridge:   12.3/   72.4 (hidden  83 %) | tp:                             - |\n"
            " comm (ms) | language | bridge:    0.0/   50.0 (hidden 100 %) | tp: 1234.5/ 1234.5 (hidden   0 %) |\n");
}

TEST(ModulePhases, NoTimeAtAll) {
  EXPECT_EQ(to_lines({{"language", "", {}}}), " time (ms) | language |\n");
  EXPECT_EQ(PhaseReport{}.share(Phase::Forward), 0);
}

}  // namespace
}  // namespace braid
