// Schedules are proved on paper: every layout up to 16 ranks with up to 8 microbatches, and the production recipes. The
// verifier itself is proved by schedules that are broken on purpose.
#include "plan/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "plan/timeline.h"
#include "support/grid_sizes.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using testing::module_of;
using Sizes = testing::GridSizes;

// Every way to write a number of ranks up to `limit` as tp x cp x dp x pp.
std::vector<Sizes> all_sizes(int limit) {
  std::vector<Sizes> all;
  for (int tp = 1; tp <= limit; ++tp)
    for (int cp = 1; tp * cp <= limit; ++cp)
      for (int dp = 1; tp * cp * dp <= limit; ++dp)
        for (int pp = 1; tp * cp * dp * pp <= limit; ++pp) all.push_back({.tp = tp, .cp = cp, .dp = dp, .pp = pp});
  return all;
}

// A topology that both grids can feed, or nothing.
std::optional<Topology> topology_of(const std::vector<Sizes>& encoders, const Sizes& language, bool colocated) {
  TopologyConfig config;
  config.colocated = colocated;
  for (std::size_t i = 0; i < encoders.size(); ++i)
    config.modules.push_back(module_of("encoder" + std::to_string(i), "encoder", encoders[i]));
  config.modules.push_back(module_of("language", "language", language));
  int micro_batch = 1;
  for (const Sizes& encoder : encoders) micro_batch *= encoder.dp;
  const Workload workload = {.micro_batch = micro_batch, .global_batch = micro_batch * language.dp, .num_experts = 0};
  if (!validate(config, workload).empty()) return std::nullopt;
  return Topology(config, workload);
}

TEST(Schedule, EndsInEveryLayoutUpTo16Ranks) {
  int checked = 0;
  const auto check = [&](const Topology& topology, const ScheduleOptions& options) {
    ++checked;
    const auto problems = verify(make_schedule(topology, options), topology, options);
    ASSERT_THAT(problems, IsEmpty()) << topology.place_of(0) << " of " << topology.world_size() << " ranks, "
                                     << options.microbatches << " microbatches";
  };
  for (const Sizes& language : all_sizes(16))
    for (const Sizes& encoder : all_sizes(16))
      for (const bool colocated : {false, true}) {
        if (colocated ? language.ranks() != encoder.ranks() : language.ranks() + encoder.ranks() > 16) continue;
        const std::optional<Topology> topology = topology_of({encoder}, language, colocated);
        if (!topology) continue;
        for (int microbatches = 1; microbatches <= 8; ++microbatches) {
          check(*topology, {.microbatches = microbatches});
          check(*topology, {.microbatches = microbatches, .frozen = {"encoder0"}, .prefetch = microbatches % 3});
        }
      }
  EXPECT_GT(checked, 10000);
}

Topology nodes(int encoder_dp, int language_tp, int language_dp) {
  return *topology_of({{.dp = encoder_dp}}, {.tp = language_tp, .dp = language_dp}, false);
}

// 9, 33, 68 and 100 nodes, with the microbatches of their recipes.
TEST(Schedule, EndsInTheProductionTopologies) {
  for (const auto& [topology, microbatches] :
       {std::pair(nodes(8, 2, 32), 6), {nodes(8, 2, 128), 6}, {nodes(32, 2, 256), 3}, {nodes(32, 2, 384), 2}})
    for (const std::vector<std::string>& frozen : {std::vector<std::string>{}, {"encoder0"}}) {
      const ScheduleOptions options = {.microbatches = microbatches, .frozen = frozen};
      EXPECT_THAT(verify(make_schedule(topology, options), topology, options), IsEmpty()) << topology.world_size();
    }
}

TEST(Schedule, EndsWithTwoEncodersOfDifferentDepth) {
  for (const bool colocated : {false, true})
    for (int microbatches = 1; microbatches <= 6; ++microbatches)
      for (const std::vector<std::string>& frozen :
           {std::vector<std::string>{}, {"encoder1"}, {"encoder0", "encoder1"}}) {
        const auto topology = topology_of({{.dp = 2, .pp = 2}, {.tp = 2, .dp = 2}}, {.tp = 2, .pp = 2}, colocated);
        const ScheduleOptions options = {.microbatches = microbatches, .frozen = frozen, .prefetch = 1};
        EXPECT_THAT(verify(make_schedule(*topology, options), *topology, options), IsEmpty());
      }
}

// One stage runs its forwards and backwards in turn, behind as many forwards as there are stages after it.
TEST(Schedule, IsOneForwardOneBackward) {
  const Topology topology = *topology_of({{}}, {.pp = 2}, false);
  const Schedule schedule = make_schedule(topology, {.microbatches = 4});
  std::vector<std::string> lines;
  for (const std::vector<Op>& ops : schedule.ranks) {
    std::string line;
    for (const Op& op : ops)
      if (op.kind != Op::Exchange) line += fmt::format("{}{} ", op.kind == Op::Forward ? "F" : "B", op.microbatch);
    lines.push_back(line);
  }
  EXPECT_THAT(lines, ::testing::ElementsAre("F0 F1 F2 B0 F3 B1 B2 B3 ", "F0 F1 B0 F2 B1 F3 B2 B3 ",
                                            "F0 B0 F1 B1 F2 B2 F3 B3 "));
}

TEST(Schedule, PrefetchRunsTheEncoderAhead) {
  const Topology topology = *topology_of({{}}, {}, false);
  const ScheduleOptions options = {.microbatches = 4, .frozen = {"encoder0"}, .prefetch = 2};
  const Schedule schedule = make_schedule(topology, options);
  std::string line;
  for (const Op& op : schedule.ranks[0]) line += op.kind == Op::Forward ? fmt::format("F{} ", op.microbatch) : "send ";
  EXPECT_EQ(line, "F0 send F1 F2 F3 send send send ");
}

// --- The verifier, by schedules that are broken on purpose.

struct Broken : ::testing::Test {
  const Topology topology = *topology_of({{.dp = 2}}, {.tp = 2, .pp = 2}, false);
  const ScheduleOptions options = {.microbatches = 4};
  Schedule schedule = make_schedule(topology, options);

  std::vector<Op>& ops(int rank) { return schedule.ranks[static_cast<std::size_t>(rank)]; }
  std::string problems() { return fmt::format("{}", fmt::join(verify(schedule, topology, options), "\n")); }
  std::size_t find(int rank, Op::Kind kind, int microbatch) {
    for (std::size_t i = 0; i < ops(rank).size(); ++i)
      if (ops(rank)[i].kind == kind && ops(rank)[i].microbatch == microbatch) return i;
    throw std::logic_error("no such op");
  }
};

TEST_F(Broken, NotYet) { EXPECT_EQ(problems(), ""); }

TEST_F(Broken, ASendAndItsReceiveSwappedForLaterOnesHang) {
  std::vector<std::size_t> exchanges;
  for (std::size_t i = 0; i < ops(2).size(); ++i)
    if (ops(2)[i].kind == Op::Exchange) exchanges.push_back(i);
  std::swap(ops(2)[exchanges[0]], ops(2)[exchanges[3]]);
  EXPECT_THAT(problems(), HasSubstr("waits for ever"));
}

TEST_F(Broken, AMissingReceiveIsFound) {
  for (Op& op : ops(2))
    if (op.kind == Op::Exchange) {
      op.transfers.pop_back();
      break;
    }
  EXPECT_THAT(problems(), HasSubstr("received 0 times"));
}

TEST_F(Broken, BackwardBeforeItsGradientIsFound) {
  std::swap(ops(0)[find(0, Op::Backward, 0)], ops(0)[find(0, Op::Forward, 1)]);
  EXPECT_THAT(problems(), HasSubstr("before what it needs is there"));
}

TEST_F(Broken, AForwardTooManyInFlightIsFound) {
  std::vector<Op>& list = ops(4);  // the last stage holds one
  const std::size_t backward = find(4, Op::Backward, 0), forward = find(4, Op::Forward, 1);
  std::rotate(list.begin() + static_cast<std::ptrdiff_t>(backward),
              list.begin() + static_cast<std::ptrdiff_t>(backward) + 1,
              list.begin() + static_cast<std::ptrdiff_t>(forward) + 1);
  EXPECT_THAT(problems(), HasSubstr("one too many"));
}

TEST_F(Broken, AForgottenBackwardIsFound) {
  ops(4).erase(ops(4).begin() + static_cast<std::ptrdiff_t>(find(4, Op::Backward, 3)));
  EXPECT_THAT(problems(), HasSubstr("never runs backward"));
}

// --- The timeline

TEST(Timeline, OfAPipelineHasItsBubble) {
  const Topology topology = *topology_of({}, {.pp = 4}, false);
  const ScheduleOptions options = {.microbatches = 8};
  const Schedule schedule = make_schedule(topology, options);
  const Timeline timeline = make_timeline(schedule, topology, {{.forward = 1, .backward = 2}});
  EXPECT_DOUBLE_EQ(timeline.end, (8 + 4 - 1) * 3.0);
}

TEST(Timeline, IsDrawnWithALaneForEachRankAndABoxForEachOp) {
  const Topology topology = *topology_of({{.dp = 2}}, {.tp = 2}, false);
  const ScheduleOptions options = {.microbatches = 3};
  const Schedule schedule = make_schedule(topology, options);
  const std::string svg = draw_svg(schedule, topology, make_timeline(schedule, topology, {{}, {}}));
  const auto count = [&](const std::string& text) {
    std::size_t found = 0;
    for (std::size_t at = svg.find(text); at != svg.npos; at = svg.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("class=\"lane\""), 4u);
  EXPECT_EQ(count("<title>"), 4u * 6);
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

}  // namespace
}  // namespace braid
