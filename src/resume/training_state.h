// The tensors that make up the state of a training run, as a checkpoint has them: views of the live ones, each with the
// key it is kept under and the box of the stored tensor that it is.
#pragma once

#include <vector>

#include "ckpt/save_job.h"
#include "resume/stored_sets.h"
#include "train/training.h"

namespace braid {

struct StateTensor : KeyedTensor {
  bool written_here = false;  // of all ranks that have the box, this one saves it
};

// This rank's parameters of these sets. Of those that several ranks hold, `writers` says which saves them; null: to
// load only.
std::vector<StateTensor> model_state(const MimoModel& model, const std::vector<StoredSet>& sets,
                                     const ShardWriters* writers);

// The keys of Megatron's `_extra_state` objects that this rank writes for its parameters.
std::vector<std::string> own_extra_states(const MimoModel& model, const std::vector<StoredSet>& sets,
                                          const ShardWriters& writers);

// How optimizers are kept. Fully reshardable: parameter by parameter, so that any layout can load it. By bucket: as the
// buffers lie in memory, for the same split of the model (dp may change).
enum class OptimizerFormat { FullyReshardable, ByBucket };

// Main parameters and both moments of what this rank updates.
std::vector<StateTensor> optimizer_state(const Training& training, const std::vector<StoredSet>& sets,
                                         const ShardWriters* writers, OptimizerFormat format);

// "float64", "float32" or "bfloat16", as recipes have it.
at::ScalarType dtype_named(const std::string& name);

}  // namespace braid
