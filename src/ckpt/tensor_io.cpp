#include "ckpt/tensor_io.h"

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace braid {
namespace {

constexpr std::pair<StoredDtype, at::ScalarType> kDtypes[] = {
    {StoredDtype::F64, at::kDouble},    {StoredDtype::F32, at::kFloat}, {StoredDtype::F16, at::kHalf},
    {StoredDtype::BF16, at::kBFloat16}, {StoredDtype::I64, at::kLong},  {StoredDtype::I32, at::kInt},
    {StoredDtype::I16, at::kShort},     {StoredDtype::I8, at::kChar},   {StoredDtype::U8, at::kByte},
    {StoredDtype::Bool, at::kBool}};

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

// row_runs() ends a run at every step of an outer dimension, even if the next run is adjacent.
std::vector<RowRun> joined_runs(const ParamSpec& spec, const ShardCoordinates& coordinates) {
  std::vector<RowRun> joined;
  const std::vector<std::int64_t> shape = local_shape(spec, coordinates);
  for (const Box& box : shard_boxes(spec, coordinates))
    for (const RowRun& run : row_runs(box, spec.shape, shape)) {
      RowRun* last = joined.empty() ? nullptr : &joined.back();
      if (last && last->global_row + last->rows == run.global_row && last->local_row + last->rows == run.local_row &&
          last->global_column == run.global_column && last->local_column == run.local_column &&
          last->columns == run.columns)
        last->rows += run.rows;
      else
        joined.push_back(run);
    }
  return joined;
}

}  // namespace

void load_shard(const ParamSpec& spec, const ShardCoordinates& coordinates, const SafetensorsReader& source,
                const std::vector<ForeignTensor>& tensors, at::Tensor& local) {
  BRAID_CHECK(local.sizes().vec() == local_shape(spec, coordinates) && local.is_contiguous(), "the shard of {}",
              spec.name);
  const at::NoGradGuard no_grad;
  const auto [local_rows, local_columns] = rows_and_columns(local.sizes().vec());
  at::Tensor rows = local.view({local_rows, local_columns});
  std::int64_t filled = 0;
  for (const RowRun& run : joined_runs(spec, coordinates))
    for (const ForeignTensor& tensor : tensors) {
      const StoredTensor& from = stored(tensor, source);
      for (const RowCopy& copy : tensor.rows) {
        const std::int64_t begin = std::max(run.global_row, copy.param_row);
        const std::int64_t count = std::min(run.global_row + run.rows, copy.param_row + copy.rows) - begin;
        if (count <= 0) continue;
        const at::Tensor read = stored_rows(from, copy.foreign_row + begin - copy.param_row, count);
        rows.narrow(0, run.local_row + begin - run.global_row, count)
            .narrow(1, run.local_column, run.columns)
            .copy_(read.narrow(1, run.global_column, run.columns));
        filled += count * run.columns;
      }
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
  for (const auto& [stored, scalar] : kDtypes)
    if (scalar == dtype) return stored;
  throw_check_failed(__FILE__, __LINE__, fmt::format("tensors of {} cannot be stored", at::toString(dtype)));
}

at::ScalarType scalar_type(StoredDtype dtype) {
  for (const auto& [stored, scalar] : kDtypes)
    if (stored == dtype) return scalar;
  throw_check_failed(__FILE__, __LINE__, "an invalid dtype");
}

}  // namespace braid
