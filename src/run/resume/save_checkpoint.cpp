#include "base/error.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "comm/world.h"
#include "run/resume/checkpoint.h"
#include "train/all_ranks.h"

namespace braid {
namespace {

// The first of these sets or parameters with this name.
template <class Named>
std::size_t index_of(const std::vector<Named>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &Named::name);
  BRAID_CHECK(found != all.end(), "there is no '{}'", name);
  return static_cast<std::size_t>(found - all.begin());
}

StateTensor state_tensor(KeyedBox box, const at::Tensor& tensor, bool written_here) {
  at::Tensor value = box_of(tensor, box.local_begin, box.size);
  if (box.shape.size() > box.size.size()) value = value.unsqueeze(0);  // a layer of a stack
  return {{std::move(box.key), std::move(box.shape), std::move(box.begin), std::move(value)}, written_here};
}

const char* python_name(at::ScalarType dtype) {
  return dtype == at::kDouble ? "float64" : dtype == at::kFloat ? "float32" : "bfloat16";
}

struct Moment {
  const char* name;
  at::Tensor value;
};

template <class State>
std::vector<Moment> moments_of(const State& state) {
  return {{"param", state.main}, {"exp_avg", state.exp_avg}, {"exp_avg_sq", state.exp_avg_sq}};
}

void add_by_parameter(const Training::Trained& trained, const StoredSet& set,
                      const std::function<bool(const ParamSpec&)>& writes, std::vector<StateTensor>& tensors) {
  for (const OptimizerState& state : trained.optimizer->state()) {
    const ShardCoordinates& coordinates = trained.set->parameters.coordinates();
    for (const Moment& moment : moments_of(state))
      for (KeyedRange& range : keyed_ranges(state.spec, coordinates, set.rule, state.range.begin, state.range.end)) {
        std::int64_t elements = 1;
        for (const std::int64_t size : range.flat_shape) elements *= size;
        const at::Tensor slab = moment.value.narrow(0, range.flat_begin, elements).view(range.flat_shape);
        range.box.key = fmt::format("{}optimizer.state.{}.{}", set.branch, moment.name, range.box.key);
        tensors.push_back(state_tensor(std::move(range.box), slab, writes(state.spec)));
      }
  }
}

void add_by_bucket(const Training::Trained& trained, const StoredSet& set, const Module& module, int rank,
                   std::vector<StateTensor>& tensors) {
  const auto& parts = trained.optimizer->parts();
  const int pp = module.dense.coord(rank, "pp");
  const ShardCoordinates c = shard_coordinates(module, rank);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const GradientBuffer& buffer = parts[p]->gradients();
    const Parameters::Entry& first = buffer.entry(buffer.layout().slots.front());
    const std::string chained = parts.size() > 1 ? fmt::format("chained_{}.", p) : "";
    // The index of this rank's data-parallel group among those of its module.
    const int part = first.spec.expert ? c.expt_tp + c.expt_tp_size * (c.ep + c.ep_size * pp) : c.tp + c.tp_size * pp;
    const std::string where =
        fmt::format("{}{}optimizer.distributed.dp_group_idx_{}.gbuf_idx_{}.dtype_(torch.{}, torch.{})", set.branch,
                    chained, part, set.name.ends_with(".projector") ? 1 : 0, python_name(first.value.scalar_type()),
                    python_name(buffer.tensor_options().dtype().toScalarType()));
    for (const BucketState& state : parts[p]->bucket_state())
      for (const Moment& moment : moments_of(state))
        if (state.range.size() > 0)
          tensors.push_back({{fmt::format("{}.bucket_idx_{}.{}", where, state.bucket, moment.name),
                              {state.elements},
                              {state.range.begin},
                              moment.value},
                             buffer.sharded() || buffer.group().rank() == 0});
  }
}

using Clock = std::chrono::steady_clock;

}  // namespace

std::vector<StateTensor> model_state(const MimoModel& model, const std::vector<StoredSet>& sets,
                                     const ShardWriters* writers) {
  std::vector<StateTensor> tensors;
  const int rank = model.world().rank();
  for (const auto& set : model.parameter_sets()) {
    if (std::ranges::find(sets, set->name, &StoredSet::name) == sets.end()) continue;
    const std::size_t s = index_of(sets, set->name);
    for (const Parameters::Entry& entry : set->parameters.entries()) {
      const bool mine = writers && writers->writer(s, index_of(sets[s].specs, entry.spec.name), rank) == rank;
      for (KeyedBox& box : keyed_boxes(entry.spec, set->parameters.coordinates(), sets[s].rule))
        tensors.push_back(state_tensor(std::move(box), entry.value.detach(), mine));
    }
  }
  return tensors;
}

std::vector<StateTensor> optimizer_state(const Training& training, const std::vector<StoredSet>& sets,
                                         const ShardWriters* writers, OptimizerFormat format) {
  std::vector<StateTensor> tensors;
  const int rank = training.model().world().rank();
  for (const Training::Trained& trained : training.trained()) {
    const std::size_t s = index_of(sets, trained.set->name);
    const Module& module = training.model().topology().module(trained.module);
    if (format == OptimizerFormat::ByBucket) {
      add_by_bucket(trained, sets[s], module, rank, tensors);
      continue;
    }
    const ShardCoordinates coordinates = shard_coordinates(module, rank);
    const auto writes = [&](const ParamSpec& spec) {
      const bool first_replica = spec.tp_dim >= 0 || (spec.expert ? coordinates.expt_tp : coordinates.tp) == 0;
      // Each range of a sharded optimizer is on exactly one rank of the replicas.
      if (trained.optimizer->parts().front()->gradients().sharded()) return first_replica;
      return writers && writers->writer(s, index_of(sets[s].specs, spec.name), rank) == rank;
    };
    add_by_parameter(trained, sets[s], writes, tensors);
  }
  return tensors;
}

CheckpointSaver::CheckpointSaver(const CheckpointConfig& config, Training& training, World& world, int publisher,
                                 Say say, const JobIdentity& job, const std::string& held_lock)
    : config_(config), training_(training), world_(world), publisher_(publisher), say_(std::move(say)),
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
  // Megatron's `_extra_state` objects of the parameters that this rank writes.
  for (const auto& set : training_.model().parameter_sets()) {
    const std::size_t s = index_of(sets_, set->name);
    const ShardCoordinates& coordinates = set->parameters.coordinates();
    for (const Parameters::Entry& entry : set->parameters.entries()) {
      const bool first_of_tp = (entry.spec.expert ? coordinates.expt_tp : coordinates.tp) == 0;
      const std::size_t param = index_of(sets_[s].specs, entry.spec.name);
      if (first_of_tp && writers_.writer(s, param, world_.rank()) == world_.rank())
        for (std::string& key : extra_state_keys(entry.spec, coordinates, sets_[s].rule))
          objects.emplace_back(std::move(key), pickle_none());
    }
  }
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
  std::optional<std::int64_t> named;
  try {
    named = read_tracker(config_.save);
  } catch (const DataError&) {  // it cannot be read
  }
  if (named != iteration) name_as_latest(config_.save, iteration);
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

void CheckpointSaver::save(const CommonState& common, std::int64_t seed) {
  const auto start = Clock::now();
  const bool waits = job_ && !job_->done();
  wait_for_all("is still being written");
  if (waits && world_.rank() == publisher_)
    say_(fmt::format("waited {:.1f} s for the previous save",
                     std::chrono::duration<double>(Clock::now() - start).count()));
  start_ = Clock::now();
  if (lock_) {
    lock_->check();
    remove_old();
    begin_iteration(config_.save, common.position.iteration);
  }
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
  const auto saved = job->result();
  if (!saved) return;
  // From when training stopped for the save until it is on disk or, if synchronous, until training continues.
  const auto end = config_.async ? saved->at : Clock::now();
  const double seconds = std::chrono::duration<double>(end - start_).count();
  const auto bytes = static_cast<double>(saved->bytes);
  say_(fmt::format("saved iteration {} to {}: {} in {:.1f} s ({}/s){}", job->iteration(), config_.save,
                   readable_bytes(bytes), seconds, readable_bytes(bytes / seconds),
                   saved->note.empty() ? "" : "; but " + saved->note));
}

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
