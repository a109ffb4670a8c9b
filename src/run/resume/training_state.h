// The tensors that make up the state of a training run, as a checkpoint stores them: views of the live tensors, each
// with its key and its box in the stored tensor.
#pragma once

#include <vector>

#include "ckpt/save_job.h"
#include "run/resume/stored_sets.h"
#include "train/training.h"

namespace braid {

struct StateTensor : KeyedTensor {
  bool written_here = false;  // this rank writes the box, which others may also hold
};

// This rank's parameters of these sets. `writers` decides which rank writes a parameter that several hold; null when
// only loading.
std::vector<StateTensor> model_state(const MimoModel& model, const std::vector<StoredSet>& sets,
                                     const ShardWriters* writers);

// The keys of Megatron's `_extra_state` objects that this rank writes for its parameters.
std::vector<std::string> own_extra_states(const MimoModel& model, const std::vector<StoredSet>& sets,
                                          const ShardWriters& writers);

// How optimizer state is stored. FullyReshardable stores it parameter by parameter, so that any layout can load it.
// ByBucket stores the buffers as they are in memory, for the same split of the model (dp may change).
enum class OptimizerFormat { FullyReshardable, ByBucket };

// Main parameters and both moments of the parameters that this rank updates.
std::vector<StateTensor> optimizer_state(const Training& training, const std::vector<StoredSet>& sets,
                                         const ShardWriters* writers, OptimizerFormat format);

}  // namespace braid
