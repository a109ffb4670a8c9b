#include "run/recipe.h"

#include <algorithm>

#include "base/strings.h"
#include "models/providers.h"
#include "nn/config.h"
#include "plan/topology_config.h"

namespace braid {
namespace {

// `true` stands for `full`, and `false` for nothing.
void describe_recompute(Fields& f, std::vector<std::string>& names) {
  std::vector<std::string> choices = recompute_names();
  choices.insert(choices.end(), {"true", "false"});
  f.list("recompute", names, choices, "activations that backward computes again instead of keeping them; true: full");
  if (names == std::vector<std::string>{"true"}) names = {"full"};
  if (names == std::vector<std::string>{"false"}) names.clear();
}

}  // namespace

void describe(Fields& f, ModelConfig& c) {
  f.choice("provider", c.provider, provider_names(), "the model to train");
  f.choice("dtype", c.dtype, dtype_names(), "dtype of parameters and activations");
  c.dtype = full_dtype_name(c.dtype);
  f.field("sequence_parallel", c.sequence_parallel, "sequence parallelism in the language model");
  f.field(
      "tp_overlap_pieces", c.overlap.tp_pieces,
      "with sequence parallelism, linear maps are cut into this many pieces of tokens, which travel during products");
  f.field("expert_overlap_pieces", c.overlap.expert_pieces,
          "with expert parallelism, tokens are cut into this many pieces, which travel while experts process another");
  f.choice("fp8", c.fp8, {"off", "rowwise"},
           "rowwise: linear layers and experts of a hybrid language model multiply in fp8");
  describe_recompute(f, c.recompute);
  if (c.model.name != c.provider) c.model = provider(c.provider);
  f.section("language", c.model.language);
  if (auto* hybrid = std::get_if<HybridLmConfig>(&c.model.language))
    hybrid->fp8 = c.fp8 == "rowwise" ? Fp8Mode::Rowwise : Fp8Mode::Off;
  for (EncoderConfig& encoder : c.model.encoders) f.section(encoder.name.c_str(), encoder);
}

bool is_mock(const RecipeData& data) { return data.mock == "auto" ? data.set.path.empty() : data.mock == "true"; }

bool evaluates(const TrainConfig& config) { return config.eval_interval && config.eval_iterations > 0; }

void describe(Fields& f, RecipeData& c) {
  describe(f, c.set);
  f.choice("mock", c.mock, {"auto", "true", "false"},
           "use mock samples: auto does without a path, false requires a path before a run starts");
  describe(f, static_cast<MockDataConfig&>(c));
}

void describe(Fields& f, TrainConfig& c) {
  f.field("iterations", c.iterations, "optimizer steps");
  f.field("samples", c.samples, "length of the run in samples; overrides iterations");
  f.field("micro_batch", c.micro_batch, "samples per language replica and microbatch");
  f.field("global_batch", c.global_batch, "samples per step");
  f.field("seed", c.seed, "random seed; the same seed gives the same run");
  f.field("prefetch", c.prefetch, "how many microbatches encoders may run ahead of the pipeline's schedule");
  f.choice("stage", c.stage, {"stage1", "stage2", "stage3"},
           "stage1 trains the projectors only, stage2 also the language model, stage3 everything");
  f.field("freeze_encoders", c.freeze_encoders, "encoders do not train");
  f.field("freeze_projection", c.freeze_projection, "projectors do not train");
  f.field("freeze_language", c.freeze_language, "the language model does not train");
  f.field("correct_partial_participation", c.correct_partial_participation,
          "scale encoder gradients by replicas / replicas with input");
  f.field("deterministic", c.deterministic, "the same run twice gives the same bits on a GPU, too");
  f.field("max_skipped", c.max_skipped,
          "end the run after this many steps in a row without a finite loss and gradient");
  f.field("eval_interval", c.eval_interval, "iterations between evaluations on valid_split; default: none");
  f.field("eval_iterations", c.eval_iterations, "length of an evaluation, in steps' worth of samples; 0: none");
  describe(f, c.schedule);
}

void describe(Fields& f, Recipe& r) {
  f.section("topology", r.topology);
  f.section("model", r.model);
  f.section("data", r.data);
  f.section("loader", r.loader);
  f.section("train", r.train);
  f.section("optimizer", r.optimizer);
  f.section("loss_scale", r.loss_scale);
  f.section("checkpoint", r.checkpoint);
  f.section("log", r.log);
  f.section("stop", r.stop);
  f.section("dist", r.dist);
  f.section("cluster", r.cluster);
}

Workload workload_of(const Recipe& recipe) {
  return {.micro_batch = recipe.train.micro_batch,
          .global_batch = recipe.train.global_batch,
          .num_experts = experts_of(recipe.model.model.language)};
}

TrainLength length_of(const TrainConfig& config) {
  return {.iterations = config.iterations, .samples = config.samples, .global_batch = config.global_batch};
}

std::vector<std::string> frozen_sets(const Recipe& recipe) {
  const TrainConfig& train = recipe.train;
  std::vector<std::string> sets;
  for (const ModuleConfig& module : recipe.topology.modules) {
    const bool encoder = module.kind == "encoder";
    if (encoder && (train.freeze_encoders || train.stage != "stage3")) sets.push_back(module.name + ".encoder");
    if (encoder && train.freeze_projection) sets.push_back(module.name + ".projector");
    if (!encoder && (train.freeze_language || train.stage == "stage1")) sets.push_back(module.name);
  }
  return sets;
}

std::vector<std::string> recompute_parts(const Recipe& recipe) {
  const std::vector<ModuleConfig>& modules = recipe.topology.modules;
  const auto is_encoder = [](const ModuleConfig& module) { return module.kind == "encoder"; };
  return recompute_parts(recipe.model.model.language, std::any_of(modules.begin(), modules.end(), is_encoder));
}

std::string to_yaml(Recipe recipe) {
  // A recipe that sets all sizes of a model for tests must set this one too, or it could not be read back.
  recipe.data.sequence_length = recipe.data.sequence_length.value_or(recipe.model.model.sequence_length);
  YamlWriter writer;
  describe(writer, recipe);
  return writer.text();
}

}  // namespace braid
