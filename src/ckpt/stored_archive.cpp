#include "ckpt/stored_archive.h"

#include <optional>
#include <span>

#include "base/error.h"
#include "base/strings.h"
#include "plan/param_spec.h"

namespace braid {
namespace {

// Strides of dimensions with at most one element are irrelevant.
bool is_contiguous(const PickledTensor& tensor) {
  if (tensor.strides.size() != tensor.shape.size()) return false;
  if (num_elements(tensor.shape) == 0) return true;
  const std::vector<std::int64_t> wanted = contiguous_strides(tensor.shape);
  for (std::size_t dim = 0; dim < wanted.size(); ++dim)
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != wanted[dim]) return false;
  return true;
}

}  // namespace

ArchiveSource source_of(CheckedFile& file, const FileRange& part, const std::string& key) {
  return {.name = fmt::format("{} ({} at byte {})", file.path(), in_quotes(key), part.offset),
          .size = part.length,
          .read = [&file, begin = part.offset](std::int64_t offset, std::span<std::byte> to) {
            file.read(begin + offset, to);
          }};
}

std::int64_t data_offset(const ArchiveSource& source, StoredDtype dtype, const std::vector<std::int64_t>& size) {
  ArchiveReader archive(source);
  const PickleValue value = archive.value();
  const std::optional<PickledTensor> tensor = as_tensor(value);
  if (!tensor) throw DataError(fmt::format("{} is not a plain tensor: {}", source.name, to_text(value, 200)));
  if (tensor->dtype != dtype || tensor->shape != size)
    throw DataError(fmt::format("{} is {} of shape {}, but the index says {} of shape {}", source.name,
                                name_of(tensor->dtype), shape_text(tensor->shape), name_of(dtype), shape_text(size)));
  if (!is_contiguous(*tensor))
    throw DataError(fmt::format("{} has strides {}, but only contiguous tensors can be read", source.name,
                                shape_text(tensor->strides)));
  const ArchiveReader::Record record = archive.record("data/" + tensor->storage);
  const std::int64_t stored = record.size / bytes_of(dtype);
  if (record.size % bytes_of(dtype) != 0 || stored != tensor->storage_elements || tensor->storage_offset < 0 ||
      tensor->storage_offset > stored || num_elements(size) > stored - tensor->storage_offset)
    throw DataError(fmt::format("{}: {} bytes of data do not hold {} {} at {}", source.name, record.size,
                                num_elements(size), name_of(dtype), tensor->storage_offset));
  return record.offset + tensor->storage_offset * bytes_of(dtype);
}

PickleValue object_in(const ArchiveSource& source, const std::string& key) {
  const PickleValue value = ArchiveReader(source).value();
  if (!is_sharded_object(key)) return value;
  const PickleList* list = as<PickleList>(value);
  if (!list || list->items.size() != 1)
    throw DataError(fmt::format("{}: the object is not stored as a list of one element", source.name));
  return list->items[0];
}

}  // namespace braid
