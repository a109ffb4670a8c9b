#include "ckpt/tensor_io.h"
#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include "base/strings.h"

namespace braid {
namespace {

struct RowsAndColumns {
  std::int64_t rows, columns;
};

RowsAndColumns rows_and_columns(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape)
    BRAID_CHECK(!__builtin_mul_overflow(elements, size, &elements), "the shape {}", shape_text(shape));
  const std::int64_t columns = shape.size() > 1 ? shape.back() : 1;
  return {columns == 0 ? 0 : elements / columns, columns};
}

bool holds_weights(StoredDtype dtype) {
  return dtype == StoredDtype::F64 || dtype == StoredDtype::F32 || dtype == StoredDtype::F16 ||
         dtype == StoredDtype::BF16;
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
  std::ranges::sort(copies, {}, &RowCopy::param_row);
  std::int64_t covered = 0;
  for (const RowCopy& copy : copies) {
    BRAID_CHECK_EQ(copy.param_row, covered, "rows of {}", spec.name);
    covered += copy.rows;
  }
  BRAID_CHECK_EQ(covered, rows_and_columns(spec.shape).rows, "rows of {}", spec.name);
}

// A tensor of a source that check_tensors() has accepted.
const StoredTensor& stored(const ForeignTensor& tensor, const SafetensorsReader& source) {
  const StoredTensor* found = source.find(tensor.name);
  BRAID_CHECK(found && found->shape == tensor.shape, "{} was not checked against {}", tensor.name, source.path());
  return *found;
}

// libtorch's dtypes in the order of StoredDtype.
constexpr std::array kScalarTypes = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                     at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};

// Rows of a stored tensor; a view of the mapped file if its alignment allows.
at::Tensor stored_rows(const StoredTensor& stored, std::int64_t begin, std::int64_t rows) {
  const std::int64_t columns = rows_and_columns(stored.shape).columns;
  const std::int64_t row_bytes = columns * bytes_of(stored.dtype);
  const std::byte* data = stored.data.data() + begin * row_bytes;
  const at::ScalarType dtype = scalar_type(stored.dtype);
  if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes_of(stored.dtype)) == 0)
    return at::from_blob(const_cast<std::byte*>(data), {rows, columns}, dtype);
  at::Tensor aligned = at::empty({rows, columns}, dtype);
  std::memcpy(aligned.data_ptr(), data, static_cast<std::size_t>(rows * row_bytes));
  return aligned;
}

}  // namespace

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
    return std::ranges::any_of(ignorable, [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
  for (const StoredTensor& tensor : source.tensors())
    if (!expected.count(tensor.name) && !may_stay(tensor.name))
      problems.add(
          fmt::format("tensor {} of shape {} is not in the model", in_quotes(tensor.name), shape_text(tensor.shape)),
          tensor.file, fix);
  problems.throw_if_any();
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

void load_shard(const ParamSpec& spec, const ShardCoordinates& coordinates, const SafetensorsReader& source,
                const std::vector<ForeignTensor>& tensors, at::Tensor& local) {
  BRAID_CHECK(local.sizes().vec() == local_shape(spec, coordinates) && local.is_contiguous(), "the shard of {}",
              spec.name);
  const at::NoGradGuard no_grad;
  const auto [local_rows, local_columns] = rows_and_columns(local.sizes().vec());
  at::Tensor rows = local.view({local_rows, local_columns});
  std::int64_t filled = 0;
  for (const Box& box : shard_boxes(spec, coordinates))
    for (const RowRun& run : row_runs(box, spec.shape, local.sizes().vec()))
      for (const ForeignTensor& tensor : tensors)
        for (const RowCopy& copy : tensor.rows) {
          const std::int64_t begin = std::max(run.global_row, copy.param_row);
          const std::int64_t count = std::min(run.global_row + run.rows, copy.param_row + copy.rows) - begin;
          if (count <= 0) continue;
          const std::int64_t first = copy.foreign_row + begin - copy.param_row;
          rows.narrow(0, run.local_row + begin - run.global_row, count)
              .narrow(1, run.local_column, run.columns)
              .copy_(stored_rows(stored(tensor, source), first, count).narrow(1, run.global_column, run.columns));
          filled += count * run.columns;
        }
  BRAID_CHECK_EQ(filled, local.numel(), "elements loaded into {}", spec.name);
}

at::Tensor foreign_tensor(const ForeignTensor& tensor, const at::Tensor& full_parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor foreign = at::empty(tensor.shape, full_parameter.options());
  const auto [rows, columns] = rows_and_columns(tensor.shape);
  at::Tensor to = foreign.view({rows, columns});
  const at::Tensor from = full_parameter.reshape({-1, columns});
  for (const RowCopy& copy : tensor.rows)
    to.narrow(0, copy.foreign_row, copy.rows).copy_(from.narrow(0, copy.param_row, copy.rows));
  return foreign;
}

at::Tensor read_tensor(const StoredTensor& stored) {
  const std::int64_t rows = rows_and_columns(stored.shape).rows;
  return stored_rows(stored, 0, rows).clone().view(stored.shape);
}

void write_tensor(SafetensorsWriter& writer, const std::string& name, const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  writer.write(name, {static_cast<const std::byte*>(host.data_ptr()), host.nbytes()});
}

StoredDtype stored_dtype(at::ScalarType dtype) {
  const auto found = std::ranges::find(kScalarTypes, dtype);
  BRAID_CHECK(found != kScalarTypes.end(), "tensors of {} cannot be stored", at::toString(dtype));
  return static_cast<StoredDtype>(found - kScalarTypes.begin());
}

at::ScalarType scalar_type(StoredDtype dtype) { return kScalarTypes[static_cast<std::size_t>(dtype)]; }

at::ScalarType scalar_type(const std::string& name) {
  if (name == "float64") return at::kDouble;
  return name == "float32" ? at::kFloat : at::kBFloat16;
}

}  // namespace braid
