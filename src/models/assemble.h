// Assembles whole tensors on global rank 0 from the shards of all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nn/parameters.h"
#include "plan/topology.h"

namespace braid {

class Group;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using TakeTensor = std::function<void(const std::string& name, const at::Tensor& tensor)>;

// A rank's shard of a tensor; no boxes: nothing.
using BoxesOf = std::function<std::vector<Box>(int global_rank)>;

// Adds every rank's `local` into a tensor of `shape` on rank 0, at the rank's boxes; undefined on other ranks. Boxes
// that several ranks hold are summed. Collective over `everyone`.
at::Tensor assemble(const at::Tensor& local, const std::vector<std::int64_t>& shape, const BoxesOf& boxes_of,
                    const Group& everyone, const at::TensorOptions& options);

// Passes every trainable parameter's gradient, summed over the ranks that hold it, to `take` on rank 0, one at a time
// in the order of `specs`, since all of them together may not fit in memory.
void assemble_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters, const Module& module,
                        const Group& everyone, const at::TensorOptions& options, const TakeTensor& take);
// All gradients at once; empty on other ranks than 0.
NamedTensors assemble_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters, const Module& module,
                                const Group& everyone, const at::TensorOptions& options);

}  // namespace braid
