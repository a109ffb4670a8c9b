// Schedules are verified without running them: every layout up to 16 ranks with up to 8 microbatches, and production
// topologies. The verifier itself is tested with broken schedules.
#include "plan/schedule.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "plan/player.h"
#include "plan/show.h"
#include "support/grid_sizes.h"

namespace braid {
namespace {

using ::testing::AllOf;
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

// A topology in which both grids divide the samples, or nothing.
std::optional<Topology> topology_of(const std::vector<Sizes>& encoders, const Sizes& language, bool colocated,
                                    int microbatches = 1) {
  TopologyConfig config;
  config.colocated = colocated;
  for (std::size_t i = 0; i < encoders.size(); ++i)
    config.modules.push_back(module_of("encoder" + std::to_string(i), ModuleKind::Encoder, encoders[i]));
  config.modules.push_back(module_of("language", ModuleKind::Language, language));
  int micro_batch = 1;
  for (const Sizes& encoder : encoders) micro_batch *= encoder.dp;
  const Workload workload = {.micro_batch = micro_batch,
                             .global_batch = micro_batch * language.dp * microbatches,
                             .num_experts = language.ep > 1 ? 128 : 0};
  if (!validate(config, workload).empty()) return std::nullopt;
  return Topology(config, workload);
}

std::vector<std::string> problems_of(const Topology& topology, const ScheduleOptions& options) {
  return verify(make_schedule(topology, options), topology, options);
}

TEST(Schedule, EndsInEveryLayoutUpTo16Ranks) {
  int checked = 0;
  const auto check = [&](const Topology& topology, const ScheduleOptions& options) {
    ++checked;
    ASSERT_THAT(problems_of(topology, options), IsEmpty())
        << topology.coordinates_of(0) << " of " << topology.world_size() << " ranks, " << options.microbatches
        << " microbatches";
  };
  for (const Sizes& language : all_sizes(16))
    for (const Sizes& encoder : all_sizes(16))
      for (const bool colocated : {false, true}) {
        if (encoder.cp > 1) continue;  // encoders do not support it
        if (colocated ? language.ranks() != encoder.ranks() : language.ranks() + encoder.ranks() > 16) continue;
        const std::optional<Topology> topology = topology_of({encoder}, language, colocated);
        if (!topology) continue;
        for (const int microbatches : {1, 2, 3, 5, 8}) {
          check(*topology, {.microbatches = microbatches, .overlap_reduce = microbatches % 2 == 0});
          check(*topology, {.microbatches = microbatches,
                            .frozen = {"encoder0"},
                            .overlap_reduce = microbatches % 2 == 1,
                            .overlap_gather = true,
                            .prefetch = microbatches % 3});
          if (encoder.pp == 1) continue;  // its only stage is the last
          check(*topology,
                {.microbatches = microbatches, .frozen_before_last_stage = {"encoder0"}, .prefetch = microbatches % 3});
        }
      }
  EXPECT_GT(checked, 80000);
}

// 9, 33, 68 and 100 nodes of 8 ranks; the second of 33 nodes is that of recipes/nemotron-vlm-54l-mock.yaml. Their
// encoders have one stage; variants with two also test that only the last may have a backward.
TEST(Schedule, EndsInTheProductionTopologies) {
  struct Production {
    int nodes;
    Sizes encoder, language;
    int microbatches;
  };
  for (const Production& production : {Production{9, {.dp = 8}, {.tp = 2, .dp = 32, .ep = 16}, 6},
                                       Production{33, {.dp = 8}, {.tp = 2, .dp = 128, .ep = 8}, 6},
                                       Production{33, {.dp = 8}, {.tp = 4, .dp = 64, .ep = 16}, 12},
                                       Production{68, {.dp = 32}, {.tp = 2, .dp = 256, .ep = 8}, 3},
                                       Production{100, {.dp = 32}, {.tp = 2, .dp = 384, .ep = 8}, 2}})
    for (const ScheduleOptions& frozen :
         {ScheduleOptions{}, {.frozen = {"encoder0"}}, {.frozen_before_last_stage = {"encoder0"}}}) {
      SCOPED_TRACE(production.nodes);
      const Topology topology = *topology_of({production.encoder}, production.language, false);
      EXPECT_EQ(topology.world_size(), 8 * production.nodes);
      ScheduleOptions options = frozen;
      options.microbatches = production.microbatches;
      EXPECT_THAT(problems_of(topology, options), IsEmpty());
      Sizes deeper = production.encoder;
      deeper.pp = 2;
      EXPECT_THAT(problems_of(*topology_of({deeper}, production.language, false), options), IsEmpty());
    }
}

TEST(Schedule, EndsWithTwoEncodersOfDifferentDepth) {
  for (const bool colocated : {false, true})
    for (int microbatches = 1; microbatches <= 6; ++microbatches)
      for (const ScheduleOptions& frozen : {ScheduleOptions{},
                                            {.frozen = {"encoder1"}},
                                            {.frozen = {"encoder0", "encoder1"}},
                                            {.frozen_before_last_stage = {"encoder0"}},
                                            {.frozen = {"encoder1"}, .frozen_before_last_stage = {"encoder0"}},
                                            {.frozen_before_last_stage = {"encoder0", "encoder1"}}}) {
        ScheduleOptions options = frozen;
        options.microbatches = microbatches;
        options.prefetch = 1;
        const auto topology = topology_of({{.dp = 2, .pp = 2}, {.tp = 2, .dp = 2}}, {.tp = 2, .pp = 2}, colocated);
        EXPECT_THAT(problems_of(*topology, options), IsEmpty());
      }
}

// Interleaved stages, with encoders before them and without, on their own ranks and on those of the language model.
TEST(Schedule, EndsWithInterleavedStages) {
  int checked = 0;
  for (const Sizes& language : all_sizes(16))
    for (int vpp = 2; vpp <= 4 && language.pp > 1; ++vpp)
      for (const Sizes& encoder : all_sizes(8))
        for (const bool colocated : {false, true}) {
          if (encoder.cp > 1 || encoder.tp > 1) continue;
          if (colocated ? language.ranks() != encoder.ranks() : language.ranks() + encoder.ranks() > 16) continue;
          Sizes interleaved = language;
          interleaved.vpp = vpp;
          for (const int microbatches : {1, language.pp, 2 * language.pp}) {
            const auto topology = topology_of({encoder}, interleaved, colocated, microbatches);
            if (!topology) continue;
            for (const ScheduleOptions& frozen :
                 {ScheduleOptions{}, {.frozen = {"encoder0"}}, {.forward_only = true}}) {
              ScheduleOptions options = frozen;
              options.microbatches = microbatches;
              options.overlap_reduce = options.overlap_gather = microbatches > language.pp;
              ++checked;
              ASSERT_THAT(problems_of(*topology, options), IsEmpty())
                  << topology->coordinates_of(0) << " of " << topology->world_size() << " ranks, vpp " << vpp << ", "
                  << options.microbatches << " microbatches";
            }
          }
        }
  EXPECT_GT(checked, 5000);
}

// A stage alternates forwards and backwards, after as many forwards as there are stages after it.
TEST(Schedule, IsOneForwardOneBackward) {
  const Topology topology = *topology_of({{}}, {.pp = 2}, false);
  const Schedule schedule = make_schedule(topology, {.microbatches = 4});
  std::vector<std::string> lines;
  for (const std::vector<Op>& ops : schedule.ranks) {
    std::string line;
    for (const Op& op : ops)
      if (op.computes()) line += fmt::format("{}{} ", op.kind == Op::Forward ? "F" : "B", op.microbatch);
    lines.push_back(line);
  }
  EXPECT_THAT(lines, ::testing::ElementsAre("F0 F1 F2 B0 F3 B1 B2 B3 ", "F0 F1 B0 F2 B1 F3 B2 B3 ",
                                            "F0 B0 F1 B1 F2 B2 F3 B3 "));
}

// Two stages per rank, two ranks, four microbatches: as in Megatron's interleaved schedule.
TEST(Schedule, InterleavesTheStagesOfARank) {
  const Topology topology = *topology_of({}, {.pp = 2, .vpp = 2}, false, 4);
  std::vector<std::string> lines;
  for (const std::vector<Op>& ops : make_schedule(topology, {.microbatches = 4}).ranks) {
    std::string line;
    for (const Op& op : ops)
      if (op.computes())
        line += fmt::format("{}{}.{} ", op.kind == Op::Forward ? "F" : "B", op.stage.index, op.microbatch);
    lines.push_back(line);
  }
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3 ",
                         "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3 "));
}

// a: embeddings, or activations between stages; g: their gradients; > sent, < received.
std::string transfers_and_turns(const std::vector<Op>& ops) {
  std::string line;
  for (const Op& op : ops) {
    if (op.computes()) line += fmt::format("{}{} ", op.kind == Op::Forward ? "F" : "B", op.microbatch);
    for (const Transfer& t : op.transfers)
      line += fmt::format("{}{}{} ", t.outgoing ? ">" : "<", t.kind == Transfer::Activation ? "a" : "g", t.microbatch);
  }
  return line;
}

// It also gives the gradients time to travel.
TEST(Schedule, PrefetchRunsTheEncoderAhead) {
  const Topology topology = *topology_of({{}}, {}, false);
  EXPECT_EQ(transfers_and_turns(make_schedule(topology, {.microbatches = 4}).ranks[0]),
            "F0 >a0 F1 >a1 <g0 B0 F2 >a2 <g1 B1 F3 >a3 <g2 <g3 B2 B3 ");
  EXPECT_EQ(transfers_and_turns(make_schedule(topology, {.microbatches = 4, .prefetch = 1}).ranks[0]),
            "F0 >a0 F1 >a1 <g0 F2 >a2 B0 <g1 F3 >a3 <g2 B1 <g3 B2 B3 ");
}

// A tensor is sent right after the op that computes it. It is received before the op in front of the one that reads it,
// unless its sender cannot have computed it by then.
TEST(Schedule, ReceivesAreOneForwardOrBackwardAhead) {
  const Topology topology = *topology_of({{}}, {.pp = 2}, false);
  const Schedule schedule = make_schedule(topology, {.microbatches = 4});
  EXPECT_EQ(transfers_and_turns(schedule.ranks[0]), "F0 >a0 F1 >a1 F2 >a2 <g0 B0 F3 >a3 <g1 <g2 B1 <g3 B2 B3 ");
  EXPECT_EQ(transfers_and_turns(schedule.ranks[1]),
            "<a0 <a1 F0 >a0 F1 >a1 <a2 <g0 B0 >g0 F2 >a2 <a3 <g1 B1 >g1 F3 >a3 <g2 <g3 B2 >g2 B3 >g3 ");
  EXPECT_EQ(transfers_and_turns(schedule.ranks[2]), "<a0 F0 <a1 B0 >g0 F1 <a2 B1 >g1 F2 <a3 B2 >g2 F3 B3 >g3 ");
}

// --- The verifier, with schedules that are broken on purpose.

struct Broken : ::testing::Test {
  explicit Broken(const Sizes& encoder = {.dp = 2}, const ScheduleOptions& options = {.microbatches = 4})
      : topology(*topology_of({encoder}, {.tp = 2, .pp = 2}, false)), options(options) {}

  const Topology topology;
  const ScheduleOptions options;
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
  EXPECT_THAT(problems(), HasSubstr("deadlocks"));
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
  for (const int rank : {0, 1})
    std::swap(ops(rank)[find(rank, Op::Backward, 0)], ops(rank)[find(rank, Op::Forward, 1)]);
  EXPECT_THAT(problems(), HasSubstr("before its input has arrived"));
}

TEST_F(Broken, AForwardTooManyInFlightIsFound) {
  for (const int rank : {4, 5}) {  // the last stage holds one
    const auto backward = ops(rank).begin() + static_cast<std::ptrdiff_t>(find(rank, Op::Backward, 0));
    const auto forward = ops(rank).begin() + static_cast<std::ptrdiff_t>(find(rank, Op::Forward, 1));
    std::rotate(backward, backward + 1, forward + 1);
  }
  EXPECT_THAT(problems(), HasSubstr("exceeds the limit of microbatches in flight"));
}

TEST_F(Broken, AnUpdateBeforeTheEndIsFound) {
  const std::size_t update = find(2, Op::Update, 0);
  std::swap(ops(2)[update - 1], ops(2)[update]);
  EXPECT_THAT(problems(), HasSubstr("rank 2 must update once, after all ops but gathers"));
}

TEST_F(Broken, AMissingBeginIsFound) {
  ops(0).erase(ops(0).begin());
  EXPECT_THAT(problems(), HasSubstr("rank 0 must begin the step once, before all ops but gathers"));
}

TEST(Interleaved, ReductionsInAnotherOrderAreFound) {
  const Topology topology = *topology_of({}, {.pp = 2, .vpp = 2}, false, 4);
  const ScheduleOptions options = {.microbatches = 4};
  Schedule schedule = make_schedule(topology, options);
  std::vector<Op>& ops = schedule.ranks[0];
  std::vector<std::size_t> reductions;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].kind == Op::StartReduce) reductions.push_back(i);
  ASSERT_EQ(reductions.size(), 2U);
  std::swap(ops[reductions[0]].stage, ops[reductions[1]].stage);
  EXPECT_THAT(fmt::format("{}", fmt::join(verify(schedule, topology, options), "\n")),
              HasSubstr("rank 0 reduces stage 2 of language after stage 0"));
}

// The last two microbatches of a prefetching encoder are sent in the wrong order.
TEST(Order, OfMessagesBetweenTwoRanksIsChecked) {
  const Topology topology = *topology_of({{}}, {}, false);
  const ScheduleOptions options = {.microbatches = 4, .frozen = {"encoder0"}, .prefetch = 2};
  Schedule schedule = make_schedule(topology, options);
  EXPECT_THAT(verify(schedule, topology, options), IsEmpty());
  std::vector<Op*> sends;
  for (Op& op : schedule.ranks[0])
    if (op.kind == Op::Exchange) sends.push_back(&op);
  ASSERT_EQ(sends.size(), 4U);
  std::swap(*sends[2], *sends[3]);
  EXPECT_THAT(verify(schedule, topology, options),
              ::testing::Contains("rank 1 does not receive in the order in which rank 0 sends"));
}

// The ranks of a stage have collectives in their forwards and backwards, so they must agree on the order of those.
TEST_F(Broken, TensorParallelRanksInAnotherOrderHang) {
  for (const auto kind : {Op::Load, Op::Forward})
    std::swap(ops(2)[find(2, kind, 2)].microbatch, ops(2)[find(2, kind, 3)].microbatch);
  EXPECT_THAT(problems(),
              AllOf(HasSubstr("sends the activation of microbatch 2 from rank 2 to rank 4 before it is computed"),
                    HasSubstr("the others for forward of language")));
}

TEST_F(Broken, AForgottenBackwardIsFound) {
  ops(4).erase(ops(4).begin() + static_cast<std::ptrdiff_t>(find(4, Op::Backward, 3)));
  EXPECT_THAT(problems(), HasSubstr("never runs backward"));
}

// Rank 2 awaits the gradient of microbatch 0 before it sends microbatch 1 to rank 4, which awaits microbatch 1 before
// it sends that gradient. Only if both ranks had all transfers in one queue would they deadlock.
TEST_F(Broken, AReceiveInFrontOfASendThatItsSenderAwaitsHangsInOneQueue) {
  const auto has = [](const Op& op, Transfer::Kind kind, int microbatch) {
    return op.kind == Op::Exchange && op.transfers[0].kind == kind && op.transfers[0].microbatch == microbatch;
  };
  const auto receive = std::find_if(ops(2).begin(), ops(2).end(), [&](const Op& op) {
    return has(op, Transfer::Gradient, 0) && !op.transfers[0].outgoing;
  });
  const auto send = std::find_if(ops(2).begin(), ops(2).end(), [&](const Op& op) {
    return has(op, Transfer::Activation, 1) && op.transfers[0].outgoing;
  });
  ASSERT_LT(send, receive);
  std::rotate(send, receive, receive + 1);
  EXPECT_THAT(problems(), AllOf(HasSubstr("rank 2 deadlocks"), HasSubstr("rank 4 deadlocks"),
                                HasSubstr("the gradient of microbatch 0 from rank 4 to rank 2"),
                                HasSubstr("the activation of microbatch 1 from rank 2 to rank 4")));
  EXPECT_THAT(play(schedule, topology, {}).stuck, IsEmpty());
}

TEST_F(Broken, AReceiveTwoOpsAheadIsFound) {
  const auto is_last = [](const Op& op) {
    return op.kind == Op::Exchange && op.transfers[0].kind == Transfer::Activation && op.transfers[0].microbatch == 3 &&
           !op.transfers[0].outgoing;
  };
  const auto receive = std::find_if(ops(4).begin(), ops(4).end(), is_last);
  const auto earlier = ops(4).begin() + static_cast<std::ptrdiff_t>(find(4, Op::Forward, 2));
  ASSERT_LT(earlier, receive);
  std::rotate(earlier, receive, receive + 1);
  EXPECT_THAT(problems(), HasSubstr("rank 4: forward of language, microbatch 3, receives its input more than one "
                                    "forward or backward ahead"));
}

TEST_F(Broken, AnExchangeOverTwoChannelsIsFound) {
  std::vector<Op*> exchanges;
  for (Op& op : ops(2))
    if (op.kind == Op::Exchange) exchanges.push_back(&op);
  const auto other =
      std::find_if(exchanges.begin(), exchanges.end(), [](const Op* op) { return op->transfers[0].outgoing; });
  exchanges[0]->transfers.push_back((*other)->transfers[0]);
  (*other)->transfers.clear();
  EXPECT_THAT(problems(), AllOf(HasSubstr("in an exchange over another channel"),
                                HasSubstr("rank 2 has an exchange without transfers")));
}

TEST_F(Broken, ASendInPlaceOfAReceiveIsFound) {
  Transfer& transfer = ops(2)[find(2, Op::Exchange, 0)].transfers.at(0);
  ASSERT_FALSE(transfer.outgoing);
  transfer.outgoing = true;
  EXPECT_THAT(problems(), HasSubstr("rank 2 takes no part in the activation of microbatch 0 from rank 0 to rank 2"));
}

// An encoder on ranks 0 to 3 in two stages, of which only the second trains.
struct BrokenFrozen : Broken {
  BrokenFrozen() : Broken({.tp = 2, .pp = 2}, {.microbatches = 4, .frozen_before_last_stage = {"encoder0"}}) {}

  int edge_from(int rank) const {
    const std::vector<Edge> edges = make_edges(topology);
    for (std::size_t i = 0; i < edges.size(); ++i)
      if (edges[i].from_rank == rank) return static_cast<int>(i);
    throw std::logic_error("no such edge");
  }
};

TEST_F(BrokenFrozen, NotYet) { EXPECT_EQ(problems(), ""); }

TEST_F(BrokenFrozen, AGradientToAFrozenStageIsFound) {
  ops(2).push_back({.kind = Op::Exchange, .transfers = {{Transfer::Gradient, edge_from(0), 3, true}}});
  ops(0).push_back({.kind = Op::Exchange, .transfers = {{Transfer::Gradient, edge_from(0), 3, false}}});
  EXPECT_THAT(problems(), HasSubstr("the gradient of microbatch 3 from rank 2 to rank 0 is sent 1 times"));
}

TEST_F(BrokenFrozen, ABackwardOfAFrozenStageIsFound) {
  for (const int rank : {0, 1}) ops(rank).push_back({Op::Backward, {0, 0}, 0});
  EXPECT_THAT(problems(), HasSubstr("rank 1: backward of encoder0, microbatch 0"));
}

TEST(FrozenEncoder, MayHaveNoBackward) {
  const Topology topology = *topology_of({{.tp = 2}}, {}, false);
  const ScheduleOptions options = {.frozen = {"encoder0"}};
  Schedule schedule = make_schedule(topology, options);
  for (const std::size_t rank : {0, 1}) schedule.ranks[rank].push_back({Op::Backward});
  EXPECT_THAT(
      verify(schedule, topology, options),
      ::testing::Contains(HasSubstr("rank 1: backward of encoder0, microbatch 0, is of a stage that does not train")));
}

TEST_F(BrokenFrozen, AForgottenBackwardOfTheLastStageIsFound) {
  ops(3).erase(ops(3).begin() + static_cast<std::ptrdiff_t>(find(3, Op::Backward, 3)));
  EXPECT_THAT(problems(), HasSubstr("rank 3 never runs backward of encoder0, microbatch 3"));
}

// --- The timeline

TEST(Timeline, OfAPipelineHasItsBubble) {
  const Topology topology = *topology_of({}, {.pp = 4}, false);
  const ScheduleOptions options = {.microbatches = 8};
  const Schedule schedule = make_schedule(topology, options);
  const Play timeline = make_timeline(schedule, topology, {{.forward = 1, .backward = 2}});
  EXPECT_DOUBLE_EQ(timeline.end, (8 + 4 - 1) * 3.0);
}

// The idle time of ranks is (pp - 1) (forward + backward) / vpp.
TEST(Timeline, OfInterleavedStagesHasASmallerBubble) {
  for (const int pp : {2, 4})
    for (const int vpp : {2, 3})
      for (const int groups : {1, 2, 3}) {
        const Topology topology = *topology_of({}, {.pp = pp, .vpp = vpp}, false, groups * pp);
        const ScheduleOptions options = {.microbatches = groups * pp};
        const Play timeline =
            make_timeline(make_schedule(topology, options), topology, {{.forward = 1, .backward = 2}});
        EXPECT_NEAR(timeline.end, 3.0 * groups * pp + 3.0 * (pp - 1) / vpp, 1e-9) << pp << " " << vpp << " " << groups;
      }
}

std::string drawn(const Schedule& schedule, const Topology& topology, const std::vector<StageCosts>& costs) {
  return draw_svg(schedule, topology, make_timeline(schedule, topology, costs), costs);
}

int count(const std::string& svg, const std::string& text) {
  int found = 0;
  for (std::size_t at = svg.find(text); at != svg.npos; at = svg.find(text, at + 1)) ++found;
  return found;
}

TEST(Timeline, IsDrawnWithALaneForEachRankAndABoxForEachOp) {
  const Topology topology = *topology_of({{.dp = 2}}, {.tp = 2}, false);
  const ScheduleOptions options = {.microbatches = 3};
  const Schedule schedule = make_schedule(topology, options);
  const std::string svg = drawn(schedule, topology, {{}, {}});
  EXPECT_EQ(count(svg, "class=\"lane\""), 4);
  EXPECT_EQ(count(svg, "<g><title>"), 4 * 6);
  EXPECT_THAT(svg, AllOf(HasSubstr("</svg>"), Not(HasSubstr("each lane stands for"))));
}

// Communication takes no time here, so without overlap there is nothing to show.
TEST(Timeline, ShowsWhenGradientsMayBeReduced) {
  const Topology topology = *topology_of({{.dp = 2}}, {.tp = 2}, false);
  const std::string apart = drawn(make_schedule(topology, {.microbatches = 3}), topology, {{}, {}});
  EXPECT_EQ(count(apart, "class=\"beside\""), 0);
  EXPECT_THAT(apart, Not(HasSubstr("a line under a lane")));
  const std::string overlap =
      drawn(make_schedule(topology, {.microbatches = 3, .overlap_reduce = true}), topology, {{}, {}});
  EXPECT_EQ(count(overlap, "class=\"beside\""), 4);
  EXPECT_THAT(overlap, AllOf(HasSubstr("rank 2: reduction of the gradients of language, stage 0, between 8.0 and 10.0"),
                             HasSubstr("a line under a lane")));
}

// The background of a lane begins after its label, whose letters are at least 7 pixels wide.
TEST(Timeline, TheLongLabelsOfColocatedModulesHaveRoom) {
  const Topology topology = *topology_of({{.dp = 2}}, {.tp = 2}, true);
  const std::string svg = drawn(make_schedule(topology, {.microbatches = 1}), topology, {{}, {}});
  const std::string place = topology.coordinates_of(0);
  EXPECT_THAT(svg, HasSubstr(">0 " + place + "</text>"));
  const std::size_t lane = svg.find("fill=\"#ececec\""), x = svg.rfind("x=\"", lane);
  EXPECT_GT(std::stod(svg.substr(x + 3)), 7.0 * static_cast<double>(place.size() + 2));
}

TEST(Timeline, ALaneThatStandsForManyRanksSaysSo) {
  const Topology topology = *topology_of({{.dp = 8}}, {.tp = 4, .dp = 16, .pp = 2}, false);
  const std::string svg = drawn(make_schedule(topology, {.microbatches = 2}), topology, {{}, {}});
  EXPECT_EQ(count(svg, "class=\"lane\""), 3);
  EXPECT_THAT(svg, AllOf(HasSubstr(">0 encoder0 stage 0 (8 ranks)<"), HasSubstr(">8 language stage 0 (64 ranks)<"),
                         HasSubstr(">72 language stage 1 (64 ranks)<"), HasSubstr("each lane stands for all ranks")));
}

TEST(Timeline, ABackwardThatIsNoWholeOneIsCalledThatAndAMissingOneIsNotInTheLegend) {
  const Topology topology = *topology_of({{.dp = 2}}, {.dp = 2}, false);
  const std::vector<StageCosts> costs = {{.backward = 0.25, .backward_note = "projector only"}, {}};
  const std::string some =
      drawn(make_schedule(topology, {.microbatches = 2, .frozen_before_last_stage = {"encoder0"}}), topology, costs);
  EXPECT_EQ(count(some, ">encoder0 backward (projector only)</text>"), 1);
  EXPECT_EQ(count(some, ": encoder0 backward (projector only), stage 0, microbatch"), 4);
  const std::string none = drawn(make_schedule(topology, {.microbatches = 2, .frozen = {"encoder0"}}), topology, costs);
  EXPECT_THAT(none, Not(HasSubstr("encoder0 backward")));
}

}  // namespace
}  // namespace braid
