// The products of a real forward and backward on a CPU, counted as libtorch runs them.
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include "comm/progress.h"
#include "models/decoder.h"
#include "models/encoder.h"
#include "models/providers.h"
#include "ops/cross_entropy.h"
#include "ops/vision.h"
#include "paper/stage.h"
#include "support/operator_observer.h"

namespace braid {
namespace {

constexpr std::int64_t kTokens = 64;

// Floating-point operations of a matrix product, and none of other operators. Attention and the scan use batched
// products, which are not counted.
double product_operations(const at::RecordFunction& function) {
  const std::string name = function.name();
  const std::size_t first = name == "aten::mm" ? 0 : 1;
  if (name != "aten::mm" && name != "aten::addmm" && name != "aten::addmm_") return 0;
  const at::Tensor a = function.inputs()[first].toTensor(), b = function.inputs()[first + 1].toTensor();
  return 2.0 * static_cast<double>(a.size(0) * a.size(1) * b.size(1));
}

HybridLmConfig small_model() {
  HybridLmConfig config = std::get<HybridLmConfig>(provider("tiny-vlm").language);
  config.pattern = "ME-*";
  return config;
}

// Calls `run` with a rank that is alone.
template <class Run>
double products_of(const Run& run) {
  Progress progress;
  const Group alone("alone", at::kCPU, progress);
  const Parallel parallel = {.tp = alone, .cp = alone, .tp_cp = alone, .ep = alone, .expt_tp = alone};
  double operations = 0;
  const testing::OperatorObserver observer(
      [&](const at::RecordFunction& function) { operations += product_operations(function); });
  run(parallel);
  return operations;
}

template <class Config>
double products_of_a_step(const Config& config, const RecomputeConfig& recompute) {
  return products_of([&](const Parallel& parallel) {
    Parameters parameters(declare_parameters(config), 0, {}, at::kFloat, at::kCPU);
    parameters.initialize(1);
    const Decoder model(config, parameters, parallel, 0, 1, recompute);
    const SequenceBatch batch = {.sequences = pack_sequences({0, kTokens}, at::kCPU)};
    const at::Tensor ids = at::arange(kTokens, at::kLong) % config.vocab;
    const CountedLabels labels = counted_labels(ids, at::kCPU);
    const at::Tensor x = model.run_layers(model.embed(ids), batch);
    model.token_losses(model.logits(x, labels.rows), labels.labels).sum().backward();
  });
}

double products_in(const std::vector<PaperLayer>& layers) {
  double sum = 0;
  for (const PaperLayer& layer : layers)
    for (const Works* works : {&layer.work.forward, &layer.work.backward})
      for (const Work& work : *works)
        if (work.op == Operator::ProductWide || work.op == Operator::Experts || work.op == Operator::ExpertsSum ||
            work.op == Operator::Router || work.op == Operator::RouterBackward)
          sum += work.amount;
  return sum;
}

Topology one_rank() {
  return Topology({.modules = {{.name = "language", .kind = ModuleKind::Language}}},
                  {.micro_batch = 1, .global_batch = 1});
}

double products_on_paper(const LanguageConfig& config, const RecomputeConfig& recompute) {
  const TextSizes text = {.tokens = kTokens, .labels = kTokens, .squares = double(kTokens) * kTokens};
  const LayerOptions options = {.element_bytes = 4, .recompute = recompute};
  return products_in(walk_stage(config, one_rank().language(), 0, options, text, /*trains=*/true).layers);
}

const std::vector<RecomputeConfig> kRecomputes = {
    {}, {.full = true}, {.experts = true}, {.norms = true, .activations = true, .mamba = true}};

std::string text_of(const RecomputeConfig& recompute) { return fmt::format("{}", fmt::join(names_of(recompute), ",")); }

TEST(WorkCount, ProductsAreThoseOfAStep) {
  const LlamaConfig llama = {
      .layers = 2, .hidden = 32, .vocab = 48, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 16, .rope_theta = 100};
  for (const RecomputeConfig& recompute : kRecomputes) {
    EXPECT_DOUBLE_EQ(products_on_paper(small_model(), recompute), products_of_a_step(small_model(), recompute))
        << text_of(recompute);
    EXPECT_DOUBLE_EQ(products_on_paper(llama, recompute), products_of_a_step(llama, recompute))
        << "Llama " << text_of(recompute);
  }
}

struct EncoderCase {
  EncoderConfig config;
  std::vector<std::vector<std::int64_t>> extents;
};

std::vector<EncoderCase> encoders() {
  const EncoderConfig radio = tiny_vlm().encoders[0], clip = tiny_llava().encoders[0], audio = tiny_omni().encoders[1];
  return {{radio, {{4, 6}, {2, 8}}}, {clip, {fitting_extent(clip, 4, 4)}}, {audio, {{12}, {20}}}};
}

// On a CPU, products stretch RADIO's position table for each grid of patches. The list counts them as bytes.
double products_of_positions(const EncoderCase& c) {
  const auto* radio = std::get_if<RadioConfig>(&c.config.model);
  if (!radio) return 0;
  return products_of([&](const Parallel&) {
    for (const auto& extent : c.extents) {
      const std::int64_t side = radio->position_side;
      const at::Tensor table = at::ones({side * side, radio->hidden}).set_requires_grad(true);
      interpolate_positions(table, {extent[0], extent[1]}).sum().backward();
    }
  });
}

double products_of_an_encoder(const EncoderCase& c, const RecomputeConfig& recompute) {
  return products_of([&](const Parallel& parallel) {
    const auto make = [&](const auto& of) {
      Parameters parameters(declare_parameters(of, 1), 0, {}, at::kFloat, at::kCPU);
      parameters.initialize(1);
      return parameters;
    };
    Parameters encoder = make(c.config.model), projector = make(c.config.projector);
    const EncoderStage stage(c.config, encoder, &projector, parallel, {0, 1}, recompute);
    std::int64_t rows = 0;
    for (const auto& extent : c.extents) rows += extent.size() == 1 ? extent[0] : extent[0] * extent[1];
    stage.forward(at::ones({rows, features_of(c.config.model)}), c.extents).sum().backward();
  });
}

std::vector<PaperLayer> work_of_encoder(const EncoderCase& c, const RecomputeConfig& recompute) {
  const LayerOptions options = {.element_bytes = 4, .recompute = recompute};
  return walk_stage(c.config, one_rank().language(), 0, options, c.extents, {}).layers;
}

TEST(WorkCount, ProductsAreThoseOfAnEncoder) {
  for (const EncoderCase& c : encoders())
    for (const RecomputeConfig& recompute : kRecomputes)
      EXPECT_DOUBLE_EQ(products_in(work_of_encoder(c, recompute)),
                       products_of_an_encoder(c, recompute) - products_of_positions(c))
          << c.config.name << " " << text_of(recompute);
}

int calls_in_forward(const EncoderCase& c, Operator op) {
  int calls = 0;
  for (const PaperLayer& layer : work_of_encoder(c, {}))
    calls += static_cast<int>(std::ranges::count(layer.work.forward, op, &Work::op));
  return calls;
}

// Every norm has a bias of its own.
int norms_of(const EncoderModel& model) {
  return static_cast<int>(std::ranges::count_if(declare_parameters(model, 1), [](const ParamSpec& spec) {
    const bool is_norm = spec.name.find("norm") != spec.name.npos || spec.name.starts_with("ln_");
    return is_norm && spec.name.ends_with("bias");
  }));
}

bool has_parameter(const EncoderModel& model, const char* name) {
  return std::ranges::any_of(declare_parameters(model, 1), [&](const ParamSpec& spec) { return spec.name == name; });
}

TEST(WorkCount, EveryNormActivationAndBiasOfAnEncoderIsListed) {
  for (const EncoderCase& c : encoders()) {
    const int layers = std::visit([](const auto& model) { return layers_of(model).layers; }, c.config.model);
    const bool is_audio = std::holds_alternative<AudioConfig>(c.config.model),
               is_mlp = c.config.projector.kind == ProjectorKind::Mlp;
    EXPECT_GE(norms_of(c.config.model), 2 * layers);
    EXPECT_EQ(calls_in_forward(c, Operator::Norm), norms_of(c.config.model)) << c.config.name;
    EXPECT_EQ(calls_in_forward(c, Operator::Activation), layers + is_mlp + is_audio) << c.config.name;
    // The gradient of a bias reads that of each embedded row.
    const Works first = work_of_encoder(c, {}).front().work.backward;
    const double read =
        4.0 * static_cast<double>(rows_of_items(c.config, c.extents).embedded) * hidden_of(c.config.model);
    EXPECT_EQ(std::ranges::count(first, read, &Work::amount), has_parameter(c.config.model, "embedder.bias"))
        << c.config.name;
  }
}

}  // namespace
}  // namespace braid
