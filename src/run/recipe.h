// A run as one value: the contents of a YAML file, with every default filled in. No libtorch here.
#pragma once

#include "comm/run_as_rank.h"
#include "data/batches/sample_sizes.h"
#include "data/indexed/gpt_data.h"
#include "data/samples/data_config.h"
#include "log/log_files.h"
#include "models/providers.h"
#include "nn/config.h"
#include "optim/optimizer_config.h"
#include "plan/cluster_config.h"
#include "plan/topology.h"
#include "run/resume/checkpoint_config.h"
#include "train/stop_request.h"

namespace braid {

struct LaneSetOptions;

struct ModelConfig {
  std::string provider = "tiny-vlm";
  std::string dtype = "bfloat16";
  bool sequence_parallel = false;
  OverlapConfig overlap{};
  Fp8Mode fp8 = Fp8Mode::Off;            // off | rowwise: HybridLmConfig::fp8 of the language model
  std::vector<std::string> recompute{};  // some of recompute_names()
  Provider model = tiny_vlm();           // the provider's, with the recipe's changes
};

enum class TrainingStage { Stage1, Stage2, Stage3 };
constexpr auto choice_names(TrainingStage) { return std::array{"stage1", "stage2", "stage3"}; }

struct TrainConfig {
  std::int64_t iterations = 100;
  std::optional<std::int64_t> samples{};  // overrides iterations
  int micro_batch = 1;                    // samples per language replica and microbatch
  int global_batch = 8;                   // samples per step
  std::int64_t seed = 1234;
  int prefetch = 0;  // microbatches that encoders may run ahead
  TrainingStage stage = TrainingStage::Stage3;
  bool freeze_encoders = false, freeze_projection = false, freeze_language = false;
  bool correct_partial_participation = false;
  bool deterministic = true;
  int max_skipped = 10;                // end the run after this many skipped steps in a row
  std::optional<int> eval_interval{};  // iterations between evaluations; none: no evaluation
  int eval_iterations = 100;
  LrScheduleConfig schedule{};
};

// Auto: mock samples if there is no path. False: a path is required.
enum class MockChoice { Auto, True, False };
constexpr auto choice_names(MockChoice) { return std::array{"auto", "true", "false"}; }

// The data set, and the keys of mock samples, which are in the same section.
struct RecipeData : MockDataConfig {
  DataConfig set{};
  MockChoice mock = MockChoice::Auto;
};
inline bool is_mock(const RecipeData& data) {
  return data.mock == MockChoice::Auto ? data.set.path.empty() : data.mock == MockChoice::True;
}
// Whether a run reads Megatron's text in Megatron's order.
inline bool is_gpt_data(const RecipeData& data) { return !is_mock(data) && names_gpt_data(data.set.path); }

struct Recipe {
  TopologyConfig topology{};
  ModelConfig model{};
  RecipeData data{};
  LoaderConfig loader{};
  TrainConfig train{};
  OptimizerConfig optimizer{};
  LossScaleConfig loss_scale{};
  CheckpointConfig checkpoint{};
  LogConfig log{};
  StopConfig stop{};
  CommConfig dist{};
  ClusterConfig cluster{};
};

void describe(Fields& fields, ModelConfig& config);
void describe(Fields& fields, RecipeData& config);
void describe(Fields& fields, TrainConfig& config);
void describe(Fields& fields, Recipe& recipe);

std::vector<Problem> sequence_length_problems(int length);

// Every problem of a recipe and its topology; `where` of each is a dotted key.
std::vector<Problem> validate(const Recipe& recipe);

// The names that model.recompute accepts for the modules that run.
std::vector<std::string> recompute_parts(const Recipe& recipe);

// During training.
inline bool evaluates(const TrainConfig& config) { return config.eval_interval && config.eval_iterations > 0; }

Workload workload_of(const Recipe& recipe);
inline TrainLength length_of(const TrainConfig& config) {
  return {.iterations = config.iterations, .samples = config.samples, .global_batch = config.global_batch};
}

// The parameter sets that do not train, by their names in mimo/mimo_model.h.
std::vector<std::string> frozen_sets(const Recipe& recipe);

// Language replicas that exchange samples; 1: none do.
int balanced_replicas(const Recipe& recipe, const Topology& topology);
// How training orders the samples of a step; null keeps the data set's order.
std::shared_ptr<const SampleBalance> sample_balance(const Recipe& recipe, const Topology& topology);

// How a run reads its data set, which the recipe must have. The caller sets `say`.
enum class DataUse { Training, Evaluation };
LaneSetOptions lane_set_options(const Recipe& recipe, const Topology& topology, std::int64_t seed, DataUse use);
// The same of Megatron's text. The caller sets `retries`.
GptDataOptions gpt_data_options(const Recipe& recipe, std::int64_t seed, DataUse use);

// The user's input: a file ("-": standard input) and flags. The text is read once, since it may be a pipe.
struct RecipeSource {
  std::string path, text;
  std::vector<ConfigOverride> overrides{};
};
RecipeSource read_recipe(const std::string& path, std::vector<ConfigOverride> overrides = {});

// One ConfigError lists every problem. With TopologyOnly, the topology need not fit the model.
enum class RecipeChecks { All, TopologyOnly };
Recipe parse_recipe(const RecipeSource& source, RecipeChecks checks = RecipeChecks::All);
inline Recipe load_recipe(const std::string& path, const std::vector<ConfigOverride>& overrides = {},
                          RecipeChecks checks = RecipeChecks::All) {
  return parse_recipe(read_recipe(path, overrides), checks);
}
inline Recipe parse_recipe(const std::string& yaml, const std::vector<ConfigOverride>& overrides = {},
                           RecipeChecks checks = RecipeChecks::All) {
  return parse_recipe(RecipeSource{"recipe", yaml, overrides}, checks);
}

// The resolved recipe as YAML; parsing it gives the same recipe again.
std::string to_yaml(Recipe recipe);

}  // namespace braid
