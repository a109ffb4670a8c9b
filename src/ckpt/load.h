// Stored tensors in and out of libtorch's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ckpt/foreign_tensors.h"
#include "plan/param_spec.h"

namespace at {
class Tensor;
}

namespace braid {

// Fills a rank's shard of a parameter, in its own dtype and on its own device, reading only the rows and columns it
// holds. `tensors` are those of this parameter, checked against the source.
void load_shard(const ParamSpec& spec, const ShardPlace& place, const SafetensorsReader& source,
                const std::vector<ForeignTensor>& tensors, at::Tensor& local);

// The other way: the foreign tensor that a whole parameter, or its gradient, has in it.
at::Tensor foreign_tensor(const ForeignTensor& tensor, const at::Tensor& full_parameter);

// A copy of a stored tensor, and a file of tensors.
at::Tensor read_tensor(const StoredTensor& stored);
void write_tensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace braid
