#include "run/resume/save_checkpoint.h"

#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "comm/world.h"
#include "train/all_ranks.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

// Empty if the tracker cannot be read.
std::optional<std::int64_t> named_latest(const std::string& root) {
  try {
    return read_tracker(root);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

CheckpointSaver::CheckpointSaver(const CheckpointConfig& config, Training& training, World& world, int publisher,
                                 Say say, const JobIdentity& job, const std::string& held_lock)
    : config_(config),
      training_(training),
      world_(world),
      publisher_(publisher),
      say_(std::move(say)),
      sets_(stored_sets(training.model().provider(), training.model().topology())),
      writers_(sets_, training.model().topology()) {
  if (world.rank() != publisher) return;
  const auto scope = world.progress().phase("lock the folder to save to");
  lock_.emplace(config.save, SaveLock::Options{.job = job, .say = say_, .held = held_lock});
  settle_unfinished(config.save);
  check_save_folder(config);
}

CheckpointSaver::~CheckpointSaver() = default;

std::vector<KeyedTensor> CheckpointSaver::own_tensors() const {
  std::vector<KeyedTensor> own;
  const auto take = [&](std::vector<StateTensor> tensors) {
    for (StateTensor& tensor : tensors)
      if (tensor.written_here) own.push_back(std::move(tensor));
  };
  take(model_state(training_.model(), sets_, &writers_));
  if (config_.save_optimizer)
    take(optimizer_state(training_, sets_, &writers_,
                         config_.fully_reshardable ? OptimizerFormat::FullyReshardable : OptimizerFormat::ByBucket));
  return own;
}

// The first rank of a module's last pipeline stage describes its optimizer: every module that trains has one there.
std::vector<std::pair<std::string, PickleValue>> CheckpointSaver::own_objects(const CommonState& common,
                                                                              std::int64_t seed) const {
  std::vector<std::pair<std::string, PickleValue>> objects;
  for (std::string& key : own_extra_states(training_.model(), sets_, writers_))
    objects.emplace_back(std::move(key), pickle_none());
  const Topology& topology = training_.model().topology();
  for (const Module* module : topology.modules_of(world_.rank())) {
    const Grid& grid = module->dense;
    const int tp = grid.coord(world_.rank(), "tp"), pp = grid.coord(world_.rank(), "pp");
    const int tps = grid.size_of("tp"), pps = grid.size_of("pp");
    if (grid.rank_at({tp, 0, 0, pp}) != world_.rank()) continue;
    const std::string branch = branch_of(*module);
    if (config_.save_rng) objects.emplace_back(object_key(branch + "rng_state", {pp, tp}, {pps, tps}), rng_state(seed));
    if (!config_.save_optimizer || tp != 0 || pp != pps - 1) continue;
    for (const Training::Trained& trained : training_.trained()) {
      if (&topology.module(trained.module) != module) continue;
      const std::string where = fmt::format("{}optimizer.{}", branch, branch);
      const auto add = [&](const char* name, PickleValue value) {
        objects.emplace_back(object_key(where + name, {0}, {1}), std::move(value));
      };
      add("param_groups", param_groups(training_.optimizer_config(), common.schedule, trained.optimizer->steps(),
                                       /*experts=*/trained.optimizer->parts().size() > 1));
      add("param_state_sharding_type", pickle(config_.fully_reshardable ? "fully_reshardable" : "dp_reshardable"));
      if (!config_.fully_reshardable) add("split", pickle(split_of(*module)));
      if (training_.loss_scale().dynamic()) add("grad_scaler", to_pickle(training_.loss_scale().state()));
      break;
    }
  }
  return objects;
}

void CheckpointSaver::resumed_from(std::int64_t iteration) {
  if (!lock_) return;
  if (named_latest(config_.save) != iteration) name_as_latest(config_.save, iteration);
  remove_old();
}

// A killed save may have left old checkpoints, and the disk may lack space for these and a new one.
void CheckpointSaver::remove_old() {
  if (!config_.keep_last) return;
  try {
    remove_old_iterations(config_.save, *config_.keep_last);
  } catch (const std::exception& e) {
    say_(fmt::format("old checkpoints could not be removed: {}", e.what()));
  }
}

void CheckpointSaver::begin(std::int64_t iteration) {
  lock_->check();
  remove_old();
  begin_iteration(config_.save, iteration);
}

void CheckpointSaver::save(const CommonState& common, std::int64_t seed) {
  const auto start = Clock::now();
  const bool waits = job_ && !job_->done();
  wait_for_all("is still being written");
  if (waits && world_.rank() == publisher_)
    say_(fmt::format("waited {:.1f} s for the previous save", seconds_since(start)));
  start_ = Clock::now();
  if (lock_) begin(common.position.iteration);
  world_.everyone().barrier();
  training_.finish_parameters();
  SaveContent content = {.tensors = config_.async ? copied_to_host(own_tensors()) : taken_to_host(own_tensors()),
                         .objects = own_objects(common, seed),
                         .common = to_pickle(common)};
  job_ = std::make_unique<SaveJob>(std::move(content), SaveTarget{.root = config_.save,
                                                                  .iteration = common.position.iteration,
                                                                  .writer = world_.rank(),
                                                                  .writers = world_.size(),
                                                                  .publisher = publisher_,
                                                                  .keep_last = config_.keep_last,
                                                                  .check = [this] { lock_->check(); }});
  if (!config_.async) finish();
}

void CheckpointSaver::check() {
  if (!job_ || !job_->done()) return;
  const std::unique_ptr<SaveJob> job = std::move(job_);
  if (const auto saved = job->result()) say_saved(job->iteration(), *saved);
}

// The time is measured from the moment when training stopped for the save until the checkpoint is on disk or, in a
// synchronous save, until training continues.
void CheckpointSaver::say_saved(std::int64_t iteration, const Saved& saved) {
  const auto end = config_.async ? saved.at : Clock::now();
  const double seconds = std::chrono::duration<double>(end - start_).count();
  const auto bytes = static_cast<double>(saved.bytes);
  say_(fmt::format("saved iteration {} to {}: {} in {:.1f} s ({}/s){}", iteration, config_.save, readable_bytes(bytes),
                   seconds, readable_bytes(bytes / seconds), saved.note.empty() ? "" : "; but " + saved.note));
}

void CheckpointSaver::finish() { wait_for_all("is being written"); }

void CheckpointSaver::wait_for_all(const std::string& what) {
  const std::string iteration = job_ ? fmt::format("iteration {}", job_->iteration()) : "";
  wait_for_all_ranks(
      world_,
      [&] {
        check();
        return !job_;
      },
      [&] {
        return job_ ? Amount{static_cast<double>(job_->bytes_written()), static_cast<double>(job_->bytes())} : Amount();
      },
      [&](const Amount& all, double seconds) {
        if (world_.rank() == publisher_)
          say_(fmt::format("{} {}: {} of {} on disk after {:.0f} s", iteration, what, readable_bytes(all.done),
                           readable_bytes(all.total), seconds));
      });
}

}  // namespace braid
