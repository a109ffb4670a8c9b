// How much of a layer's communication is hidden.
#include "predict/op_time.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

// An operation, or a byte, per nanosecond; messages take 1 us and 1 GB/s.
HardwareProfile slow_machine() {
  HardwareProfile profile;
  profile.inside_node = {.latency_us = 1, .rates = {{1, 1}}};
  profile.operators[static_cast<std::size_t>(Operator::Product)].rates = {{{1, 1, 1}, 1}};
  profile.operators[static_cast<std::size_t>(Operator::Stream)].rates = {{{1, 1, 1}, 1}};
  return profile;
}

Module four_ranks(int ep) {
  return {.name = "language",
          .is_encoder = false,
          .dense = Grid(0, {{"tp", 2}, {"cp", 1}, {"dp", 2}, {"pp", 1}}),
          .expert = Grid(0, {{"expt_tp", 1}, {"ep", ep}, {"expt_dp", 4 / ep}, {"pp", 1}})};
}

constexpr double kMilli = 1e-3;

// A product of 1 ms and a stream of 2 ms.
Works three_ms() { return {{.op = Operator::Product, .amount = 1e6}, stream_work(Operator::Stream, 2e6)}; }

struct LayerCase {
  Works work = three_ms();
  Collectives collectives{};
  RowsTravel travel = RowsTravel::Alone;
};

OpTime time_of(const LayerCase& c) {
  const HardwareProfile machine = slow_machine();
  const Module module = four_ranks(2);
  GroupTimes groups(module, 0, machine);
  return layer_time(c.work, c.collectives, c.travel, groups, machine);
}

double tp_ms(const Collective& collective) { return time_of({.collectives = {collective}})[CommKind::Tensor] / kMilli; }

TEST(LayerTime, AddsWhatTakesTurns) {
  OpTime time = time_of({.collectives = {{"tp", "all_gather", 1'000'000}, {"ep", "all_to_all", 1'000'000}}});
  EXPECT_NEAR(time.compute / kMilli, 3, 1e-9);
  EXPECT_NEAR(time[CommKind::Tensor] / kMilli, 0.501, 1e-9);  // half of 1 MB, and one step
  EXPECT_NEAR(time[CommKind::Expert] / kMilli, 0.501, 1e-9);
  EXPECT_NEAR(time.seconds() / kMilli, 4.002, 1e-9);
}

// Only products hide communication; streams need the memory.
TEST(LayerTime, HidesWhatRunsBesideProducts) {
  EXPECT_NEAR(tp_ms({"tp", "reduce_scatter", 1'000'000, 1, true}), 0, 1e-9);
  EXPECT_NEAR(tp_ms({"tp", "reduce_scatter", 3'000'000, 1, true}), 1.501 - 1, 1e-9);
}

TEST(LayerTime, HidesAllButOnePiece) {
  EXPECT_NEAR(tp_ms({"tp", "all_gather", 1'000'000, 4}), (4 * 0.001 + 0.5) / 4, 1e-9);
}

// Of the rows' way of 2.002 ms, the first half; no more than the shared expert takes.
TEST(LayerTime, HidesRowsBesideTheSharedExpert) {
  LayerCase c = {.collectives = {{"ep", "all_to_all", 2'000'000}, {"ep", "all_to_all", 2'000'000}},
                 .travel = RowsTravel::BesideSharedExpert};
  EXPECT_NEAR(time_of(c)[CommKind::Expert] / kMilli, 2.002, 1e-9);
  c.work[1].beside_experts = true;  // 2 ms
  EXPECT_NEAR(time_of(c)[CommKind::Expert] / kMilli, 1.001, 1e-9);
  c.work[1].amount = 0.4e6;
  EXPECT_NEAR(time_of(c)[CommKind::Expert] / kMilli, 1.602, 1e-9);
  c.travel = RowsTravel::Alone;
  EXPECT_NEAR(time_of(c)[CommKind::Expert] / kMilli, 2.002, 1e-9);
}

// Two pieces: while one travels, the other is computed.
TEST(LayerTime, HidesPiecesOfRowsBesideExperts) {
  const LayerCase c = {.collectives = {{"ep", "all_to_all", 1'000'000, 2}}};
  EXPECT_NEAR(time_of(c)[CommKind::Expert] / kMilli, 0.502 / 2, 1e-9);
}

}  // namespace
}  // namespace braid
