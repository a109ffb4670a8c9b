#include "run/resume/training_state.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "comm/world.h"

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

bool is_sharded(const ModuleOptimizer& optimizer) { return optimizer.parts().front()->gradients().sharded(); }

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

// The index of this rank's data-parallel group among those of its module.
int model_part(const Module& module, int rank, bool expert) {
  const int pp = module.dense.coord(rank, "pp");
  const ShardCoordinates coordinates = shard_coordinates(module, rank);
  return expert ? coordinates.expt_tp + coordinates.expt_tp_size * (coordinates.ep + coordinates.ep_size * pp)
                : coordinates.tp + coordinates.tp_size * pp;
}

void add_by_bucket(const Training::Trained& trained, const StoredSet& set, const Module& module, int rank,
                   std::vector<StateTensor>& tensors) {
  const auto& parts = trained.optimizer->parts();
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const GradientBuffer& buffer = parts[p]->gradients();
    const Parameters::Entry& first = buffer.entry(buffer.layout().slots.front());
    const std::string chained = parts.size() > 1 ? fmt::format("chained_{}.", p) : "";
    const std::string where = fmt::format(
        "{}{}optimizer.distributed.dp_group_idx_{}.gbuf_idx_{}.dtype_(torch.{}, torch.{})", set.branch, chained,
        model_part(module, rank, first.spec.expert), set.name.ends_with(".projector") ? 1 : 0,
        python_name(first.value.scalar_type()), python_name(buffer.tensor_options().dtype().toScalarType()));
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

std::vector<std::string> own_extra_states(const MimoModel& model, const std::vector<StoredSet>& sets,
                                          const ShardWriters& writers) {
  std::vector<std::string> keys;
  const int rank = model.world().rank();
  for (const auto& set : model.parameter_sets()) {
    const std::size_t s = index_of(sets, set->name);
    const ShardCoordinates& coordinates = set->parameters.coordinates();
    for (const Parameters::Entry& entry : set->parameters.entries()) {
      const bool first_of_tp = (entry.spec.expert ? coordinates.expt_tp : coordinates.tp) == 0;
      if (!first_of_tp || writers.writer(s, index_of(sets[s].specs, entry.spec.name), rank) != rank) continue;
      for (std::string& key : extra_state_keys(entry.spec, coordinates, sets[s].rule)) keys.push_back(std::move(key));
    }
  }
  return keys;
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
      if (is_sharded(*trained.optimizer)) return first_replica;  // each range is on exactly one rank of the replicas
      return writers && writers->writer(s, index_of(sets[s].specs, spec.name), rank) == rank;
    };
    add_by_parameter(trained, sets[s], writes, tensors);
  }
  return tensors;
}

}  // namespace braid
