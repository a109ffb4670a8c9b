// Converts between stored tensors and libtorch's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/foreign_tensors.h"
#include "plan/param_spec.h"

namespace at {
class Tensor;
}
namespace c10 {
enum class ScalarType : std::int8_t;
}

namespace braid {

// Fills a rank's shard of a parameter, in its own dtype and on its own device, reading only the rows and columns it
// holds. `tensors` are those of this parameter, checked against the source.
void load_shard(const ParamSpec& spec, const ShardCoordinates& coordinates, const SafetensorsReader& source,
                const std::vector<ForeignTensor>& tensors, at::Tensor& local);

// The reverse: extracts a foreign tensor from a whole parameter or from its gradient.
at::Tensor foreign_tensor(const ForeignTensor& tensor, const at::Tensor& full_parameter);

// A copy of a stored tensor; and a copy into a file being written, in which it is declared with its shape and dtype.
at::Tensor read_tensor(const StoredTensor& stored);
void write_tensor(SafetensorsWriter& writer, const std::string& name, const at::Tensor& tensor);
StoredDtype stored_dtype(c10::ScalarType dtype);
c10::ScalarType scalar_type(StoredDtype dtype);

}  // namespace braid
