// How the tensors of a foreign file make up our parameters, as data: each is some rows of one parameter. One list
// serves loading, exporting and the check that a file fits the model before anything is read from it.
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
  bool whole_numbers = false;  // indices rather than weights
};

struct RowsAndColumns {
  std::int64_t rows, columns;
};
RowsAndColumns rows_and_columns(const std::vector<std::int64_t>& shape);

// A foreign tensor that is all of a parameter.
ForeignTensor whole_parameter(std::string name, std::vector<std::int64_t> shape, std::string param);

using TensorsOfParam = std::map<std::string, std::vector<ForeignTensor>>;
TensorsOfParam by_param(const std::vector<ForeignTensor>& tensors);

// Every tensor of the source that the list lacks, and the other way round, and those of another shape or kind, in one
// ConfigError. Names that begin with one of `ignorable` may be in the source.
void check_tensors(const std::vector<ForeignTensor>& tensors, const SafetensorsReader& source,
                   const std::vector<std::string>& ignorable);

// The tensor in a source that check_tensors() has passed.
const StoredTensor& stored(const ForeignTensor& tensor, const SafetensorsReader& source);

// Our own promise: the list gives every row of every parameter once.
void check_cover(const std::vector<ForeignTensor>& tensors, const std::vector<ParamSpec>& specs);

// The tensors of one parameter must share a dtype where it is to keep its bytes; ConfigError for all that do not.
void check_dtypes(const TensorsOfParam& tensors, const SafetensorsReader& source);

// A whole parameter put together from the source, and a foreign tensor taken out of a whole parameter, byte for byte.
std::vector<std::byte> parameter_bytes(const std::vector<ForeignTensor>& tensors, const SafetensorsReader& source);
std::vector<std::byte> foreign_bytes(const ForeignTensor& tensor, const StoredTensor& parameter);

}  // namespace braid
