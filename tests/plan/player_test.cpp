// When ops run for given durations, computed by hand; which ops the list has beside forwards, backwards and exchanges;
// and what the verifier says when those are broken.
#include "plan/player.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "support/grid_sizes.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Sizes = testing::GridSizes;

Topology topology_of(const std::vector<Sizes>& encoders, const Sizes& language, bool colocated = false,
                     int microbatches = 1) {
  TopologyConfig config;
  config.colocated = colocated;
  for (std::size_t i = 0; i < encoders.size(); ++i)
    config.modules.push_back(testing::module_of("encoder" + std::to_string(i), ModuleKind::Encoder, encoders[i]));
  config.modules.push_back(testing::module_of("language", ModuleKind::Language, language));
  const int micro_batch = encoders.empty() ? 1 : encoders[0].dp;
  return Topology(config, {.micro_batch = micro_batch, .global_batch = micro_batch * language.dp * microbatches});
}

struct Costs {
  double forward = 1, backward = 2, gather = 0, reduce = 0, transfer = 0;
};

double end_of(const Topology& topology, const ScheduleOptions& options, const Costs& costs) {
  const auto duration = [&](int, const Op& op) {
    return op.kind == Op::Forward       ? costs.forward
           : op.kind == Op::Backward    ? costs.backward
           : op.kind == Op::StartGather ? costs.gather
           : op.kind == Op::StartReduce ? costs.reduce
                                        : 0;
  };
  const Play got = play(verified_schedule(topology, options), topology,
                        {.duration = duration, .transfer = [&](const Edge&, int) { return costs.transfer; }});
  EXPECT_THAT(got.stuck, IsEmpty());
  return got.end;
}

// Forward, transfer, forward, backward, transfer, backward.
TEST(Player, ATransferDelaysTheStageThatReceives) {
  EXPECT_DOUBLE_EQ(end_of(topology_of({}, {.pp = 2}), {}, {.transfer = 0.5}), 1 + 0.5 + 1 + 2 + 0.5 + 2);
}

// The second stage posts each receive but the first before the forward in front of the one that reads it.
TEST(Player, ATransferRunsBesideTheForwardInFrontOfItsReader) {
  const Topology topology = topology_of({}, {.pp = 2}, false, 3);
  EXPECT_DOUBLE_EQ(end_of(topology, {.microbatches = 3, .forward_only = true}, {.transfer = 0.5}), 1 + 0.5 + 3 * 1);
  EXPECT_DOUBLE_EQ(end_of(topology, {.microbatches = 3, .forward_only = true}, {.transfer = 1.5}), 1 + 3 * 1.5 + 1);
}

// The encoder computes in less time than the language model. Of 16 transfers only the first and the last delay
// anything: nothing can run during these.
TEST(Player, EmbeddingsAndTheirGradientsTravelWhileBothModulesCompute) {
  const Topology topology = topology_of({{}}, {}, false, 8);
  const auto duration = [](int rank, const Op& op) {
    const double language = op.kind == Op::Forward ? 1 : op.kind == Op::Backward ? 2 : 0;
    return rank == 0 ? language / 10 : language;
  };
  const Play got = play(verified_schedule(topology, {.microbatches = 8}), topology,
                        {.duration = duration, .transfer = [](const Edge&, int) { return 0.5; }});
  EXPECT_DOUBLE_EQ(got.end, 0.1 + 0.5 + 8 * 3 + 0.5 + 0.2);
}

// Rank 0 has the encoder, ranks 1 and 2 the stages of the language model. Rank 1 posts the receive of the second
// embeddings before its first forward; they take long, and meanwhile it sends the result of that forward to rank 2.
TEST(Player, AReceiveThatWaitsHoldsBackNoOtherChannel) {
  const Topology topology = topology_of({{}}, {.pp = 2}, false, 2);
  const ScheduleOptions options = {.microbatches = 2};
  const Schedule schedule = verified_schedule(topology, options);
  const auto find = [&](std::size_t rank, auto wanted) {
    const auto& ops = schedule.ranks[rank];
    return static_cast<std::size_t>(std::find_if(ops.begin(), ops.end(), wanted) - ops.begin());
  };
  const auto is_first_forward = [](const Op& op) { return op.kind == Op::Forward && op.microbatch == 0; };
  EXPECT_LT(find(1, [](const Op& op) { return op.kind == Op::Exchange && op.transfers[0].microbatch == 1; }),
            find(1, is_first_forward));
  const auto duration = [](int rank, const Op& op) {
    return !op.computes() ? 0.0 : rank == 0 && op.microbatch == 1 ? 100.0 : 1.0;
  };
  const auto begins = [&](bool blocks) {
    return play(schedule, topology, {.communication_blocks = blocks, .duration = duration})
        .ranks[2][find(2, is_first_forward)]
        .begin;
  };
  EXPECT_EQ(begins(false), 2);
  EXPECT_EQ(begins(true), 102);
}

TEST(Player, AReductionRunsBesideTheLastBackward) {
  const Topology topology = topology_of({}, {.dp = 2}, false, 2);
  for (const double reduce : {1.5, 5.0}) {
    const double computed = 2 * (1 + 2);
    EXPECT_DOUBLE_EQ(end_of(topology, {.microbatches = 2}, {.reduce = reduce}), computed + reduce);
    EXPECT_DOUBLE_EQ(end_of(topology, {.microbatches = 2, .overlap_reduce = true}, {.reduce = reduce}),
                     computed - 2 + std::max(2.0, reduce));
  }
}

// With overlap, the language model's reduction runs from 2 to 5 and the encoder's, started at 4, from 5 to 8; without,
// they run from 4 to 7 and from 7 to 10.
TEST(Player, TheReductionsOfARankRunOneAfterTheOther) {
  const Topology topology = topology_of({{.dp = 2}}, {.dp = 2}, true);
  EXPECT_DOUBLE_EQ(end_of(topology, {.overlap_reduce = true}, {.reduce = 3}), 8);
  EXPECT_DOUBLE_EQ(end_of(topology, {}, {.reduce = 3}), 10);
}

// The encoder's parameters arrive while its first forward runs from 0 to 1, and those of the language model after them,
// from 1 to 2. Gathers of 2 delay the end of both forwards by 1.
TEST(Player, AGatherRunsBesideTheFirstForward) {
  const Topology topology = topology_of({{.dp = 2}}, {.dp = 2}, true);
  const double computed = 1 + 1 + 2 + 2;
  EXPECT_DOUBLE_EQ(end_of(topology, {.overlap_gather = true}, {.gather = 1}), computed);
  EXPECT_DOUBLE_EQ(end_of(topology, {.overlap_gather = true}, {.gather = 2}), computed + 2);
  EXPECT_DOUBLE_EQ(end_of(topology, {}, {.gather = 1}), computed + 2);
}

TEST(Player, OverlapWithoutDurationsChangesNothing) {
  const Topology topology = topology_of({{.dp = 2}}, {.tp = 2, .dp = 2, .pp = 2}, false, 4);
  EXPECT_DOUBLE_EQ(end_of(topology, {.microbatches = 4}, {}),
                   end_of(topology, {.microbatches = 4, .overlap_reduce = true, .overlap_gather = true}, {}));
}

// --- Loads

// Every forward that reads its batch finds it loaded, before the forward or backward in front of it.
void expect_loads_ahead(const Topology& topology, const ScheduleOptions& options) {
  for (const std::vector<Op>& ops : verified_schedule(topology, options).ranks) {
    std::vector<const Op*> computes;
    int loads = 0, readers = 0;
    for (auto load = ops.begin(); load != ops.end(); ++load) {
      if (load->computes()) computes.push_back(&*load);
      readers += load->kind == Op::Forward && reads_batch(topology, load->stage);
      if (load->kind != Op::Load) continue;
      ++loads;
      const auto is_forward = [&](const Op& op) {
        return op.kind == Op::Forward && op.stage == load->stage && op.microbatch == load->microbatch;
      };
      const auto between =
          std::count_if(load, std::find_if(load, ops.end(), is_forward), [](const Op& op) { return op.computes(); });
      EXPECT_EQ(between, computes.empty() && loads == 1 ? 0 : 1) << describe(*load, topology);
    }
    EXPECT_EQ(loads, readers);
  }
}

TEST(Loads, RunAheadInEveryGenerator) {
  expect_loads_ahead(topology_of({{.dp = 2}}, {.tp = 2, .pp = 2}), {.microbatches = 4});
  expect_loads_ahead(topology_of({{.dp = 2}}, {.tp = 2, .pp = 2}), {.microbatches = 4, .prefetch = 2});
  expect_loads_ahead(topology_of({{.dp = 2}}, {.tp = 2, .pp = 2}), {.microbatches = 4, .forward_only = true});
  expect_loads_ahead(topology_of({{.dp = 2}}, {.tp = 2}, true), {.microbatches = 4});
  expect_loads_ahead(topology_of({{.dp = 2}}, {.pp = 2}, true), {.microbatches = 4});
  expect_loads_ahead(topology_of({{.dp = 2}}, {.pp = 2, .vpp = 2}, false, 4), {.microbatches = 4});
  expect_loads_ahead(topology_of({}, {.pp = 2, .vpp = 2}), {.microbatches = 1, .forward_only = true});
}

// --- The verifier, with lists that are broken on purpose. Ranks 0 and 1 have the encoder's replicas.

struct BrokenCollectives : ::testing::Test {
  const Topology topology = topology_of({{.dp = 2}}, {.tp = 2, .pp = 2}, false, 4);
  ScheduleOptions options = {.microbatches = 4, .overlap_reduce = true, .overlap_gather = true};
  Schedule schedule = make_schedule(topology, options);

  std::vector<Op>& ops(int rank) { return schedule.ranks[static_cast<std::size_t>(rank)]; }
  std::vector<Op>::iterator find(int rank, Op::Kind kind, int microbatch = 0) {
    return std::find_if(ops(rank).begin(), ops(rank).end(),
                        [&](const Op& op) { return op.kind == kind && op.microbatch == microbatch; });
  }
  void move_to(std::vector<Op>::iterator from, std::vector<Op>::iterator to) {
    from < to ? std::rotate(from, from + 1, to + 1) : std::rotate(to, from, from + 1);
  }
  std::string problems() { return fmt::format("{}", fmt::join(verify(schedule, topology, options), "\n")); }
};

TEST_F(BrokenCollectives, NotYet) { EXPECT_EQ(problems(), ""); }

TEST_F(BrokenCollectives, AMissingOpIsFound) {
  const Schedule good = schedule;
  for (const auto& [kind, words] : {std::pair(Op::StartGather, "the start of the gather of encoder0, stage 0 0 times"),
                                    {Op::EndGather, "the end of the gather of encoder0, stage 0 0 times"},
                                    {Op::StartReduce, "the start of the reduction of encoder0, stage 0 0 times"},
                                    {Op::EndReduce, "the end of the reduction of encoder0, stage 0 0 times"}}) {
    schedule = good;
    ops(1).erase(find(1, kind));
    EXPECT_THAT(problems(), HasSubstr(std::string("rank 1 runs ") + words));
  }
}

TEST_F(BrokenCollectives, AnOpThatRunsTwiceIsFound) {
  for (const auto kind : {Op::StartGather, Op::EndGather, Op::StartReduce, Op::EndReduce}) {
    schedule = make_schedule(topology, options);
    const auto found = find(0, kind);
    ops(0).insert(found, *found);
    EXPECT_THAT(problems(), HasSubstr("stage 0 2 times"));
  }
}

TEST_F(BrokenCollectives, AForwardBeforeItsParametersIsFound) {
  move_to(find(1, Op::StartGather), find(1, Op::Forward, 0));
  EXPECT_THAT(problems(), HasSubstr("rank 1: forward of encoder0, microbatch 0, runs before the gather of its"));
  schedule = make_schedule(topology, options);
  move_to(find(1, Op::EndGather), find(1, Op::Forward, 1));
  EXPECT_THAT(problems(), HasSubstr("rank 1: forward of encoder0, microbatch 1, runs before the end of that gather"));
}

TEST_F(BrokenCollectives, AGatherThatDoesNotOverlapIsFound) {
  move_to(find(1, Op::EndGather), find(1, Op::Forward, 0));
  EXPECT_THAT(problems(), HasSubstr("rank 1: forward of encoder0, microbatch 0, runs after the end of that gather"));
}

TEST_F(BrokenCollectives, AGatherThatEndsBeforeItStartsIsFound) {
  move_to(find(0, Op::EndGather), find(0, Op::StartGather));
  EXPECT_THAT(problems(), HasSubstr("rank 0: the end of the gather of encoder0, stage 0 comes before it has started"));
}

TEST_F(BrokenCollectives, AReductionBeforeTheLastBackwardIsFound) {
  move_to(find(2, Op::StartReduce), find(2, Op::Backward, 2));
  EXPECT_THAT(problems(), HasSubstr("the start of the reduction of language, stage 0 comes after 2 backwards, not 3"));
}

TEST_F(BrokenCollectives, AReductionThatDoesNotOverlapIsFound) {
  move_to(find(2, Op::StartReduce), find(2, Op::Backward, 3));
  EXPECT_THAT(problems(), HasSubstr("the start of the reduction of language, stage 0 comes after 4 backwards, not 3"));
}

TEST_F(BrokenCollectives, ABackwardAfterItsReductionIsFound) {
  move_to(find(2, Op::EndReduce), find(2, Op::Backward, 3));
  EXPECT_THAT(problems(), HasSubstr("backward of language, microbatch 3, runs after its gradients were reduced"));
}

TEST_F(BrokenCollectives, AReductionAfterTheUpdateIsFound) {
  move_to(find(2, Op::EndReduce), find(2, Op::Update));
  EXPECT_THAT(problems(), HasSubstr("rank 2 must update once, after all ops but gathers"));
}

TEST_F(BrokenCollectives, GathersAreWhereTheOptionsSay) {
  move_to(find(0, Op::StartGather), ops(0).end() - 1);
  EXPECT_THAT(problems(), HasSubstr("the start of the gather of encoder0, stage 0 comes after the update"));
  schedule = make_schedule(topology, options);
  options.overlap_gather = false;
  EXPECT_THAT(problems(), HasSubstr("the start of the gather of encoder0, stage 0 comes before the update"));
}

TEST_F(BrokenCollectives, AnUpdateThatIsNotWantedIsFound) {
  options.updates = false;
  EXPECT_THAT(problems(), ::testing::AllOf(HasSubstr("rank 0 must not update"), HasSubstr("is not updated")));
}

// Two replicas of a rank with two stages start their gathers in different orders.
TEST(OrderOfGathers, MustBeTheSameOnAllRanks) {
  const Topology topology = topology_of({}, {.dp = 2, .pp = 2, .vpp = 2}, false, 2);
  const ScheduleOptions options = {.microbatches = 2, .overlap_gather = true};
  Schedule schedule = make_schedule(topology, options);
  EXPECT_THAT(verify(schedule, topology, options), IsEmpty());
  std::swap(schedule.ranks[0][0], schedule.ranks[0][1]);
  EXPECT_THAT(verify(schedule, topology, options),
              ::testing::Contains(HasSubstr("rank 0 deadlocks at op 0: it waits for the others for the start of the "
                                            "gather of language, stage 2")));
}

}  // namespace
}  // namespace braid
