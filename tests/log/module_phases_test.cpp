#include "log/module_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/topology.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

// Two encoders of one and two ranks before a language module of four; colocated, all of them on four.
Topology make_topology(bool colocated) {
  TopologyConfig config;
  config.colocated = colocated;
  config.modules.resize(3);
  config.modules[0] = {.name = "images", .kind = "encoder", .dp = colocated ? 4 : 1};
  config.modules[1] = {.name = "sound", .kind = "encoder", .dp = colocated ? 4 : 2};
  config.modules[2] = {.name = "language", .dp = 4};
  return Topology(config, {.micro_batch = 1, .global_batch = 4});
}

PhaseReport report_of(double forward, double bridge_wait) {
  PhaseReport report;
  report.phase_ms[static_cast<std::size_t>(Phase::Forward)] = forward;
  report.phase_ms[static_cast<std::size_t>(Phase::BridgeWait)] = bridge_wait;
  return report;
}

// The values of all ranks, summed as by the training loop's all-reduce. Rank r spends 10 r ms in forward, waits 1 ms.
std::vector<double> summed(const PhaseTable& table, int ranks) {
  std::vector<double> sum = table.to_values(0, report_of(0, 1));
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<double> values = table.to_values(rank, report_of(10 * rank, 1));
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

TEST(ModulePhases, NoTimeAtAll) {
  EXPECT_EQ(to_lines({{"language", "", {}}}), " time (ms) | language |\n");
  EXPECT_EQ(PhaseReport{}.share(Phase::Forward), 0);
}

}  // namespace
}  // namespace braid
