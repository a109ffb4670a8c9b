// The training loop of a run, and evaluation: during training, and of a checkpoint alone.
#pragma once

#include "ckpt/save_lock.h"
#include "data/inspect/reports.h"
#include "log/iteration_log.h"
#include "run/recipe.h"

namespace braid {

class BatchSource;
class Topology;
class World;
struct TrainingConfig;

// The environment of a run.
struct RunContext {
  const StopRequest& stop;
  bool under_braid_launcher = false;  // see RunFacts
  JobIdentity job{};
  std::string held_lock{};  // the launcher's lock of the save folder: see SaveLock::Options
};

// Collective, before train(): whether any rank has problems. The first such rank prints them; no rank may start.
bool any_rank_refused(const std::vector<Problem>& problems, World& world);

// The batches of a run, from the data set or from mock samples. Throws a ConfigError if the data set or the tokenizer
// cannot be used. All sources of a rank share `bad`.
std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::shared_ptr<BadSamples> bad);

struct RunResult {
  std::vector<double> losses{};  // of every iteration
  StopReason stop = StopReason::None;
  bool lost_output = false;  // requested output files are incomplete
};

// The training loop of one rank: build, step, log, until the recipe's end or a request to stop. DataError if too many
// steps in a row were skipped.
RunResult train(const Recipe& recipe, const Topology& topology, World& world, const RunContext& context);

// --- evaluation

using Say = std::function<void(const std::string& text)>;

// The training config of a run of this recipe; `frozen` lists the parameter sets that do not train.
TrainingConfig training_config(const Recipe& recipe, std::vector<std::string> frozen);

// The language rank with tp 0, cp 0, dp 0 in the last pipeline stage, which writes the log.
int logging_rank(const Topology& topology);

struct CheckpointEvaluation {
  EvaluationRecord record{};
  UnusableSamples samples{};  // those left out count neither in the record nor in the answers
  // On the logging rank, if answers are wanted: the data set, and the model's answers in the order of the evaluation.
  std::shared_ptr<LaneSet> data{};
  std::vector<ModelAnswer> answers{};
};

// Collective over the world: builds the model without an optimizer, loads the recipe's checkpoint and evaluates it.
// `say` is called on the logging rank only, `note` on any rank, for each damaged sample. Answers need a data set.
CheckpointEvaluation evaluate_checkpoint(const Recipe& recipe, const Topology& topology, World& world,
                                         bool wants_answers, const Say& say, const Say& note);

}  // namespace braid
