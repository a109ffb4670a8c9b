#include "run/resume/checkpoint_config.h"
#include "base/files.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"

namespace braid {
namespace {

fs::path folder_of(const std::string& path) {
  const fs::path full = fs::weakly_canonical(fs::absolute(path));
  return full.has_filename() ? full : full.parent_path();
}

bool loads_in_place(const CheckpointConfig& config) {
  if (config.load.empty() || config.save.empty()) return false;
  const fs::path load = folder_of(config.load), save = folder_of(config.save);
  return load == save || (load.parent_path() == save && iteration_of(load.filename().string()));
}

}  // namespace

void describe(Fields& f, InitConfig& c) {
  f.field("nemotron", c.nemotron, "weights of a Nemotron VLM checkpoint for all modules");
  f.field("vision", c.vision, "weights of its vision encoder only");
  f.field("language", c.language, "weights of its language model only, or of a checkpoint of a language model alone");
  f.field("finetune", c.finetune, "weights of a checkpoint of Braid or Megatron for all modules");
}

void describe(Fields& f, CheckpointConfig& c) {
  f.field("save", c.save, "folder to save to");
  f.field("save_interval", c.save_interval, "iterations between saves; a run also saves when it ends");
  f.field("keep_last", c.keep_last, "how many of the newest checkpoints to keep");
  f.field("async", c.async, "continue training while a checkpoint is being written");
  f.field("save_optimizer", c.save_optimizer, "save optimizer state too");
  f.field("save_rng", c.save_rng, "save the random number state too");
  f.field("fully_reshardable", c.fully_reshardable,
          "save optimizer state by parameter, for loading in any layout; false: by bucket, for the same tp, pp, vpp, "
          "ep and buckets");
  f.field("overwrite", c.overwrite, "allow saving to a folder that has another run's checkpoints, which are replaced");
  f.section("init", c.init);
  f.field("load", c.load, "folder to resume from; the run starts from scratch if it has no checkpoint");
  f.field("load_nemotron", c.load_nemotron, "start from the weights of a Nemotron VLM checkpoint");
  f.field("load_vision_from", c.load_vision_from, "start with the vision encoder of a Nemotron VLM checkpoint");
  f.field("must_exist", c.must_exist, "fail if load has no checkpoint, instead of starting from scratch");
  f.choice("load_fallback", c.load_fallback,
           "when to resume from an older checkpoint if the newest is damaged; requeued: only in a job that Slurm has "
           "requeued");
  f.field("load_optimizer", c.load_optimizer, "resume optimizer state");
  f.field("load_scheduler", c.load_scheduler, "resume the learning rate and weight decay schedule");
  f.choice("scheduler", c.scheduler,
           "whose learning rate and weight decay schedule to resume with; same: fail if the two differ");
  f.field("load_rng", c.load_rng, "use the checkpoint's random number state instead of train.seed");
  f.field("load_data", c.load_data, "continue the data where the checkpoint stopped, instead of from its start");
  f.field("finetune", c.finetune, "load only the weights; iteration, optimizer, schedule and data start from 0");
  if (is_given(c.init) && c.load.empty()) c.load = c.save;
}

bool is_given(const InitConfig& init) {
  return !init.nemotron.empty() || !init.vision.empty() || !init.language.empty() || !init.finetune.empty();
}

namespace {

// A start that does not fit one that follows from init.
std::vector<Problem> contradictions(const CheckpointConfig& c) {
  std::vector<Problem> problems;
  const auto refuse = [&](bool is_given, const char* key, const char* why, const char* fix) {
    if (is_given) problems.push_back({fmt::format("{} {}", key, why), fmt::format("checkpoint.{}", key), fix});
  };
  const char *each_time = "gives every start these weights, but init only a run that has saved nothing",
             *use_init = "leave it out, or leave out init";
  refuse(!c.load_nemotron.empty(), "load_nemotron", each_time, use_init);
  refuse(!c.load_vision_from.empty(), "load_vision_from", each_time, use_init);
  refuse(c.finetune, "finetune", "begins every start at iteration 0, but with init a run resumes from what it saved",
         "leave it out: init.finetune takes only weights");
  refuse(c.must_exist, "must_exist", "refuses a run without a checkpoint, but init is for such a run", use_init);
  const bool parts = !c.init.vision.empty() || !c.init.language.empty();
  if (!c.init.nemotron.empty() + !c.init.finetune.empty() + parts > 1)
    problems.push_back({"init has several sources for the weights of one module", "checkpoint.init",
                        "use nemotron, or finetune, or vision and language"});
  return problems;
}

}  // namespace

std::vector<Problem> init_problems(const CheckpointConfig& c) {
  if (!is_given(c.init) || c.load.empty() || loads_in_place(c)) return {};
  return {{fmt::format("with init, a run resumes from the folder that it saves to, but load is '{}' and save is '{}'",
                       c.load, c.save),
           "checkpoint.load", "leave out load; to start from its checkpoint, leave out init"}};
}

std::vector<WeightSource> weight_sources(const CheckpointConfig& c) {
  using enum WeightSource::Kind;
  std::vector<WeightSource> sources = {{Nemotron, "checkpoint.init.nemotron", c.init.nemotron},
                                       {Vision, "checkpoint.init.vision", c.init.vision},
                                       {Language, "checkpoint.init.language", c.init.language},
                                       {Finetune, "checkpoint.init.finetune", c.init.finetune},
                                       {Nemotron, "checkpoint.load_nemotron", c.load_nemotron},
                                       {Vision, "checkpoint.load_vision_from", c.load_vision_from}};
  std::erase_if(sources, [](const WeightSource& source) { return source.path.empty(); });
  for (WeightSource& source : sources) source.path = without_end_slash(source.path);
  return sources;
}

std::vector<Problem> validate(const CheckpointConfig& c) {
  std::vector<Problem> problems;
  const auto refuse_below_one = [&](const char* key, const std::optional<int>& value, const char* fix) {
    if (value && *value < 1)
      problems.push_back(
          {fmt::format("{}={} must be greater than 0", key, *value), fmt::format("checkpoint.{}", key), fix});
  };
  refuse_below_one("save_interval", c.save_interval, "leave it out to save only at the end");
  refuse_below_one("keep_last", c.keep_last, "leave it out to keep all");
  if (c.save.empty() && c.save_interval)
    problems.push_back({fmt::format("save_interval={}, but there is no folder to save to", *c.save_interval),
                        "checkpoint.save_interval", "give --save FOLDER"});
  if (is_given(c.init))
    append(problems, contradictions(c));
  else if (!c.load.empty() + !c.load_nemotron.empty() + !c.load_vision_from.empty() > 1)
    problems.push_back(
        {"load, load_nemotron and load_vision_from are mutually exclusive", "checkpoint", "use one of them"});
  if (c.load.empty() && c.must_exist)
    problems.push_back({"must_exist requires a checkpoint, but no checkpoint folder is given", "checkpoint.must_exist",
                        "give --load FOLDER"});
  return problems;
}

std::string not_resumed(const CheckpointConfig& c) {
  std::vector<std::string> parts;
  for (const auto& [is_loaded, what] : {std::pair(c.load_optimizer, "optimizer (load_optimizer=false)"),
                                        {c.load_scheduler, "schedule (load_scheduler=false)"},
                                        {c.load_rng, "random numbers (load_rng=false)"},
                                        {c.load_data, "position in the data (load_data=false)"}})
    if (!is_loaded) parts.push_back(what);
  return joined(parts, ", ");
}

bool is_same_folder(const std::string& a, const std::string& b) { return folder_of(a) == folder_of(b); }

bool resumes_in_place(const CheckpointConfig& config) { return !config.finetune && loads_in_place(config); }

void check_save_folder(const CheckpointConfig& config) {
  if (!config.save.empty() && is_there(fs::path(config.save) / ".metadata"))
    throw ConfigError(
        {fmt::format("'{}' is itself a checkpoint", config.save), kSaveKey,
         fmt::format("save to its parent folder: --save {}", folder_of(config.save).parent_path().string())});
  if (config.save.empty() || config.overwrite || resumes_in_place(config)) return;
  const std::vector<std::int64_t> iterations = iterations_in(config.save);
  if (iterations.empty()) return;
  const std::string with = loads_in_place(config) ? "" : fmt::format(" with --load {}", config.save);
  std::string without;
  for (const auto& [is_given, flag] : {std::pair(config.finetune, "--finetune"),
                                       {!config.load_nemotron.empty(), "--load-nemotron-checkpoint"},
                                       {!config.load_vision_from.empty(), "--load-vision-from"}})
    if (is_given) without += fmt::format(" {} {}", without.empty() ? "without" : "and", flag);
  throw ConfigError(
      {fmt::format("'{}' has the checkpoints of another run, up to iteration {}, but this run does not resume from it",
                   config.save, iterations.back()),
       kSaveKey,
       fmt::format("resume from them{}{}{}, or save to another folder, or let this run replace them with "
                   "--overwrite-checkpoints",
                   with, with.empty() || without.empty() ? "" : " and", without)});
}

}  // namespace braid
