#include "run/trainer.h"
#include <fmt/ranges.h>
#include "base/strings.h"
#include "ckpt/tensor_io.h"
#include "comm/comm_meter.h"
#include "comm/world.h"
#include "data/batches/batch.h"
#include "data/batches/gpt_batches.h"
#include "data/batches/mock_data.h"
#include "log/profiling.h"
#include "log/run_log.h"
#include "ops/attention.h"
#include "paper/stage.h"
#include "plan/op.h"
#include "run/resume/checkpoint.h"
#include "train/all_ranks.h"
#include "train/training.h"

namespace braid {
namespace {

EvaluationRecord evaluation_record(const EvaluationReport& report, const RunPosition& position) {
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

// Collective: the samples of all ranks, each once.
std::set<SampleId> of_all_ranks(const std::set<SampleId>& mine, World& world) {
  std::vector<double> counts(static_cast<std::size_t>(world.size()));
  counts[static_cast<std::size_t>(world.rank())] = static_cast<double>(mine.size());
  counts = reduced(counts, Reduce::Sum, world);
  std::set<SampleId> all;
  for (int rank = 0; rank < world.size(); ++rank) {  // one rank per call, which bounds its memory
    std::vector<double> ids(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]));
    if (ids.empty()) continue;
    if (rank == world.rank()) std::ranges::copy(mine, ids.begin());
    for (const double id : reduced(ids, Reduce::Sum, world)) all.insert(static_cast<SampleId>(id));
  }
  return all;
}

// Collective over the world. The ranks of encoders read the same samples as those of the language model.
UnusableSamples unusable_samples(const BadSamples& own, const Topology& topology, World& world) {
  const bool counts = topology.language().dense.contains(world.rank());
  const auto total = [&](Unfit kind) {
    const std::set<SampleId> mine = counts ? own.ids(kind) : std::set<SampleId>();
    const double beyond = counts ? static_cast<double>(own.count(kind) - std::ssize(mine)) : 0;  // without an id
    return std::ssize(of_all_ranks(mine, world)) + std::llround(reduced({beyond}, Reduce::Sum, world)[0]);
  };
  UnusableSamples samples = {.damaged = std::ssize(of_all_ranks(own.damaged(), world))};
  samples.too_long = total(Unfit::TooLong);
  samples.without_targets = total(Unfit::WithoutTargets);
  samples.cut = total(Unfit::Cut);
  return samples;
}

// One rank's run.
class Run {
 public:
  Run(const Recipe& recipe, const Topology& topology, World& world, const RunContext& context)
      : recipe_(recipe), topology_(topology), world_(world), context_(context),
        iterations_(iterations_of(length_of(recipe.train))), speaks_(world.rank() == logging_rank(topology)),
        seed_(recipe.train.seed), groups_(world, topology), bad_(make_bad_samples()),
        training_(recipe.model.model, topology, groups_, world, training_config(recipe, frozen_sets(recipe))),
        clock_(open_trace(recipe.log, world.rank(), topology.coordinates_of(world.rank())),
               make_phase_clock(world.device())),
        phases_(topology), profile_(recipe.log.profile, world.rank(), world.device(), [this](const std::string& line) {
          RunLog::note_of_rank(line, world_.rank(), context_.under_braid_launcher);
        }) {
    if (clock_.trace().enabled()) {
      host_time_.emplace(world.progress());
      communication_.emplace(clock_.trace(), world.rank());
    }
    const auto say = [this](const std::string& text) { this->say(text); };
    if (!recipe.checkpoint.save.empty())
      saver_.emplace(recipe.checkpoint, training_, world, logging_rank(topology), say, context.job, context.held_lock);
    data_positions_ = load(topology, say);
    data_ = make_batch_source(recipe, topology, seed_, DataUse::Training, bad_);
    if (!recipe.checkpoint.load_data)
      data_positions_.clear();
    else if (data_positions_.empty())
      data_positions_ = data_->positions_after(position_.consumed_samples);
    if (!data_positions_.empty())
      data_->restore(data_positions_);
    else if (position_.consumed_samples > 0)
      say(recipe.checkpoint.load_data
              ? "the checkpoint does not say where the data set continues: it is read from its start"
              : "the data set is read from its start: checkpoint.load_data=false");
    training_.read_from(*data_, position_.consumed_samples);
    begin_log();
    if (communication_) world.meter().keep_spans();
  }

  RunResult run() {
    StopReason reason = StopReason::None;
    while (position_.iteration < iterations_ && reason == StopReason::None) {
      const auto scope = world_.progress().phase(fmt::format("iteration {}", position_.iteration + 1));
      reason = run_iteration(position_.iteration + 1);
    }
    training_.finish_parameters();
    finish_saving();
    profile_.finish();
    finish_log(text_of(reason, recipe_.stop));
    const bool merged = finish_trace();
    const bool lost = (log_ && log_->lost_output()) || clock_.trace().lost_output() || profile_.lost_output();
    return {std::move(losses_), reason, lost || !merged};
  }

 private:
  // Collective over the world: the first rank joins the traces of all. False if it cannot.
  bool finish_trace() {
    if (!clock_.trace().enabled()) return true;
    communication_->add(world_.meter().take_spans());
    clock_.trace().flush();
    const std::string& folder = recipe_.log.trace_dir;
    const auto scope = world_.progress().phase("merge traces");
    const double bytes = reduced({static_cast<double>(clock_.trace().bytes())}, Reduce::Sum, world_)[0];
    const bool merges = world_.rank() == 0;
    std::atomic<std::int64_t> done = 0;
    std::string problem;
    run_with_progress(
        "merging traces",
        [&] {
          try {
            if (merges) merge_traces(folder, world_.size(), &done);
          } catch (const std::exception& e) {  // a completed run must not fail because of its trace
            problem = e.what();
          }
        },
        done, merges ? bytes : 0);
    if (!problem.empty())
      RunLog::note_of_rank(fmt::format("{}; the traces of ranks in '{}' are not merged", problem, folder),
                           world_.rank(), context_.under_braid_launcher);
    return problem.empty();
  }

  // Collective over the world. All ranks start counting here, so that the phases of the first iterations add up to the
  // time of these iterations on every rank, without the time of the start.
  void begin_log() {
    const auto scope = world_.progress().phase("start of all ranks");
    world_.everyone().barrier();
    if (speaks_)
      log_.emplace(recipe_.log,
                   RunFacts{.iterations = iterations_,
                            .done_before = position_.iteration,
                            .global_batch = recipe_.train.global_batch,
                            .ranks = world_.size(),
                            .flops_per_iteration = count_flops(recipe_.model.model.language, tokens_per_step(),
                                                               sequence_length() / recipe_.data.packed)
                                                       .total(),
                            .under_braid_launcher = context_.under_braid_launcher,
                            .device = world_.device().is_cpu() ? "rank" : "GPU"},
                   Moment::now());
    world_.meter().take_totals();
    clock_.timers().report(1);
  }

  // Only the first rank of the language model, which reads the first lanes, reports unused parts of samples and samples
  // that are left out or cut, so that the log has each report once.
  std::shared_ptr<BadSamples> make_bad_samples() {
    const BadSamples::Say say = [this](const std::string& line) {
      RunLog::note_of_rank(line, world_.rank(), context_.under_braid_launcher);
    };
    const bool is_first = world_.rank() == topology_.language().dense.rank_offset();
    return std::make_shared<BadSamples>(recipe_.data.set.max_bad_samples, say, is_first ? say : nullptr);
  }

  void say(const std::string& text) {
    if (speaks_) RunLog::note(text + "\n", context_.under_braid_launcher);
  }

  // Collective over the world: does work of this rank while the others do theirs.
  void run_with_progress(const char* what, const std::function<void()>& work, const std::atomic<std::int64_t>& done,
                         double total) {
    const auto amount = [&] { return Amount{static_cast<double>(done), total}; };
    run_while_all_wait(world_, work, amount, [&](const Amount& all, double) {
      say(fmt::format("{}: {:.0f} %", what, 100 * all.done / all.total));
    });
  }

  // Returns the positions at which the data set's lanes continue, if the checkpoint has them.
  std::vector<std::string> load(const Topology& topology, const std::function<void(const std::string&)>& say) {
    const auto loaded = [&] {
      const auto scope = world_.progress().phase("load checkpoint");
      return load_checkpoint(recipe_.checkpoint, training_, world_, say);
    }();
    initialize_weights(loaded ? loaded->missing_sets : parameter_set_names(topology));
    if (!loaded) return {};
    position_ = loaded->position;
    if (position_.iteration > 0 && position_.iteration < iterations_)
      say(fmt::format("the run continues after iteration {} and {}", position_.iteration,
                      counted(position_.consumed_samples, "sample")));
    if (resumes_in_place(recipe_.checkpoint)) {
      saver_->resumed_from(position_.iteration);
      saved_iteration_ = position_.iteration;
    }
    if (!loaded->seed || *loaded->seed == seed_) return loaded->data_positions;
    say(fmt::format("using the checkpoint's random seed {}, not train.seed={}", *loaded->seed, seed_));
    seed_ = *loaded->seed;
    return loaded->data_positions;
  }

  // Initializes the weights that no checkpoint provides. A large model takes minutes on a CPU.
  void initialize_weights(const std::vector<std::string>& sets) {
    if (sets.empty()) return;
    const auto scope = world_.progress().phase("draw weights");
    std::atomic<std::int64_t> done = 0;
    const auto total = static_cast<double>(training_.elements_of(sets));
    const auto start = std::chrono::steady_clock::now();
    run_with_progress(
        "initializing", [&] { training_.initialize_weights(sets, done); }, done, total);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    say(fmt::format("initialized the weights of {} in {:.1f} s", fmt::join(sets, ", "), seconds.count()));
  }

  void save() {
    const auto scope = world_.progress().phase("save checkpoint");
    if (!losses_.empty()) data_positions_ = training_.data_positions();
    saver_->save({.position = position_,
                  .schedule = training_.schedule(),
                  .fully_reshardable = recipe_.checkpoint.fully_reshardable,
                  .world_size = world_.size(),
                  .recipe = to_yaml(recipe_),
                  .data_positions = data_positions_},
                 seed_);
    saved_iteration_ = position_.iteration;
    if (log_) log_->leave_out_time_until(Moment::now());
  }

  void finish_saving() {
    if (!saver_) return;
    if (position_.iteration > saved_iteration_) save();
    saver_->finish();
  }

  StopReason run_iteration(std::int64_t iteration) {
    const TrainingReport report = step(iteration);
    position_ = {iteration, position_.consumed_samples + recipe_.train.global_batch};
    losses_.push_back(report.loss);
    warn_without_targets(iteration, report);
    skipped_in_a_row_ = report.update.stepped ? 0 : skipped_in_a_row_ + 1;
    const StopReason reason = report.stop;
    const bool last = reason != StopReason::None || iteration == iterations_ || too_many_skipped();
    if (log_) log_->add(record_of(iteration, report, last), Moment::now());
    ++since_interval_;
    if (closes_interval(recipe_.log.log_interval, iteration, last)) close_interval();
    if (too_many_skipped()) give_up(report);
    if (saver_) saver_->check();
    if (const auto& interval = recipe_.checkpoint.save_interval; saver_ && interval && iteration % *interval == 0)
      save();
    const bool evaluation_is_due = evaluates(recipe_.train) && (last || iteration % *recipe_.train.eval_interval == 0);
    if (!evaluation_is_due) return reason;
    // An exit_interval is planned, but after a signal there is little time.
    if (reason <= StopReason::ExitInterval) return std::max(reason, evaluate());
    say_not_evaluated(reason);
    return reason;
  }

  void say_not_evaluated(StopReason reason) {
    say(fmt::format("iteration {} is not evaluated: {}{}", position_.iteration, text_of(reason, recipe_.stop),
                    saver_ ? "; `braid eval` can evaluate its checkpoint" : ""));
  }

  // Returns the reason to stop that arose during the evaluation, if any.
  StopReason evaluate() {
    // A failed evaluation must lose neither a checkpoint that is being written nor a finished run.
    if (position_.iteration == iterations_)
      finish_saving();
    else if (saver_)
      saver_->finish();
    const auto scope = world_.progress().phase("evaluation");
    const auto purpose = world_.meter().purpose(kForEvaluation);
    if (log_) log_->show_evaluation(true);
    // exit_interval is a planned end and does not interrupt an evaluation.
    const StopConfig limits = {.exit_duration_in_mins = recipe_.stop.exit_duration_in_mins};
    const auto wanted = [&] { return context_.stop.wanted(limits, position_.iteration); };
    // From the start of the evaluation split, so that evaluations are comparable.
    const auto data = make_batch_source(recipe_, topology_, seed_, DataUse::Evaluation, bad_);
    const EvaluationReport report = training_.evaluate(*data, recipe_.train.eval_iterations, std::nullopt, wanted);
    const StopReason stop = report.stop;  // the maximum over ranks
    if (report.is_complete) {
      const EvaluationRecord record = evaluation_record(report, position_);
      if (log_) log_->add_evaluation(record, Moment::now());
    } else {
      say_not_evaluated(stop);
    }
    if (log_) log_->leave_out_time_until(Moment::now());
    if (log_ && stop == StopReason::None) log_->show_evaluation(false);
    if (stop != StopReason::None && since_interval_ > 0) {
      if (log_) log_->close_interval(Moment::now());
      close_interval();
    }
    return stop;
  }

  TrainingReport step(std::int64_t iteration) {
    TrainingReport report;
    {
      const auto span = clock_.trace().span("iteration", {{"iteration", iteration}});
      profile_.run(iteration, [&] {
        report = training_.step(clock_, [&] { return context_.stop.wanted(recipe_.stop, iteration); });
      });
    }
    if (communication_) communication_->add(world_.meter().take_spans());
    if (host_time_) {
      const HostTimes times = host_time_->take();
      clock_.trace().counter("host time (us)", {{"operators", std::llround(times.operators_ms * 1e3)},
                                                {"communication", std::llround(times.communication_ms * 1e3)},
                                                {"own", std::llround(times.own_ms * 1e3)}});
    }
    clock_.trace().flush();  // so that the trace of a failed run has complete iterations
    return report;
  }

  // Empty if no token of the step had a label. A loss that is not finite is always returned, because it skips the step.
  static std::optional<double> loss_of(const TrainingReport& report) {
    return report.num_tokens > 0 || !std::isfinite(report.loss) ? std::optional(report.loss) : std::nullopt;
  }

  void warn_without_targets(std::int64_t iteration, const TrainingReport& report) {
    if (loss_of(report) || std::exchange(warned_without_targets_, true)) return;
    say(
        fmt::format("warning: iteration {} has nothing to predict: no sample of its global batch has a target, or "
                    "their pictures are damaged. It has no loss; only auxiliary losses, momentum and weight decay "
                    "change the weights. The log counts such iterations",
                    iteration));
  }

  StepRecord record_of(std::int64_t iteration, const TrainingReport& report, bool last) const {
    StepRecord record = {.iteration = iteration,
                         .consumed_samples = position_.consumed_samples,
                         .learning_rate = report.lr,
                         .lm_loss = loss_of(report),
                         .loss_scale = report.loss_scale,
                         .seq_load_balancing_loss = report.load_balancing_loss,
                         .num_tokens = tokens_per_step(),
                         .skipped = !report.update.stepped,
                         .last = last};
    if (report.update.stepped) record.grad_norm = report.update.grad_norm;
    if (recipe_.log.log_num_zeros && report.update.stepped) record.num_zeros = report.update.zeros;
    return record;
  }

  int sequence_length() const { return recipe_.data.sequence_length.value_or(recipe_.model.model.sequence_length); }

  double tokens_per_step() const { return static_cast<double>(recipe_.train.global_batch) * sequence_length(); }

  // Collective over the world: one sum and one maximum provide everything that the log needs.
  void close_interval() {
    const int iterations = std::exchange(since_interval_, 0);
    const PhaseReport report = clock_.timers().report(iterations);
    const CommReport communication = report_of(world_.meter().take_totals(), iterations);
    const std::vector<double> sums =
        reduced(phases_.to_values(world_.rank(), report, communication), Reduce::Sum, world_);
    const std::vector<double> memory = to_values(memory_of_rank(world_.device()));
    std::vector<double> own = memory;
    own.insert(own.end(), attention_paths_taken.begin(), attention_paths_taken.end());
    const std::vector<double> maxima = reduced(own, Reduce::Max, world_);
    const auto paths = maxima.begin() + std::ssize(memory);
    if (log_) {
      log_->add_phases(phases_.means(sums));
      log_->add_memory(memory_of({maxima.begin(), paths}));
    }
    name_attention_paths({paths, maxima.end()});
  }

  // Reports each way in which any rank computes attention, once.
  void name_attention_paths(const std::vector<double>& taken) {
    std::vector<std::string> names;
    for (std::size_t path = 0; path < taken.size(); ++path)
      if (taken[path] > named_attention_paths_[path]) names.emplace_back(kAttentionPathNames[path]);
    named_attention_paths_ = taken;
    if (!names.empty()) say(fmt::format("attention: {}", fmt::join(names, ", ")));
  }

  // Collective over the world.
  void finish_log(const std::string& ended_by) {
    const auto samples = is_mock(recipe_.data) ? UnusableSamples() : unusable_samples(*bad_, topology_, world_);
    if (log_) log_->finish(ended_by, samples);
  }

  bool too_many_skipped() const { return skipped_in_a_row_ >= recipe_.train.max_skipped; }

  void give_up(const TrainingReport& report) {
    const std::string what = std::isfinite(report.loss) ? "a gradient was not finite" : "the loss was not finite";
    const std::string steps = counted(skipped_in_a_row_, "step");
    finish_log(fmt::format("{} in a row skipped", steps));
    throw DataError(
        fmt::format("{} in a row {} skipped, the last one because {} (train.max_skipped={}); lower train.lr, or "
                    "inspect the samples from number {} on",
                    steps, skipped_in_a_row_ == 1 ? "was" : "were", what, recipe_.train.max_skipped,
                    position_.consumed_samples - std::int64_t{skipped_in_a_row_} * recipe_.train.global_batch));
  }

  const Recipe& recipe_;
  const Topology& topology_;
  World& world_;
  const RunContext& context_;
  const std::int64_t iterations_;
  const bool speaks_;  // logs for the run
  std::int64_t seed_;  // of the data
  const Groups groups_;
  const std::shared_ptr<BadSamples> bad_;  // of training and evaluation
  std::unique_ptr<BatchSource> data_;
  std::vector<std::string> data_positions_;  // by lane, of the last checkpoint
  Training training_;
  StepClock clock_;
  const PhaseTable phases_;
  ProfileWindow profile_;
  std::optional<HostTime> host_time_;       // when there is a trace
  std::optional<CommTrack> communication_;  // when there is a trace
  std::optional<RunLog> log_;               // on the logging rank
  RunPosition position_;
  std::int64_t saved_iteration_ = 0;
  std::optional<CheckpointSaver> saver_;  // when there is a folder to save to
  std::vector<double> losses_;
  std::vector<double> named_attention_paths_ = std::vector<double>(kAttentionPathNames.size());
  int since_interval_ = 0, skipped_in_a_row_ = 0;
  bool warned_without_targets_ = false;
};

// Far from the seeds that people choose, so that mock samples of evaluation and training differ.
constexpr std::int64_t kEvaluationSeed = 0x5eed0000;

}  // namespace

bool any_rank_refused(const std::vector<Problem>& problems, World& world) {
  const double own = problems.empty() ? 0 : world.size() - world.rank();
  const double first = reduced({own}, Reduce::Max, world)[0];
  if (own > 0 && own == first) std::fputs(fmt::format("braid: {}\n", ConfigError(problems).what()).c_str(), stderr);
  return first > 0;
}

RunResult train(const Recipe& recipe, const Topology& topology, World& world, const RunContext& context) {
  return Run(recipe, topology, world, context).run();
}

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
  const std::set<SampleId> damaged = wants_answers ? of_all_ranks(bad->damaged(), world) : std::set<SampleId>();
  CheckpointEvaluation result = {.record = evaluation_record(report, loaded->position),
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
  const bool trains = use == DataUse::Training;
  // Evaluation identifies samples by their position, so it never moves them.
  const std::shared_ptr<const SampleBalance> balance = trains ? sample_balance(recipe, topology) : nullptr;
  if (is_mock(recipe.data))
    return make_mock_batches(recipe.data, recipe.model.model, topology,
                             static_cast<std::uint64_t>(trains ? seed : seed + kEvaluationSeed), balance);
  if (is_gpt_data(recipe.data)) {
    GptDataOptions options = gpt_data_options(recipe, seed, use);
    options.retries = {.pauses = usual_read_pauses(), .say = [bad](const std::string& text) { bad->say(text); }};
    return make_gpt_batches(std::move(options), media_tokens(recipe.model.model, topology));
  }
  LaneSetOptions options = lane_set_options(recipe, topology, seed, use);
  options.bad = std::move(bad);
  return make_lane_batches(std::move(options), balance);
}

}  // namespace braid
