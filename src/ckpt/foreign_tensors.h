// How the tensors of a foreign file form our parameters, as data: each tensor is some rows of one parameter. One list
// serves loading, exporting and the check that a file matches the model before anything is read from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "plan/param_spec.h"

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

struct RowsAndColumns {
  std::int64_t rows, columns;
};
RowsAndColumns rows_and_columns(const std::vector<std::int64_t>& shape);

// A foreign tensor that is a whole parameter.
ForeignTensor whole_parameter(std::string name, std::vector<std::int64_t> shape, std::string param);

using TensorsOfParam = std::map<std::string, std::vector<ForeignTensor>>;
TensorsOfParam by_param(const std::vector<ForeignTensor>& tensors);

// One ConfigError lists tensors that are only in the source or only in the list, and those of the wrong shape or dtype.
// Names that begin with one of `ignorable` may be in the source.
void check_tensors(const std::vector<ForeignTensor>& tensors, const SafetensorsReader& source,
                   const std::vector<std::string>& ignorable);

// A tensor of a source that check_tensors() has accepted.
const StoredTensor& stored(const ForeignTensor& tensor, const SafetensorsReader& source);

// Checks our own invariant: the list covers every row of every parameter once.
void check_cover(const std::vector<ForeignTensor>& tensors, const std::vector<ParamSpec>& specs);

// If a parameter is to keep its bytes, its tensors must share a dtype; ConfigError with all that do not.
void check_dtypes(const TensorsOfParam& tensors, const SafetensorsReader& source);

// A whole parameter assembled from the source, and a foreign tensor extracted from a whole parameter, byte for byte.
std::vector<std::byte> parameter_bytes(const std::vector<ForeignTensor>& tensors, const SafetensorsReader& source);
std::vector<std::byte> foreign_bytes(const ForeignTensor& tensor, const StoredTensor& parameter);

}  // namespace braid
