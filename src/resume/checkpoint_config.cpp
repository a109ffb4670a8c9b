#include "resume/checkpoint_config.h"

namespace braid {

void describe(Fields& f, CheckpointConfig& c) {
  f.field("save", c.save, "folder to save to");
  f.field("save_interval", c.save_interval, "iterations between saves; a run also saves when it ends");
  f.field("keep_last", c.keep_last, "how many of the newest checkpoints stay");
  f.field("async", c.async, "go on training while a checkpoint is written");
  f.field("save_optimizer", c.save_optimizer, "save optimizer state too");
  f.field("save_rng", c.save_rng, "save the state of random numbers too");
  f.field("fully_reshardable", c.fully_reshardable,
          "save optimizer state by parameter, for any layout; false: by bucket, for the same tp, pp and ep");
  f.field("overwrite", c.overwrite, "save to a folder with the checkpoints of another run, in their place");
  f.field("load", c.load, "folder to resume from; a run starts afresh where it has no checkpoint");
  f.field("load_nemotron", c.load_nemotron, "start from the weights of a Nemotron VLM checkpoint");
  f.field("load_vision_from", c.load_vision_from, "start with the vision encoder of a Nemotron VLM checkpoint");
  f.field("must_exist", c.must_exist, "refuse to start afresh where load has no checkpoint");
  f.choice(
      "load_fallback", c.load_fallback, {"requeued", "always", "never"},
      "when to go on from an older checkpoint where the newest is damaged; requeued: in a job that Slurm has queued "
      "again");
  f.field("load_optimizer", c.load_optimizer, "resume optimizer state");
  f.field("load_scheduler", c.load_scheduler, "resume the schedule of learning rate and weight decay");
  f.choice(
      "scheduler", c.scheduler, {"same", "recipe", "checkpoint"},
      "where the recipe's schedule of learning rate and weight decay is not the checkpoint's: refuse, or take one");
  f.field("load_rng", c.load_rng, "go on with the checkpoint's random numbers, not with train.seed");
  f.field("finetune", c.finetune, "take the weights only: iteration, optimizer, schedule and samples start anew");
}

std::vector<Problem> validate(const CheckpointConfig& c) {
  std::vector<Problem> problems;
  const auto refuse_below_one = [&](const char* key, const std::optional<int>& value, const char* fix) {
    if (value && *value < 1)
      problems.push_back(
          {fmt::format("{}={} should be greater than 0", key, *value), fmt::format("checkpoint.{}", key), fix});
  };
  refuse_below_one("save_interval", c.save_interval, "leave it out to save at the end only");
  refuse_below_one("keep_last", c.keep_last, "leave it out to keep all");
  if (c.save.empty() && c.save_interval)
    problems.push_back({fmt::format("save_interval={}, but there is no folder to save to", *c.save_interval),
                        "checkpoint.save_interval", "give --save FOLDER"});
  if (!c.load.empty() + !c.load_nemotron.empty() + !c.load_vision_from.empty() > 1)
    problems.push_back(
        {"load, load_nemotron and load_vision_from exclude one another", "checkpoint", "start from one of them"});
  if (c.load.empty() && c.must_exist)
    problems.push_back({"must_exist asks for a checkpoint, but nothing is to be loaded", "checkpoint.must_exist",
                        "give --load FOLDER"});
  return problems;
}

}  // namespace braid
