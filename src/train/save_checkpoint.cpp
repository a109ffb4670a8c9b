#include "train/save_checkpoint.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_checkpoint.h"
#include "dist/world.h"
#include "train/together.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Copies of the tensors that this rank is to write, on the host: training goes on to change the originals.
std::vector<StateTensor> copies_of(std::vector<StateTensor> tensors, const at::Device& device) {
  const at::NoGradGuard no_grad;
  for (StateTensor& tensor : tensors) {
    const auto options = tensor.value.options().device(at::kCPU).pinned_memory(device.is_cuda());
    at::Tensor copy = at::empty(tensor.value.sizes(), options, at::MemoryFormat::Contiguous);
    copy.copy_(tensor.value, /*non_blocking=*/true);
    tensor.value = std::move(copy);
  }
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
  return tensors;
}

std::int64_t bytes_of(const std::vector<StateTensor>& tensors) {
  std::int64_t bytes = 0;
  for (const StateTensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.value.nbytes());
  return bytes;
}

}  // namespace

// One save on this rank, from the copy to the end.
class CheckpointSaver::Job {
 public:
  struct Content {
    std::vector<StateTensor> tensors;
    std::vector<std::pair<std::string, PickleValue>> objects;
    PickleValue common;  // the publisher's
  };
  struct Place {
    std::string root;
    std::int64_t iteration;
    int rank, ranks, publisher;
    std::optional<int> keep_last;
  };

  Job(Content content, Place place)
      : content_(std::move(content)), place_(std::move(place)), total_(bytes_of(content_.tensors)), thread_([this] {
          try {
            run();
          } catch (...) {
            error_ = std::current_exception();
          }
          done_ = true;
        }) {}
  ~Job() {
    cancelled_ = true;
    thread_.join();
  }

  bool done() const { return done_; }
  std::exception_ptr error() const { return error_; }  // when done
  std::string summary() const { return summary_; }     // of the publisher's, when done
  Amount amount() const { return {static_cast<double>(written_), static_cast<double>(total_)}; }
  std::int64_t iteration() const { return place_.iteration; }

 private:
  void run() {
    const std::string partial = partial_folder(place_.root, place_.iteration);
    {
      DistWriter writer(partial, place_.rank);
      for (const auto& [key, object] : content_.objects) writer.add_object(key, object);
      for (StateTensor& tensor : content_.tensors) {
        if (cancelled_) return;
        writer.add_tensor(tensor.key, tensor.shape, tensor.begin, tensor.value);
        written_ += static_cast<std::int64_t>(tensor.value.nbytes());
        tensor.value.reset();
      }
      writer.finish();
      hand_in(partial, place_.rank, writer);
    }
    if (place_.rank != place_.publisher) return;
    std::chrono::milliseconds pause(1);
    while (!missing_writers(partial, place_.ranks).empty()) {
      if (cancelled_) return;
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(200));
    }
    const Published published = publish(place_.root, place_.iteration, place_.ranks, content_.common);
    const double seconds = seconds_since(start_);
    summary_ = fmt::format("saved iteration {} to {}: {} in {:.1f} s ({}/s)", place_.iteration, place_.root,
                           readable_bytes(published.bytes), seconds,
                           readable_bytes(static_cast<double>(published.bytes) / seconds));
    if (place_.keep_last) remove_old_iterations(place_.root, *place_.keep_last);
  }

  Content content_;
  const Place place_;
  const std::int64_t total_;
  const Clock::time_point start_ = Clock::now();
  std::atomic<std::int64_t> written_ = 0;
  std::atomic<bool> done_ = false, cancelled_ = false;
  std::exception_ptr error_;
  std::string summary_;
  std::thread thread_;  // last: it uses all of them
};

CheckpointSaver::CheckpointSaver(const CheckpointConfig& config, Training& training, World& world, int publisher,
                                 Say say)
    : config_(config),
      training_(training),
      world_(world),
      publisher_(publisher),
      say_(std::move(say)),
      sets_(stored_sets(training.model().provider(), training.model().topology())),
      writers_(sets_, training.model().topology()) {
  if (world.rank() == publisher) prepare_root(config.save);
}

CheckpointSaver::~CheckpointSaver() = default;

std::vector<StateTensor> CheckpointSaver::own_tensors() const {
  std::vector<StateTensor> all = model_state(training_.model(), sets_, &writers_);
  if (config_.save_optimizer) {
    const auto format = config_.fully_reshardable ? OptimizerFormat::FullyReshardable : OptimizerFormat::ByBucket;
    for (StateTensor& tensor : optimizer_state(training_, sets_, &writers_, format)) all.push_back(std::move(tensor));
  }
  std::erase_if(all, [](const StateTensor& tensor) { return !tensor.written_here; });
  return all;
}

// A module's optimizer is described by the first rank of its last stage, where every module that trains has one.
std::vector<std::pair<std::string, PickleValue>> CheckpointSaver::own_objects(const CommonState& common,
                                                                              int seed) const {
  std::vector<std::pair<std::string, PickleValue>> objects;
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
      if (&topology.modules()[static_cast<std::size_t>(trained.module)] != module) continue;
      const std::string where = fmt::format("{}optimizer.{}", branch, branch);
      const auto add = [&](const char* name, PickleValue value) {
        objects.emplace_back(object_key(where + name, {0}, {1}), std::move(value));
      };
      add("param_groups", param_groups(training_.optimizer_config(), common.schedule, trained.optimizer->steps()));
      add("param_state_sharding_type", pickle(config_.fully_reshardable ? "fully_reshardable" : "dp_reshardable"));
      add("grad_scaler", to_pickle(training_.loss_scale().state()));
      break;
    }
  }
  return objects;
}

void CheckpointSaver::save(const CommonState& common, int seed) {
  const auto start = Clock::now();
  const bool waits = job_ && !job_->done();
  wait_for_all("is still being written");
  if (waits && world_.rank() == publisher_)
    say_(fmt::format("waited {:.1f} s for the save before this one", seconds_since(start)));
  if (world_.rank() == publisher_) begin_iteration(config_.save, common.position.iteration);
  world_.everyone().barrier();
  training_.finish_parameters();
  Job::Content content = {.tensors = copies_of(own_tensors(), world_.device()),
                          .objects = own_objects(common, seed),
                          .common = to_pickle(common)};
  job_ = std::make_unique<Job>(std::move(content), Job::Place{.root = config_.save,
                                                              .iteration = common.position.iteration,
                                                              .rank = world_.rank(),
                                                              .ranks = world_.size(),
                                                              .publisher = publisher_,
                                                              .keep_last = config_.keep_last});
  if (!config_.async) finish();
}

void CheckpointSaver::check() {
  if (!job_ || !job_->done()) return;
  if (job_->error()) std::rethrow_exception(std::exchange(job_, nullptr)->error());
  if (!job_->summary().empty()) say_(job_->summary());
  job_.reset();
}

void CheckpointSaver::finish() { wait_for_all("is being written"); }

void CheckpointSaver::wait_for_all(const std::string& what) {
  const std::string iteration = job_ ? fmt::format("iteration {}", job_->iteration()) : "";
  wait_together(
      world_,
      [&] {
        check();
        return !job_;
      },
      [&] { return job_ ? job_->amount() : Amount(); },
      [&](const Amount& all, double seconds) {
        if (world_.rank() == publisher_)
          say_(fmt::format("{} {}: {} of {} on disk after {:.0f} s", iteration, what, readable_bytes(all.done),
                           readable_bytes(all.total), seconds));
      });
}

}  // namespace braid
