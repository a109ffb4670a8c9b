// Training over NCCL, with ranks that share a GPU: every layout learns what one process learns on a CPU. One launch
// trains all layouts of its number of ranks, one after the other.
#include <gtest/gtest.h>
#include "support/ranks.h"
#include "train/training_run.h"

namespace braid {
namespace {

using testing::alone;
using testing::GridSizes;
using testing::topology_of;
using Layout = testing::TrainingLayout;

class NcclTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::getenv("BRAID_TEST_BACKEND")) GTEST_SKIP() << "needs GPUs that communicate over NCCL";
  }
};

// In float32 only the first step is compared: Adam divides a gradient by its own size, so that a rounding of a gradient
// near zero changes a weight as much as any other.
void train_all(int ranks, const std::vector<Layout>& layouts) {
  testing::on_processes(ranks, [&](World& world) {
    for (Layout layout : layouts) {
      SCOPED_TRACE(::testing::PrintToString(layout));
      const Topology topology = topology_of(layout);
      ASSERT_EQ(topology.world_size(), ranks);
      expect_same_on_rank(testing::train_on(world, layout, topology), alone(layout));
      layout.dtype = at::kFloat;
      const TrainingReport single = testing::train_on(world, layout, topology, {.steps = 1}).reports[0];
      const TrainingReport& expected = alone(layout).reports[0];
      EXPECT_NEAR(single.loss, expected.loss, 1e-5 * expected.loss);
      EXPECT_NEAR(single.update.grad_norm, expected.update.grad_norm, 1e-4 * expected.update.grad_norm);
    }
  });
}

TEST_F(NcclTraining, OfTwoRanksEqualsOneProcess) {
  train_all(
      2,
      {Layout{}, Layout{.images = {.dp = 2}, .language = {.tp = 2}, .colocated = true, .sp = true, .micro_batch = 2},
       Layout{.images = {.dp = 2}, .language = {.cp = 2}, .colocated = true, .micro_batch = 2},
       Layout{.images = {.dp = 2}, .language = {.dp = 2, .ep = 2}, .colocated = true, .recompute = true},
       Layout{.images = {.tp = 2}, .language = {.pp = 2, .vpp = 2}, .colocated = true},
       Layout{.images = {.dp = 2}, .language = {.dp = 2}, .colocated = true, .overlap = true, .gather_overlap = true},
       Layout{.images = {.dp = 2},
              .language = {.tp = 2, .ep = 2},
              .colocated = true,
              .sp = true,
              .micro_batch = 2,
              .overlap = true,
              .pieces = {2, 2}}});
}

TEST_F(NcclTraining, OfFourRanksEqualsOneProcess) {
  train_all(4, {Layout{.images = {.dp = 2}, .language = {.tp = 2}, .sp = true, .micro_batch = 2},
                Layout{.images = {.tp = 2}, .language = {.pp = 2}},
                Layout{.images = {.dp = 2}, .language = {.cp = 2}, .micro_batch = 2},
                Layout{.images = {.dp = 2}, .language = {.dp = 2, .ep = 2}, .overlap = true, .gather_overlap = true},
                Layout{.images = {.dp = 2}, .language = {.pp = 2, .vpp = 2}, .micro_batch = 2},
                Layout{.images = {.dp = 4},
                       .language = {.tp = 2, .dp = 2, .ep = 4},
                       .colocated = true,
                       .sp = true,
                       .micro_batch = 2,
                       .overlap = true},
                Layout{.audio = {.dp = 1}, .language = {.dp = 2}, .provider = testing::small_omni}});
}

TEST_F(NcclTraining, OfEightRanksEqualsOneProcess) {
  train_all(
      8,
      {Layout{
           .images = {.dp = 4}, .language = {.tp = 2, .dp = 2, .ep = 4}, .sp = true, .micro_batch = 2, .overlap = true},
       Layout{.images = {.dp = 2, .pp = 2}, .language = {.tp = 2, .pp = 2}, .micro_batch = 2},
       Layout{.images = {.tp = 2, .dp = 2}, .language = {.tp = 2, .cp = 2}, .sp = true, .micro_batch = 2},
       Layout{.images = {.dp = 4}, .language = {.tp = 2, .dp = 2, .ep = 2, .expt_tp = 2}, .micro_batch = 2},
       Layout{.images = {.dp = 8}, .language = {.dp = 8, .ep = 8}, .colocated = true, .micro_batch = 1},
       Layout{.images = {.dp = 8},
              .language = {.tp = 2, .cp = 2, .dp = 2, .ep = 2},
              .colocated = true,
              .sp = true,
              .micro_batch = 4,
              .overlap = true,
              .gather_overlap = true},
       Layout{.images = {.dp = 4}, .language = {.dp = 2, .pp = 2, .vpp = 2}, .recompute = true, .micro_batch = 2},
       Layout{
           .images = {.dp = 2}, .audio = {.dp = 2}, .language = {.tp = 2, .dp = 2}, .provider = testing::small_omni}});
}

}  // namespace
}  // namespace braid
