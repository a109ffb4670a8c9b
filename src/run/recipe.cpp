#include "run/recipe.h"
#include "base/strings.h"
#include "data/samples/lane_set.h"

namespace braid {
namespace {

// --- Whether a recipe's values fit each other, its model and its topology.

void check_at_least(Problems& problems, const char* key, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  problems.push_back({fmt::format("{}={} must be at least {}", key, value, least), key, ""});
}

void check_seconds(Problems& problems, const char* key, double value) {
  constexpr double kYear = 365 * 86400.0;
  if (value > 0 && value <= kYear) return;
  problems.push_back(
      {fmt::format("{}={} must be greater than 0 and at most a year ({} s)", key, value, kYear), key, ""});
}

Problems train_problems(const Recipe& recipe) {
  Problems problems;
  const TrainConfig& train = recipe.train;
  check_at_least(problems, "train.iterations", train.iterations, 1);
  check_at_least(problems, "train.samples", train.samples.value_or(1), 1);
  check_at_least(problems, "train.seed", train.seed, 0);
  check_at_least(problems, "train.prefetch", train.prefetch, 0);
  check_at_least(problems, "train.max_skipped", train.max_skipped, 1);
  check_at_least(problems, "train.eval_interval", train.eval_interval.value_or(1), 1);
  check_at_least(problems, "train.eval_iterations", train.eval_iterations, 0);
  append(problems, validate(recipe.loader, "loader"));
  append(problems, validate(train.schedule, length_of(train), "train"));
  append(problems, validate(recipe.optimizer, "optimizer"));
  append(problems, validate(recipe.loss_scale, "loss_scale"));
  append(problems, validate(recipe.checkpoint));
  append(problems, validate(recipe.log));
  append(problems, validate(recipe.stop));
  append(problems, validate(recipe.cluster));
  check_seconds(problems, "dist.hang_limit_s", recipe.dist.hang_limit_s);
  check_seconds(problems, "dist.silence_limit_s", recipe.dist.silence_limit_s);
  check_seconds(problems, "dist.connect_timeout_s", recipe.dist.connect_timeout_s);
  return problems;
}

// Megatron's text needs neither a tokenizer nor a chat format.
Problems gpt_data_problems(const Recipe& recipe) {
  if (recipe.loader.balance == Balance::None) return {};
  return {{"Megatron's text has samples of equal cost, which balance=cost would only reorder", "loader.balance",
           "use balance=none"}};
}

// Of a data set in Energon's order.
Problems energon_data_problems(const Recipe& recipe) {
  const DataConfig& data = recipe.data.set;
  // A recipe may leave the path to the command line; without one, no run starts (see check_data()).
  if (data.path.empty()) return {};
  Problems problems = validate(data, "data");
  if (data.document_split != DataConfig().document_split)
    problems.push_back({fmt::format("document_split={} has no effect on this data set: its splits are stored with it",
                                    data.document_split),
                        "data.document_split", "leave it out, or name Megatron's text by its prefix in data.path"});
  return problems;
}

Problems data_problems(const Recipe& recipe, const ModuleConfig& language) {
  if (is_mock(recipe.data)) return validate(recipe.data, recipe.model.model, layout_sizes(language), "data");
  Problems problems = is_gpt_data(recipe.data) ? gpt_data_problems(recipe) : energon_data_problems(recipe);
  const int length = recipe.data.sequence_length.value_or(recipe.model.model.sequence_length);
  const int lanes = recipe.loader.lanes.value_or(language.dp), parts = language.tp * language.cp;
  const auto expect = [&](bool holds, std::string what, const char* where, std::string fix) {
    if (!holds) problems.push_back({std::move(what), where, std::move(fix)});
  };
  append(problems, sequence_length_problems(length));
  expect(length < 1 || length % parts == 0,
         fmt::format("sequence_length={} must be a multiple of tp x cp = {}", length, parts), "data.sequence_length",
         fmt::format("use sequence_length={}", (length / parts + 1) * parts));
  expect(lanes >= 1 && lanes % language.dp == 0,
         fmt::format("lanes={} must be a multiple of the language model's dp={}", lanes, language.dp), "loader.lanes",
         fmt::format("use lanes={}", language.dp));
  expect(lanes >= 1 && recipe.train.global_batch % lanes == 0,
         fmt::format("global_batch={} must be a multiple of lanes={}", recipe.train.global_batch, lanes),
         "train.global_batch",
         fmt::format("use global_batch={}, or fewer lanes",
                     (recipe.train.global_batch / std::max(lanes, 1) + 1) * std::max(lanes, 1)));
  return problems;
}

Problems balance_problems(const Recipe& recipe, const ModuleConfig& language) {
  const LoaderConfig& loader = recipe.loader;
  if (loader.balance == Balance::None) return {};
  Problems problems;
  if (const int together = loader.balance_replicas.value_or(1); together >= 1 && language.dp % together != 0)
    problems.push_back(
        {fmt::format("balance_replicas={} does not divide the language model's dp={}", together, language.dp),
         "loader.balance_replicas", fmt::format("use balance_replicas={}", std::gcd(together, language.dp))});
  // The correction scales gradients by the number of replicas with input, so samples must not move.
  if (recipe.train.correct_partial_participation)
    problems.push_back({"balance=cost moves samples, but correct_partial_participation=true needs them where they are",
                        "loader.balance", "use balance=none, or correct_partial_participation=false"});
  return problems;
}

Problems fp8_problems(const Recipe& recipe, const ModuleConfig&) {
  const ModelConfig& model = recipe.model;
  if (model.fp8 == Fp8Mode::Off) return {};
  if (!std::holds_alternative<HybridLmConfig>(model.model.language))
    return {{fmt::format("fp8={} needs a hybrid language model, which provider={} does not have", name_of(model.fp8),
                         model.provider),
             "model.fp8", "use fp8=off"}};
  if (model.dtype == "bfloat16") return {};
  return {{fmt::format("fp8={} needs a model in bfloat16, but dtype={}", name_of(model.fp8), model.dtype), "model.fp8",
           "use dtype=bfloat16, or fp8=off"}};
}

Problems check_pieces(const char* key, int pieces, bool possible, const char* needs, const std::string& fix) {
  const std::string given = fmt::format("{}={}", key, pieces), where = fmt::format("model.{}", key);
  constexpr int kMostPieces = 64;  // each is an operation of its own
  if (pieces < 1) return {{given + " must be at least 1", where, "use 1 to cut nothing"}};
  if (pieces > kMostPieces)
    return {
        {fmt::format("{} must be at most {}", given, kMostPieces), where, "use 2 to 4; each piece travels on its own"}};
  if (pieces == 1 || possible) return {};
  return {{fmt::format("{} needs {}", given, needs), where, fix}};
}

Problems pieces_problems(const Recipe& recipe, const ModuleConfig&) {
  const ModelConfig& model = recipe.model;
  Problems problems = check_pieces("tp_overlap_pieces", model.overlap.tp_pieces, model.sequence_parallel,
                                   "sequence parallelism", "use sequence_parallel=true, or tp_overlap_pieces=1");
  append(problems,
         check_pieces("expert_overlap_pieces", model.overlap.expert_pieces, experts_of(model.model.language) > 0,
                      "a model with experts", "use expert_overlap_pieces=1"));
  return problems;
}

// describe() has replaced `true` and `false`, unless there are other names, too.
Problems recompute_problems(const Recipe& recipe, const ModuleConfig&) {
  const std::vector<std::string>& names = recipe.model.recompute;
  const std::vector<std::string> parts = recompute_parts(recipe);
  const std::string given = fmt::format("recompute={}", fmt::join(names, ","));
  for (const char* word : {"true", "false"})
    if (contains(names, word))
      return {{fmt::format("{}: {} cannot be combined with other names", given, word), "model.recompute",
               fmt::format("use true, false, or some of {}", fmt::join(parts, ", "))}};
  std::vector<std::string> absent = names;
  std::erase_if(absent, [&](const std::string& name) { return contains(parts, name); });
  if (absent.empty()) return {};
  return {{fmt::format("{}, but this model has no {} to compute again", given, joined_by_or(absent)), "model.recompute",
           fmt::format("use some of {}", fmt::join(parts, ", "))}};
}

Problems size_problems(const Recipe& recipe, const ModuleConfig& language) {
  return validate_language(recipe.model.model, layout_sizes(language), "model");
}

Problems encoder_problems(const Recipe& recipe, const ModuleConfig& module) {
  const Provider& model = recipe.model.model;
  if (module.cp > 1)
    return {{fmt::format("{} is an encoder, which does not support cp={}", module.name, module.cp),
             fmt::format("topology.modules.{}.cp", module.name), "use cp=1"}};
  if (const EncoderConfig* encoder = find_encoder(model, module.name))
    return validate_encoder(model, *encoder, layout_sizes(module), "model");
  const auto names = vector_of<std::string>(model.encoders, &EncoderConfig::name);
  const auto guess = nearest(module.name, names);
  return {{fmt::format("{} has no encoder '{}'", model.name, module.name), "topology.modules." + module.name,
           guess ? fmt::format("did you mean '{}'?", *guess) : fmt::format("it has {}", fmt::join(names, ", "))}};
}

constexpr Problems (*kLanguageChecks[])(const Recipe& recipe, const ModuleConfig& language) = {
    size_problems,       // sizes of the model are invalid, or do not divide into the grid
    fp8_problems,        // the model or its dtype does not support fp8
    pieces_problems,     // there are too many pieces to overlap, or nothing that overlaps with them
    recompute_problems,  // the model has no such part to compute again
    balance_problems,    // samples cannot move between these replicas
    data_problems,       // mock samples do not fit the model; sequences, lanes and batches do not divide into the grid
};

// Whether the model fits the sizes of its grids.
Problems model_problems(const Recipe& recipe) {
  Problems problems;
  for (ModuleConfig module : recipe.topology.modules) {
    // validate() of the topology reports sizes below 1; the model is checked as if these were 1.
    for (int* size : {&module.tp, &module.cp, &module.dp, &module.pp, &module.ep, &module.expt_tp, &module.vpp})
      *size = std::max(*size, 1);
    if (grid_size(module) > kMaxWorldSize) continue;
    if (module.kind == ModuleKind::Encoder) append(problems, encoder_problems(recipe, module));
    if (module.kind == ModuleKind::Language)
      for (const auto& find : kLanguageChecks) append(problems, find(recipe, module));
  }
  return problems;
}

Problems prefetch_problems(const Recipe& recipe) {
  const bool one_can = std::ranges::any_of(recipe.topology.modules, [](const ModuleConfig& module) {
    return module.kind == ModuleKind::Encoder && module.pp == 1;
  });
  if (recipe.train.prefetch <= 0 || (one_can && !recipe.topology.colocated)) return {};
  return {{fmt::format("prefetch={}, but no encoder can run ahead: that needs an encoder with its own ranks and pp=1",
                       recipe.train.prefetch),
           "train.prefetch", "use prefetch=0"}};
}

Problems freeze_problems(const Recipe& recipe) {
  if (recipe.topology.modules.empty()) return {};
  const std::size_t encoders = recipe.topology.modules.size() - 1;
  if (frozen_sets(recipe).size() < 2 * encoders + 1) return {};
  const TrainConfig& train = recipe.train;
  return {{"every module of the model is frozen: there is nothing to train",
           train.freeze_language ? "train.freeze_language" : "train.stage",
           encoders > 0 ? "set one of train.freeze_encoders, freeze_projection, freeze_language to false and do not "
                          "use a train.stage that freezes it"
                        : "a model without encoders has only its language model: use train.stage=stage3 and "
                          "train.freeze_language=false"}};
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
  f.choice("fp8", c.fp8, "rowwise: linear layers and experts of a hybrid language model multiply in fp8");
  std::vector<std::string> parts = recompute_names();
  parts.insert(parts.end(), {"true", "false"});
  f.list("recompute", c.recompute, parts,
         "activations that backward computes again instead of keeping them; true: full");
  if (c.recompute == std::vector<std::string>{"true"}) c.recompute = {"full"};
  if (c.recompute == std::vector<std::string>{"false"}) c.recompute.clear();
  if (c.model.name != c.provider) c.model = provider(c.provider);
  f.section("language", c.model.language);
  if (auto* hybrid = std::get_if<HybridLmConfig>(&c.model.language)) hybrid->fp8 = c.fp8;
  for (EncoderConfig& encoder : c.model.encoders) f.section(encoder.name.c_str(), encoder);
}

void describe(Fields& f, RecipeData& c) {
  describe(f, c.set);
  f.choice("mock", c.mock, "use mock samples: auto does without a path, false requires a path before a run starts");
  describe(f, static_cast<MockDataConfig&>(c));
}

void describe(Fields& f, TrainConfig& c) {
  f.field("iterations", c.iterations, "optimizer steps");
  f.field("samples", c.samples, "length of the run in samples; overrides iterations");
  f.field("micro_batch", c.micro_batch, "samples per language replica and microbatch");
  f.field("global_batch", c.global_batch, "samples per step");
  f.field("seed", c.seed, "random seed; the same seed gives the same run");
  f.field("prefetch", c.prefetch, "how many microbatches encoders may run ahead of the pipeline's schedule");
  f.choice("stage", c.stage, "stage1 trains the projectors only, stage2 also the language model, stage3 everything");
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

std::vector<std::string> frozen_sets(const Recipe& recipe) {
  const TrainConfig& train = recipe.train;
  std::vector<std::string> sets;
  for (const ModuleConfig& module : recipe.topology.modules) {
    const bool encoder = module.kind == ModuleKind::Encoder;
    if (encoder && (train.freeze_encoders || train.stage != TrainingStage::Stage3))
      sets.push_back(module.name + ".encoder");
    if (encoder && train.freeze_projection) sets.push_back(module.name + ".projector");
    if (!encoder && (train.freeze_language || train.stage == TrainingStage::Stage1)) sets.push_back(module.name);
  }
  return sets;
}

std::vector<std::string> recompute_parts(const Recipe& recipe) {
  const auto is_encoder = [](const ModuleConfig& module) { return module.kind == ModuleKind::Encoder; };
  return recompute_parts(recipe.model.model.language, std::ranges::any_of(recipe.topology.modules, is_encoder));
}

int balanced_replicas(const Recipe& recipe, const Topology& topology) {
  if (recipe.loader.balance == Balance::None) return 1;
  return recipe.loader.balance_replicas.value_or(default_balanced_replicas(topology));
}

std::shared_ptr<const SampleBalance> sample_balance(const Recipe& recipe, const Topology& topology) {
  if (recipe.loader.balance == Balance::None) return nullptr;
  return std::make_shared<SampleBalance>(recipe.model.model, topology, frozen_sets(recipe),
                                         balanced_replicas(recipe, topology));
}

LaneSetOptions lane_set_options(const Recipe& recipe, const Topology& topology, std::int64_t seed, DataUse use) {
  const Provider& provider = recipe.model.model;
  const DataConfig& data = recipe.data.set;
  const bool trains = use == DataUse::Training;
  return {.data = data,
          .loader = recipe.loader,
          .split = trains ? data.split : data.valid_split,
          .is_training = trains,
          .lanes = recipe.loader.lanes.value_or(topology.language().dense.size_of("dp")),
          .sequence_length = recipe.data.sequence_length.value_or(provider.sequence_length),
          .seed = seed,
          .media = media_tokens(provider, topology),
          .vision = vision_input(provider, topology)};
}

GptDataOptions gpt_data_options(const Recipe& recipe, std::int64_t seed, DataUse use) {
  const DataConfig& data = recipe.data.set;
  const TrainConfig& train = recipe.train;
  const bool trains = use == DataUse::Training;
  const std::int64_t iterations = iterations_of(length_of(train));
  // Megatron provides for all evaluations of a run.
  const std::int64_t evaluations = train.eval_interval ? iterations / *train.eval_interval + 1 : 1;
  return {.path = data.path,
          .shares = data.document_split,
          .split = trains ? data.split : data.valid_split,
          .samples = trains ? train.samples.value_or(iterations * train.global_batch)
                            : evaluations * train.eval_iterations * train.global_batch,
          .sequence_length = recipe.data.sequence_length.value_or(recipe.model.model.sequence_length),
          .seed = seed};
}

std::string to_yaml(Recipe recipe) {
  // A recipe that sets all sizes of a model for tests must set this one too, or it could not be read back.
  recipe.data.sequence_length = recipe.data.sequence_length.value_or(recipe.model.model.sequence_length);
  YamlWriter writer;
  describe(writer, recipe);
  return writer.text();
}

Problems sequence_length_problems(int length) {
  if (length >= 1) return {};
  return {{fmt::format("sequence_length={} must be at least 1", length), "data.sequence_length",
           "use sequence_length=4096, for example"}};
}

Problems validate(const Recipe& recipe) {
  const Problems of_topology = validate(recipe.topology, workload_of(recipe));
  Problems problems = of_topology;
  // Both checks report an ep that does not divide the experts, or a batch that does not divide into replicas.
  for (Problem& problem : model_problems(recipe)) {
    const bool of_experts = problem.where == "model.language.experts";
    const auto is_same = [&](const Problem& other) {
      return (of_experts && other.where.ends_with(".ep")) || other.where == problem.where;
    };
    if (std::ranges::none_of(of_topology, is_same)) problems.push_back(std::move(problem));
  }
  append(problems, freeze_problems(recipe));
  append(problems, prefetch_problems(recipe));
  Problems of_training = train_problems(recipe);
  if (of_topology.empty() && of_training.empty())
    of_training =
        profile_problems(recipe.log.profile, iterations_of(length_of(recipe.train)), world_size_of(recipe.topology));
  append(problems, std::move(of_training));
  return problems;
}

}  // namespace braid
