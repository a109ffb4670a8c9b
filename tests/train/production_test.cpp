// Two production topologies, of 9 nodes (72 ranks) and of 33 nodes (264 ranks), every rank a thread, with a model of
// the smallest widths that they can split: two training steps, so that the second one sees updated weights, equal those
// of one process. A replica has two microbatches on 9 nodes, one on 33. The one with 33 nodes has tp 2; the one with
// tp 4, of recipes/nemotron-vlm-54l-mock.yaml, is only in plan/schedule_test.cpp.
#include <gtest/gtest.h>
#include "train/training_run.h"

namespace braid {
namespace {

using testing::train;

using Layout = testing::TrainingLayout;

Provider narrow_vlm() {
  Provider provider = tiny_vlm();
  auto& language = std::get<HybridLmConfig>(provider.language);
  language.pattern = "ME*";
  language.hidden = 16;
  language.vocab = 64;
  language.heads = language.kv_heads = 2;
  language.mamba_heads = language.mamba_groups = 2;
  language.mamba_state = 4;
  language.experts = 16;
  language.expert_ffn = 8;
  language.shared_ffn = 8;
  EncoderConfig& images = provider.encoders[0];
  auto& vision = std::get<RadioConfig>(images.model);
  vision.hidden = 8;
  vision.layers = 1;
  vision.heads = 2;
  vision.ffn = 16;
  vision.patch = 4;
  images.projector.input = 32;
  images.projector.output = 16;
  images.token_id = 63;
  return provider;
}

void expect_steps_equal_one_process(const Layout& layout) {
  const MockDataConfig data = {.sequence_length = 16,
                               .min_length = 10,
                               .alphabet = 32,
                               .media = {{.name = "images", .max_items = 1, .max_size = 4}}};
  const testing::TrainingOptions options = {.steps = 2, .data = testing::mock(data)};
  expect_same(train(layout, options), train(in_one_process(layout), options));
}

TEST(ProductionTopology, Of9NodesEqualsOneProcess) {
  const Layout layout = {.images = {.dp = 8},
                         .language = {.tp = 2, .dp = 32, .ep = 16},
                         .sp = true,
                         .micro_batch = 1,
                         .global_batch = 64,
                         .provider = narrow_vlm};
  ASSERT_EQ(topology_of(layout).world_size(), 72);
  expect_steps_equal_one_process(layout);
}

TEST(ProductionTopology, Of33NodesEqualsOneProcess) {
  const Layout layout = {.images = {.dp = 8},
                         .language = {.tp = 2, .dp = 128, .ep = 8},
                         .sp = true,
                         .micro_batch = 1,
                         .global_batch = 128,
                         .provider = narrow_vlm};
  ASSERT_EQ(topology_of(layout).world_size(), 264);
  expect_steps_equal_one_process(layout);
}

}  // namespace
}  // namespace braid
