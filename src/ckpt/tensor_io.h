// Converts between stored tensors and libtorch's. No libtorch here.
//
// How the tensors of a foreign file form our parameters is data: each tensor is some rows of one parameter. One list
// serves loading, exporting and the check that a file matches the model before anything is read from it.
#pragma once

#include "formats/safetensors.h"
#include "plan/param_spec.h"

namespace at {
class Tensor;
}
namespace c10 {
enum class ScalarType : std::int8_t;
}

namespace braid {

// Rows are numbered over all dimensions but the last, as in plan/param_spec.h.
struct RowCopy {
  std::int64_t foreign_row, param_row, rows;
};

struct ForeignTensor {
  std::string name{};
  std::vector<std::int64_t> shape{};
  std::string param{};
  std::vector<RowCopy> rows{};
  bool whole_numbers = false;  // integers rather than weights
};

// A foreign tensor that is a whole parameter.
ForeignTensor whole_parameter(std::string name, std::vector<std::int64_t> shape, std::string param);

using TensorsOfParam = std::map<std::string, std::vector<ForeignTensor>>;
TensorsOfParam by_param(const std::vector<ForeignTensor>& tensors);

// One ConfigError lists tensors that are only in the source or only in the list, and those of the wrong shape or dtype.
// Names that begin with one of `ignorable` may be in the source.
void check_tensors(const std::vector<ForeignTensor>& tensors, const SafetensorsReader& source,
                   const std::vector<std::string>& ignorable);

// Checks our own invariant: the list covers every row of every parameter once.
void check_cover(const std::vector<ForeignTensor>& tensors, const std::vector<ParamSpec>& specs);

// If a parameter is to keep its bytes, its tensors must share a dtype; ConfigError with all that do not.
void check_dtypes(const TensorsOfParam& tensors, const SafetensorsReader& source);

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
c10::ScalarType scalar_type(const std::string& name);  // float64, float32 or bfloat16, as in recipes

}  // namespace braid
