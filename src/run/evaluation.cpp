#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ckpt/tensor_io.h"
#include "comm/world.h"
#include "data/batches/batch.h"
#include "data/batches/mock_data.h"
#include "plan/frozen.h"
#include "run/data_source.h"
#include "run/resume/checkpoint.h"
#include "run/trainer.h"
#include "train/all_ranks.h"
#include "train/training.h"

namespace braid {
namespace {

// Far from the seeds that people choose, so that mock samples of evaluation and training differ.
constexpr std::int64_t kEvaluationSeed = 0x5eed0000;

// Evaluation identifies samples by their position, so it never moves them.
std::shared_ptr<const SampleBalance> balance_for(const Recipe& recipe, const Topology& topology, DataUse use) {
  return use == DataUse::Training ? sample_balance(recipe, topology) : nullptr;
}

// Collective: the samples of all ranks, each once.
std::vector<SampleId> of_all_ranks(const std::set<SampleId>& mine, World& world) {
  std::vector<double> counts(static_cast<std::size_t>(world.size()));
  counts[static_cast<std::size_t>(world.rank())] = static_cast<double>(mine.size());
  counts = reduced(counts, Reduce::Sum, world);
  std::vector<SampleId> all;
  for (int rank = 0; rank < world.size(); ++rank) {  // one rank per call, which bounds its memory
    std::vector<double> ids(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]));
    if (ids.empty()) continue;
    if (rank == world.rank()) std::copy(mine.begin(), mine.end(), ids.begin());
    for (const double id : reduced(ids, Reduce::Sum, world)) all.push_back(static_cast<SampleId>(id));
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

TrainingConfig training_config(const Recipe& recipe, std::vector<std::string> frozen) {
  return {.model = {.dtype = scalar_type(recipe.model.dtype),
                    .sequence_parallel = recipe.model.sequence_parallel,
                    .overlap = recipe.model.overlap,
                    .recompute = recompute_config(recipe.model.recompute),
                    .frozen = std::move(frozen),
                    .seed = static_cast<std::uint64_t>(recipe.train.seed),
                    .initialize_weights = false},
          .optimizer = recipe.optimizer,
          .schedule = resolve(recipe.train.schedule, length_of(recipe.train)),
          .loss_scale = recipe.loss_scale,
          .micro_batch = recipe.train.micro_batch,
          .global_batch = recipe.train.global_batch,
          .prefetch = recipe.train.prefetch,
          .correct_partial_participation = recipe.train.correct_partial_participation,
          .count_zeros = recipe.log.log_num_zeros,
          .deterministic = recipe.train.deterministic};
}

int logging_rank(const Topology& topology) {
  const Grid& grid = topology.language().dense;
  return grid.rank_at({0, 0, 0, grid.size_of("pp") - 1});
}

namespace {

EvaluationRecord record_of(const EvaluationReport& report, const RunPosition& position) {
  if (report.num_tokens == 0)  // a loss of 0 would look perfect
    throw DataError(
        "the evaluation has no loss: its samples have no token to predict; check data.valid_split with `braid data "
        "inspect`, or train without evaluations: train.eval_iterations=0");
  return {.iteration = position.iteration,
          .consumed_samples = position.consumed_samples,
          .lm_loss = report.loss,
          .right_tokens = report.right_tokens / report.num_tokens,
          .right_answers = report.right_answers / std::max(report.answers, 1.0)};
}

}  // namespace

EvaluationDuringTraining evaluate(const Recipe& recipe, const Topology& topology, Training& training, std::int64_t seed,
                                  const RunPosition& position, const std::shared_ptr<BadSamples>& bad,
                                  const std::function<StopReason()>& wanted) {
  const auto data = make_batch_source(recipe, topology, seed, DataUse::Evaluation, bad);
  const EvaluationReport report = training.evaluate(*data, recipe.train.eval_iterations, std::nullopt, wanted);
  if (!report.is_complete) return {.stop = report.stop};
  return {record_of(report, position), report.stop};
}

CheckpointEvaluation evaluate_checkpoint(const Recipe& recipe, const Topology& topology, World& world,
                                         bool wants_answers, const Say& say, const Say& note) {
  const Groups groups(world, topology);
  // All parameters are frozen, so there are no gradients and no optimizer.
  Training training(recipe.model.model, topology, groups, world,
                    training_config(recipe, parameter_set_names(topology)));
  const auto loaded = [&] {
    const auto scope = world.progress().phase("load checkpoint");
    return load_checkpoint(recipe.checkpoint, training, world, say);
  }();
  BRAID_CHECK(loaded && loaded->missing_sets.empty(), "the start checks have found a checkpoint of the whole model");
  const auto scope = world.progress().phase("evaluation");
  const std::int64_t seed = loaded->seed.value_or(recipe.train.seed);
  const auto bad = std::make_shared<BadSamples>(recipe.data.set.max_bad_samples, note);
  const auto source = make_batch_source(recipe, topology, seed, DataUse::Evaluation, bad);
  const EvaluationReport report = training.evaluate(
      *source, recipe.train.eval_iterations, wants_answers ? std::optional(logging_rank(topology)) : std::nullopt);
  const std::set<SampleId> damaged = wants_answers ? damaged_on_all_ranks(*bad, world) : std::set<SampleId>();
  CheckpointEvaluation result = {.record = record_of(report, loaded->position),
                                 .samples = unusable_samples(*bad, topology, world)};
  if (wants_answers && world.rank() == logging_rank(topology)) {
    LaneSetOptions options = lane_set_options(recipe, topology, seed, DataUse::Evaluation);
    // The evaluation has named and counted the damaged samples that this reads again.
    options.bad = std::make_shared<BadSamples>(std::numeric_limits<std::int64_t>::max(), nullptr);
    result.data = std::make_shared<LaneSet>(std::move(options));
    result.answers = model_answers(
        result.data, {.replicas = topology.language().dense.size_of("dp"), .micro_batch = recipe.train.micro_batch},
        report.choices, damaged);
  }
  return result;
}

std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::shared_ptr<BadSamples> bad) {
  if (is_mock(recipe.data))
    return make_mock_batches(recipe.data, recipe.model.model, topology,
                             static_cast<std::uint64_t>(use == DataUse::Training ? seed : seed + kEvaluationSeed),
                             balance_for(recipe, topology, use));
  LaneSetOptions options = lane_set_options(recipe, topology, seed, use);
  options.bad = std::move(bad);
  return make_lane_batches(std::move(options), balance_for(recipe, topology, use));
}

std::set<SampleId> damaged_on_all_ranks(const BadSamples& own, World& world) {
  const std::vector<SampleId> all = of_all_ranks(own.damaged(), world);
  return {all.begin(), all.end()};
}

UnusableSamples unusable_samples(const BadSamples& own, const Topology& topology, World& world) {
  const bool counts = topology.language().dense.contains(world.rank());
  const auto total = [&](Unfit kind) {
    const std::set<SampleId> mine = counts ? own.ids(kind) : std::set<SampleId>();
    const double beyond = counts ? static_cast<double>(own.count(kind) - std::ssize(mine)) : 0;  // without an id
    return std::ssize(of_all_ranks(mine, world)) + std::llround(reduced({beyond}, Reduce::Sum, world)[0]);
  };
  UnusableSamples samples = {.damaged = std::ssize(damaged_on_all_ranks(own, world))};
  samples.too_long = total(Unfit::TooLong);
  samples.without_targets = total(Unfit::WithoutTargets);
  samples.cut = total(Unfit::Cut);
  return samples;
}

}  // namespace braid
