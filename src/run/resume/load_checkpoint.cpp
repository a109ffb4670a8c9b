#include <ATen/ops/empty.h>
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_checkpoint.h"
#include "comm/world.h"
#include "plan/op.h"
#include "run/resume/checkpoint.h"
#include "run/resume/stored_state.h"
#include "train/all_ranks.h"

namespace braid {
namespace {

using Say = std::function<void(const std::string& text)>;

// --- the iteration of a folder from which a run resumes, the same on all ranks

// The largest number of any rank; empty if none has one. Collective.
std::optional<std::int64_t> largest(const std::optional<std::int64_t>& own, World& world) {
  const double most = reduced({static_cast<double>(own.value_or(-1))}, Reduce::Max, world)[0];
  return most < 0 ? std::nullopt : std::optional(static_cast<std::int64_t>(most));
}

// The newest complete iteration before `end` that any rank sees; empty if there is none. Collective.
std::optional<std::int64_t> newest_before(std::int64_t end, const std::string& root, World& world) {
  std::vector<std::int64_t> older = iterations_in(root);
  std::erase_if(older, [&](std::int64_t iteration) { return iteration >= end; });
  return largest(older.empty() ? std::nullopt : std::optional(older.back()), world);
}

// Whether any rank sees this file. Collective.
bool any_sees(const std::string& path, World& world) {
  return reduced({fs::exists(path) ? 1.0 : 0.0}, Reduce::Max, world)[0] > 0;
}

// All ranks use the newest iteration that any of them sees: one that sees none must not make the run start anew. With a
// fallback to older iterations, a tracker that cannot be read, or that names a missing iteration, counts as damage.
// DataError if all that was saved is damaged.
std::optional<std::int64_t> agreed_iteration(const std::string& root, bool falls_back, World& world, const Say& say) {
  std::optional<std::int64_t> named;
  std::string error;
  try {
    named = falls_back ? latest_iteration(root) : read_tracker(root);
  } catch (const DataError& e) {
    if (!falls_back) throw;
    error = e.what();
  }
  const double own = static_cast<double>(named.value_or(-1));
  named = largest(named, world);
  if (named) {
    if (const double least = -reduced({-own}, Reduce::Max, world)[0]; least < static_cast<double>(*named))
      say(fmt::format("not all ranks see iteration {} of {} yet", *named, root));
    // Waits briefly: on a shared file system some ranks see a folder later than others.
    constexpr int kTries = 50;
    const std::string folder = iteration_folder(root, *named);
    for (int i = 0; i < kTries && !fs::exists(folder); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (!falls_back && !fs::exists(folder)) latest_iteration(root);  // throws
  }
  if (named) return named;
  const auto newest = falls_back ? newest_before(std::numeric_limits<std::int64_t>::max(), root, world) : std::nullopt;
  if (!newest && error.empty()) try {
      refuse_damaged_only(root);
    } catch (const DataError& e) {
      error = e.what();
    }
  if (const std::string text = first_text(error, world); !text.empty()) {
    if (!newest) throw DataError(text);
    say(fmt::format("WARNING: {}; --load-fallback uses the newest complete iteration, {}", text, *newest));
  }
  return newest;
}

// --- loading

// Reports weights of a checkpoint that the model does not use, e.g. of an encoder that the topology leaves out.
void report_unused(const std::vector<KeyedShape>& wanted, const DistCheckpoint& checkpoint, const Say& say) {
  std::set<std::string> keys;
  for (const KeyedShape& tensor : wanted) keys.insert(tensor.key);
  std::vector<std::string> unused;
  for (const auto& [key, tensor] : checkpoint.metadata().tensors)
    if (!keys.contains(key) && !key.starts_with("mimo.")) unused.push_back(key);
  if (!unused.empty())
    say(fmt::format("{} has {} that this run does not use; the first is {}", checkpoint.folder(),
                    counted(std::ssize(unused), "tensor"), in_quotes(unused.front())));
}

// The checkpoint is corrupt, as seen by one or more ranks.
struct Damaged : DataError {
  using DataError::DataError;
};

class Load {
 public:
  Load(const CheckpointConfig& config, Training& training, World& world, const std::string& folder, const Say& say)
      : config_(config), training_(training), world_(world), say_(say),
        sets_(stored_sets(training.model().provider(), training.model().topology())) {
    guarded([&] { checkpoint_.emplace(folder, ReaderShare{world.rank(), world.size()}); });
  }

  // Throws Damaged if the checkpoint is corrupt.
  LoadedRun resume() {
    StoredRun stored;
    guarded([&] { stored = read_run(*checkpoint_); });
    const bool with_optimizer = config_.load_optimizer;
    std::vector<StateTensor> tensors = model_state(training_.model(), sets_, nullptr);
    check_wanted(wanted_of(sets_), *checkpoint_, "is it a checkpoint of another model, or of other sizes?");
    if (config_.load_scheduler) check_schedule(training_.schedule(), stored.scheduler, config_, checkpoint_->folder());
    report_unused(wanted_of(sets_), *checkpoint_, say_);
    if (with_optimizer)
      for (StateTensor& tensor : wanted_optimizer_state()) tensors.push_back(std::move(tensor));
    const std::string loaded = read(tensors);
    if (with_optimizer)
      guarded([&] { resume_optimizers(stored); });
    else
      refresh_optimizers();
    if (with_optimizer) check_unread();
    say_(loaded);
    if (config_.load_scheduler) resume_schedule(stored.scheduler);
    std::optional<std::int64_t> seed;
    if (config_.load_rng) {
      guarded([&] { seed = stored_seed(*checkpoint_, sets_.front()); });
      if (!seed) say_("the checkpoint has no random number state: using train.seed");
    }
    return {.resumes = true,
            .position = stored.position,
            .seed = seed,
            .data_positions = stored.data_positions,
            .initialized_from = stored.initialized_from};
  }

  // Loads the weights of a source and nothing else.
  void take_weights(const WeightSource& source, LoadedRun& run) {
    const MimoModel& model = training_.model();
    const std::vector<StoredSet> sets = sets_of(source, checkpoint_->metadata(), model.provider(), model.topology());
    check_wanted(wanted_of(sets), *checkpoint_,
                 source.kind == WeightSource::Kind::Finetune
                     ? "is it a checkpoint of another model, or of other sizes?"
                     : "is it a checkpoint in Nemotron's naming, of this model?");
    report_unused(wanted_of(sets), *checkpoint_, say_);
    say_(read(model_state(model, sets, nullptr)));
    refresh_optimizers();
    const auto names = vector_of<std::string>(sets, &StoredSet::name);
    say_(fmt::format("initialized the weights of {} from {} ({})", fmt::join(names, ", "), checkpoint_->folder(),
                     source.key));
    for (const std::string& name : names) std::erase(run.missing_sets, name);
    run.initialized_from +=
        fmt::format("{}{}={}", run.initialized_from.empty() ? "" : ", ", source.key, checkpoint_->folder());
  }

 private:
  bool falls_back() const { return config_.load_fallback == LoadFallback::Always; }

  // Runs work of this rank that has no collectives. If the run may fall back to an older checkpoint, all ranks must
  // learn of the damage; otherwise the first rank that finds it ends the run.
  void guarded(const std::function<void()>& act) {
    std::string error;
    try {
      act();
    } catch (const DataError& e) {
      error = e.what();
    } catch (const std::system_error& e) {
      if (!falls_back()) throw;
      error = e.what();
    }
    if (falls_back()) error = first_text(error, world_);
    if (!error.empty()) throw Damaged(error);
  }

  // Runs work of this rank while the other ranks do theirs. An error is kept until all ranks can learn of it.
  void run_guarded(const std::function<void()>& work, const std::function<Amount()>& amount,
                   const std::function<void(const Amount&, double)>& report) {
    std::exception_ptr error;
    const auto held = [&] {
      try {
        work();
      } catch (...) {
        if (!falls_back()) throw;
        error = std::current_exception();
      }
    };
    guarded([&] {
      run_while_all_wait(world_, held, amount, report);
      if (error) std::rethrow_exception(error);
    });
  }

  // Reads this rank's tensors. Returns the log line to print once the checkpoint has proved to be intact.
  std::string read(const std::vector<StateTensor>& tensors) {
    std::atomic<std::int64_t> done = 0;
    const auto total = sum_of<std::int64_t>(tensors, [](const StateTensor& tensor) { return tensor.value.nbytes(); });
    const auto start = std::chrono::steady_clock::now();
    const auto read_own = [&] {
      for (const StateTensor& tensor : tensors) {
        checkpoint_->read(tensor.key, tensor.begin, tensor.value);
        done += static_cast<std::int64_t>(tensor.value.nbytes());
      }
    };
    const auto amount = [&] { return Amount{static_cast<double>(done), static_cast<double>(total)}; };
    run_guarded(read_own, amount, [&](const Amount& all, double seconds) {
      say_(fmt::format("loading {}: {} of {} after {:.0f} s", checkpoint_->folder(), readable_bytes(all.done),
                       readable_bytes(all.total), seconds));
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double bytes = reduced({static_cast<double>(checkpoint_->bytes_read())}, Reduce::Sum, world_)[0];
    return fmt::format("loaded {}: {} in {:.1f} s ({}/s)", checkpoint_->folder(), readable_bytes(bytes), seconds,
                       readable_bytes(bytes / std::max(seconds, 1e-3)));
  }

  void resume_schedule(const ScheduleState& stored) {
    LrSchedule& schedule = training_.schedule();
    const LrSchedule there = with_state(schedule, stored);
    if (config_.scheduler == ResumeWith::Checkpoint)
      schedule = there;
    else
      schedule.num_steps = there.num_steps;
  }

  std::vector<StateTensor> wanted_optimizer_state() {
    const std::string fix =
        "was it saved without the optimizer, with other modules frozen, or by bucket with other buckets or in another "
        "layout (tp, pp, vpp, ep)? load only the weights with --no-load-optim or --finetune";
    const bool by_bucket = std::ranges::any_of(sets_, [&](const StoredSet& set) {
      return has_key_with(checkpoint_->metadata(), set.branch + "optimizer.distributed.") ||
             has_key_with(checkpoint_->metadata(), set.branch + "chained_0.optimizer.distributed.");
    });
    if (by_bucket) check_splits();
    const auto format = by_bucket ? OptimizerFormat::ByBucket : OptimizerFormat::FullyReshardable;
    std::vector<StateTensor> tensors = optimizer_state(training_, sets_, nullptr, format);
    const auto wanted = vector_of<KeyedShape>(tensors, [](auto& each) { return KeyedShape{each.key, each.shape}; });
    check_wanted(wanted, *checkpoint_, fix);
    return tensors;
  }

  // Buckets of another split may have the same sizes but different contents.
  void check_splits() {
    std::vector<std::pair<const Module*, PickleValue>> splits;
    guarded([&] {
      for (const Training::Trained& trained : training_.trained()) {
        const Module& module = training_.model().topology().module(trained.module);
        const std::string branch = branch_of(module);
        splits.emplace_back(&module, find_object(*checkpoint_, fmt::format("{}optimizer.{}split/", branch, branch)));
      }
    });
    for (const auto& [module, split] : splits) {
      const auto* saved = as<std::string>(split);
      if (saved && *saved != split_of(*module))
        throw DataError(
            fmt::format("{} stores the optimizer state of {} by bucket, split over {}, but this run splits it over {}; "
                        "use the same split, or load only the weights with --no-load-optim or --finetune",
                        checkpoint_->folder(), module->name, *saved, split_of(*module)));
    }
  }

  void resume_optimizers(const StoredRun& stored) {
    for (const Training::Trained& trained : training_.trained()) {
      const std::string branch = branch_of(training_.model().topology().module(trained.module));
      const std::string where = fmt::format("{}optimizer.{}", branch, branch);
      const PickleValue groups = find_object(*checkpoint_, where + "param_groups/");
      trained.optimizer->set_steps(steps_of(groups).value_or(stored.position.iteration));
    }
    if (!training_.loss_scale().dynamic()) return;
    // All ranks have the same loss scale, including ranks on which nothing trains.
    for (const StoredSet& set : sets_) {
      const PickleValue scale =
          find_object(*checkpoint_, fmt::format("{}optimizer.{}grad_scaler/", set.branch, set.branch));
      if (const auto state = parse_loss_scale(scale)) return training_.loss_scale().restore(*state);
    }
  }

  // A resuming run checks the whole checkpoint: ranks share data that no rank had to read, such as other objects.
  void check_unread() {
    const std::vector<bool> own = checkpoint_->checked();
    if (own.empty()) return;
    at::Tensor read = at::empty({static_cast<std::int64_t>(own.size())}, at::kByte);
    std::ranges::copy(own, read.mutable_data_ptr<std::uint8_t>());
    read = read.to(world_.device());
    world_.everyone().all_reduce(read, Reduce::Max);
    read = read.cpu();
    std::vector<bool> wanted(own.size());
    int next = 0;
    for (std::size_t block = 0; block < own.size(); ++block)
      if (!read.const_data_ptr<std::uint8_t>()[block]) wanted[block] = next++ % world_.size() == world_.rank();
    run_guarded([&] { checkpoint_->check(wanted); }, [] { return Amount(); },
                [&](const Amount&, double seconds) {
                  say_(fmt::format("checking checkpoint data that no rank needs: {:.0f} s so far", seconds));
                });
  }

  void refresh_optimizers() {
    for (const Training::Trained& trained : training_.trained()) trained.optimizer->take_parameters();
  }

  const CheckpointConfig& config_;
  Training& training_;
  World& world_;
  const Say& say_;
  std::optional<DistCheckpoint> checkpoint_;
  const std::vector<StoredSet> sets_;
};

LoadedRun without_weights(const Training& training) {
  return {.missing_sets = parameter_set_names(training.model().topology())};
}

// Resumes from an iteration, or takes only its weights.
LoadedRun load_iteration(const CheckpointConfig& config, Training& training, World& world, const std::string& folder,
                         const Say& say) {
  Load load(config, training, world, folder, say);
  if (!config.finetune) return load.resume();
  LoadedRun run = without_weights(training);
  load.take_weights({WeightSource::Kind::Finetune, "checkpoint.load", folder}, run);
  return run;
}

LoadedRun load_newest(const CheckpointConfig& config, Training& training, World& world, std::int64_t iteration,
                      const Say& say) {
  const std::string& root = config.load;
  std::string newest_error;
  for (;;) {
    try {
      LoadedRun run = load_iteration(config, training, world, iteration_folder(root, iteration), say);
      if (!newest_error.empty())
        say(fmt::format("WARNING: resuming from the older iteration {} of {} (--load-fallback)", iteration, root));
      return run;
    } catch (const Damaged& e) {
      if (config.load_fallback != LoadFallback::Always)
        throw DataError(fmt::format("{}; {}", e.what(), fallback_advice(root, iteration)));
      if (newest_error.empty()) newest_error = e.what();
      const auto older = newest_before(iteration, root, world);
      if (!older) throw DataError(fmt::format("{}; {}", newest_error, kNoReadableCheckpoint));
      say(fmt::format("WARNING: iteration {} cannot be loaded: {}; trying iteration {} (--load-fallback)", iteration,
                      e.what(), *older));
      iteration = *older;
    }
  }
}

// Starts with the weights of these sources. The first rank decides which iterations of their folders are used.
LoadedRun load_weights(const std::vector<WeightSource>& sources, const CheckpointConfig& config, Training& training,
                       World& world, const Say& say) {
  LoadedRun run = without_weights(training);
  for (const WeightSource& source : sources) {
    std::vector<std::pair<int, std::string>> folder;
    if (world.rank() == 0) folder.emplace_back(0, resolve_iteration(source.path));
    Load(config, training, world, gathered_texts(folder, 1, world)[0], say).take_weights(source, run);
  }
  return run;
}

}  // namespace

std::optional<LoadedRun> load_checkpoint(const CheckpointConfig& config, Training& training, World& world,
                                         const Say& say) {
  const std::string& root = config.load;
  const std::vector<WeightSource> sources = weight_sources(config);
  if (!root.empty()) {
    if (any_sees(root + "/.metadata", world))  // an iteration's own folder
      return load_iteration(config, training, world, without_end_slash(root), say);
    if (const auto iteration = agreed_iteration(root, config.load_fallback == LoadFallback::Always, world, say))
      return load_newest(config, training, world, *iteration, say);
    if (config.must_exist || config.finetune)
      throw ConfigError({fmt::format("there is no checkpoint in '{}'", root), "checkpoint.load",
                         "give a folder that has one, or leave out --finetune and --exit-on-missing-checkpoint"});
    say(sources.empty() ? fmt::format("no checkpoint in {}: the run starts from scratch", root)
                        : fmt::format("no complete checkpoint in {}: the run is initialized", root));
  }
  if (sources.empty()) return std::nullopt;
  return load_weights(sources, config, training, world, say);
}

}  // namespace braid
