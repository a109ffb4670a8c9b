#include <gtest/gtest.h>
#include "paper/stage.h"

namespace braid {
namespace {

constexpr std::int64_t kTokens = 8192;

HybridLmConfig slice() {
  HybridLmConfig config = std::get<HybridLmConfig>(provider("nemotron-vlm-20l").language);
  config.experts = 16;
  return config;
}

Module module_of(const ModuleConfig& config) {
  return Topology({.modules = {config}}, {.micro_batch = 1, .global_batch = 1, .num_experts = 16}).language();
}

struct Layout {
  int tp = 1, cp = 1, ep = 1;
};

// Of all layers of a model on one pipeline stage, for a rank.
Works work_on(const LanguageConfig& config, const Layout& layout = {}, const LayerOptions& options = {},
              bool trains = true) {
  const Module module = module_of({.name = "language",
                                   .kind = ModuleKind::Language,
                                   .tp = layout.tp,
                                   .cp = layout.cp,
                                   .ep = layout.ep,
                                   .expt_tp = 1});
  const TextSizes text = {.tokens = kTokens, .labels = kTokens / layout.cp, .squares = double(kTokens) * kTokens};
  Works all;
  for (const PaperLayer& layer : walk_stage(config, module, 0, options, text, trains).layers)
    for (const Works* works : {&layer.work.forward, &layer.work.backward})
      all.insert(all.end(), works->begin(), works->end());
  return all;
}

double amount_of(const Works& works, const std::set<Operator>& ops) {
  double sum = 0;
  for (const Work& work : works)
    if (ops.count(work.op)) sum += work.amount * work.count;
  return sum;
}

const std::set<Operator> kProducts = {Operator::Product,    Operator::ProductSum,    Operator::ProductWide,
                                      Operator::ProductFp8, Operator::ProductFp8Sum, Operator::Experts,
                                      Operator::ExpertsSum, Operator::ExpertsFp8,    Operator::ExpertsFp8Sum,
                                      Operator::Router,     Operator::RouterBackward};
const std::set<Operator> kAttention = {Operator::Attention, Operator::AttentionBackward},
                         kScan = {Operator::Scan, Operator::ScanBackward};

TEST(StageWork, HasTheOperationsOfTheModel) {
  for (const LanguageConfig& config : {LanguageConfig(slice()), LanguageConfig(LlamaConfig())}) {
    const Works works = work_on(config);
    const Flops flops = count_flops(config, kTokens, kTokens);
    EXPECT_NEAR(amount_of(works, kProducts) / flops.linear, 1, 1e-12);
    EXPECT_NEAR(amount_of(works, kAttention) / flops.attention, 1, 1e-12);
    EXPECT_NEAR(amount_of(works, kScan), flops.scan, 1e-12 * flops.scan);
  }
}

TEST(StageWork, IsTheSameInFp8) {
  HybridLmConfig config = slice();
  config.fp8 = Fp8Mode::Rowwise;
  const Works works = work_on(config);
  EXPECT_NEAR(amount_of(works, kProducts) / count_flops(config, kTokens, kTokens).linear, 1, 1e-12);
  EXPECT_GT(amount_of(works, {Operator::ProductFp8}), 0);
  EXPECT_GT(amount_of(works, {Operator::Quantize}), 0);
}

TEST(StageWork, IsSharedByTheRanksOfALayout) {
  const Works alone = work_on(slice());
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.cp = 2}, Layout{.tp = 2, .cp = 2}, Layout{.tp = 2, .ep = 2}}) {
    const Works share = work_on(slice(), layout, {.sequence_parallel = layout.tp > 1});
    const int ranks = layout.tp * layout.cp;
    for (const std::set<Operator>& ops : {kProducts, kAttention, kScan})
      EXPECT_NEAR(amount_of(share, ops) * ranks / amount_of(alone, ops), 1, 1e-12)
          << layout.tp << " " << layout.cp << " " << layout.ep;
  }
}

// A frozen model has no products for the gradients of its weights, which are a third of all.
TEST(StageWork, AFrozenModelComputesNoWeightGradients) {
  const Works frozen = work_on(slice(), {}, {}, false);
  EXPECT_EQ(amount_of(frozen, {Operator::ProductSum, Operator::ExpertsSum}), 0);
  EXPECT_GT(amount_of(frozen, {Operator::Product}), 0);
}

TEST(StageWork, FullRecomputationRepeatsTheForwardOfLayers) {
  const Works plain = work_on(slice()), full = work_on(slice(), {}, {.recompute = {.full = true}});
  EXPECT_NEAR(amount_of(full, kAttention) / amount_of(plain, kAttention), 4.0 / 3, 1e-12);
  EXPECT_NEAR(amount_of(full, kScan) / amount_of(plain, kScan), 4.0 / 3, 1e-12);
  // The loss is not computed again, nor is the last map of a branch, whose result backward does not need.
  const HybridLmConfig c = slice();
  const double rows = 2.0 * kTokens * c.hidden, loss = 3 * rows * c.vocab;
  double last_maps = 0;
  for (const char letter : c.pattern)
    last_maps += rows * (letter == 'M'   ? c.mamba_heads * c.mamba_head_dim
                         : letter == '*' ? c.heads * c.head_dim
                                         : c.shared_ffn + c.top_k * c.expert_ffn);
  const double forward = (amount_of(plain, kProducts) - loss) / 3;
  EXPECT_NEAR((amount_of(full, kProducts) - amount_of(plain, kProducts)) / (forward - last_maps), 1, 1e-9);
}

TEST(StageWork, RecomputingPartsRepeatsThem) {
  const Works plain = work_on(slice());
  const auto more = [&](const RecomputeConfig& recompute, const std::set<Operator>& ops) {
    return amount_of(work_on(slice(), {}, {.recompute = recompute}), ops) - amount_of(plain, ops);
  };
  EXPECT_GT(more({.mamba = true}, {Operator::Scan}), 0);
  EXPECT_GT(more({.experts = true}, {Operator::Experts}), 0);
  EXPECT_GT(more({.norms = true}, {Operator::Norm}), 0);
  EXPECT_GT(more({.activations = true}, {Operator::Activation}), 0);
  EXPECT_EQ(more({.norms = true, .activations = true, .mamba = true}, kProducts), 0);
}

// A gradient reads the sum of those before it, of which the first microbatch has none.
TEST(StageWork, TheFirstMicrobatchAddsToNothing) {
  const Works works = work_on(slice());
  const double first = amount_of(in_microbatch(works, true), {Operator::Stream}),
               later = amount_of(in_microbatch(works, false), {Operator::Stream});
  EXPECT_LT(first, later);
}

TEST(StageWork, OfAnEncoderWithoutTrainingHasNoBackward) {
  const EncoderConfig encoder = provider("nemotron-vlm-20l").encoders[0];
  const Topology topology({.modules = {{.name = "images", .kind = ModuleKind::Encoder},
                                       {.name = "language", .kind = ModuleKind::Language}}},
                          {.micro_batch = 1, .global_batch = 1});
  const auto backward = [&](const EncoderTraining& trains) {
    double sum = 0;
    for (const PaperLayer& layer : walk_stage(encoder, topology.modules()[0], 0, {}, {{32, 32}}, trains).layers)
      sum += amount_of(layer.work.backward, kProducts);
    return sum;
  };
  EXPECT_EQ(backward({.encoder = false, .projector = false}), 0);
  const double projector = 2.0 * 256 * encoder.projector.input * encoder.projector.output;
  EXPECT_DOUBLE_EQ(backward({.encoder = false, .projector = true}), projector);
  EXPECT_GT(backward({}), 10 * projector);
}

}  // namespace
}  // namespace braid
