#include "ckpt/foreign_tensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

bool holds_weights(StoredDtype dtype) {
  return dtype == StoredDtype::F64 || dtype == StoredDtype::F32 || dtype == StoredDtype::F16 ||
         dtype == StoredDtype::BF16;
}

std::int64_t row_bytes(const ForeignTensor& tensor, StoredDtype dtype) {
  return rows_and_columns(tensor.shape).columns * bytes_of(dtype);
}

void check_rows(const ParamSpec& spec, const std::vector<ForeignTensor>& tensors) {
  std::vector<RowCopy> copies;
  for (const ForeignTensor& tensor : tensors) {
    const auto [rows, columns] = rows_and_columns(tensor.shape);
    BRAID_CHECK_EQ(columns, rows_and_columns(spec.shape).columns, "columns of {} in {}", tensor.name, spec.name);
    std::int64_t copied = 0;
    for (const RowCopy& copy : tensor.rows) {
      BRAID_CHECK(copy.foreign_row >= 0 && copy.foreign_row + copy.rows <= rows, "rows of {}", tensor.name);
      copied += copy.rows;
    }
    BRAID_CHECK_EQ(copied, rows, "rows of {}", tensor.name);
    copies.insert(copies.end(), tensor.rows.begin(), tensor.rows.end());
  }
  std::sort(copies.begin(), copies.end(), [](const RowCopy& a, const RowCopy& b) { return a.param_row < b.param_row; });
  std::int64_t covered = 0;
  for (const RowCopy& copy : copies) {
    BRAID_CHECK_EQ(copy.param_row, covered, "rows of {}", spec.name);
    covered += copy.rows;
  }
  BRAID_CHECK_EQ(covered, rows_and_columns(spec.shape).rows, "rows of {}", spec.name);
}

}  // namespace

RowsAndColumns rows_and_columns(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape)
    BRAID_CHECK(!__builtin_mul_overflow(elements, size, &elements), "the shape {}", shape_text(shape));
  const std::int64_t columns = shape.size() > 1 ? shape.back() : 1;
  return {columns == 0 ? 0 : elements / columns, columns};
}

ForeignTensor whole_parameter(std::string name, std::vector<std::int64_t> shape, std::string param) {
  const std::int64_t rows = rows_and_columns(shape).rows;
  return {.name = std::move(name), .shape = std::move(shape), .param = std::move(param), .rows = {{0, 0, rows}}};
}

TensorsOfParam by_param(const std::vector<ForeignTensor>& tensors) {
  TensorsOfParam grouped;
  for (const ForeignTensor& tensor : tensors) grouped[tensor.param].push_back(tensor);
  return grouped;
}

void check_tensors(const std::vector<ForeignTensor>& tensors, const SafetensorsReader& source,
                   const std::vector<std::string>& ignorable) {
  const char* const fix = "config.json and weights must belong to the same model";
  ProblemList problems;
  std::set<std::string> expected;
  for (const ForeignTensor& tensor : tensors) {
    expected.insert(tensor.name);
    const StoredTensor* found = source.find(tensor.name);
    if (!found)
      problems.add(fmt::format("tensor {} is missing, of shape {}", in_quotes(tensor.name), shape_text(tensor.shape)),
                   source.path(), fix);
    else if (found->shape != tensor.shape)
      problems.add(fmt::format("tensor {} has shape {}, but the configuration needs {}", in_quotes(tensor.name),
                               shape_text(found->shape), shape_text(tensor.shape)),
                   found->file, fix);
    else if (tensor.whole_numbers == holds_weights(found->dtype))
      problems.add(fmt::format("tensor {} has dtype {}, which is not a dtype of {}", in_quotes(tensor.name),
                               name_of(found->dtype), tensor.whole_numbers ? "integers" : "weights"),
                   found->file, "quantised weights are not supported: use F32, BF16 or F16");
  }
  const auto may_stay = [&](const std::string& name) {
    return std::any_of(ignorable.begin(), ignorable.end(),
                       [&](const auto& prefix) { return name.starts_with(prefix); });
  };
  for (const StoredTensor& tensor : source.tensors())
    if (!expected.count(tensor.name) && !may_stay(tensor.name))
      problems.add(
          fmt::format("tensor {} of shape {} is not in the model", in_quotes(tensor.name), shape_text(tensor.shape)),
          tensor.file, fix);
  problems.throw_if_any();
}

const StoredTensor& stored(const ForeignTensor& tensor, const SafetensorsReader& source) {
  const StoredTensor* found = source.find(tensor.name);
  BRAID_CHECK(found && found->shape == tensor.shape, "{} was not checked against {}", tensor.name, source.path());
  return *found;
}

void check_cover(const std::vector<ForeignTensor>& tensors, const std::vector<ParamSpec>& specs) {
  const TensorsOfParam grouped = by_param(tensors);
  for (const ParamSpec& spec : specs) {
    const auto found = grouped.find(spec.name);
    BRAID_CHECK(found != grouped.end(), "no foreign tensor for {}", spec.name);
    check_rows(spec, found->second);
  }
}

void check_dtypes(const TensorsOfParam& tensors, const SafetensorsReader& source) {
  ProblemList problems;
  for (const auto& [param, parts] : tensors) {
    const StoredTensor& first = stored(parts.at(0), source);
    for (const ForeignTensor& part : parts)
      if (const StoredTensor& other = stored(part, source); other.dtype != first.dtype)
        problems.add(
            fmt::format("tensor {} has dtype {}, but {} has {}, and both belong to one parameter",
                        in_quotes(other.name), name_of(other.dtype), in_quotes(first.name), name_of(first.dtype)),
            other.file, "store both in the same dtype");
  }
  problems.throw_if_any();
}

std::vector<std::byte> parameter_bytes(const std::vector<ForeignTensor>& tensors, const SafetensorsReader& source) {
  std::size_t bytes = 0;
  for (const ForeignTensor& tensor : tensors) bytes += stored(tensor, source).data.size();
  std::vector<std::byte> parameter(bytes);
  for (const ForeignTensor& tensor : tensors) {
    const StoredTensor& from = stored(tensor, source);
    const std::int64_t row = row_bytes(tensor, from.dtype);
    for (const RowCopy& copy : tensor.rows)
      std::memcpy(parameter.data() + copy.param_row * row, from.data.data() + copy.foreign_row * row,
                  static_cast<std::size_t>(copy.rows * row));
  }
  return parameter;
}

std::vector<std::byte> foreign_bytes(const ForeignTensor& tensor, const StoredTensor& parameter) {
  const std::int64_t row = row_bytes(tensor, parameter.dtype);
  std::vector<std::byte> foreign(static_cast<std::size_t>(rows_and_columns(tensor.shape).rows * row));
  for (const RowCopy& copy : tensor.rows)
    std::memcpy(foreign.data() + copy.foreign_row * row, parameter.data.data() + copy.param_row * row,
                static_cast<std::size_t>(copy.rows * row));
  return foreign;
}

}  // namespace braid
