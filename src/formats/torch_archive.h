// The archives of torch.save: uncompressed zip files with a pickle and the bytes of its tensors' storages.
#pragma once

#include "formats/pickle.h"
#include "formats/safetensors.h"

namespace braid {

// The source of an archive. Exceptions of `read` reach the caller unchanged.
struct ArchiveSource {
  std::string name{};  // for messages
  std::int64_t size = 0;
  std::function<void(std::int64_t offset, std::span<std::byte> to)> read{};
};

// DataError that names the source for anything that is not an archive as torch writes it.
class ArchiveReader {
 public:
  explicit ArchiveReader(ArchiveSource source);

  PickleValue value() const;  // of the pickle, which may contain the names that Megatron stores

  struct Record {
    std::int64_t offset = 0, size = 0;  // in the source
  };
  Record record(const std::string& name) const;

 private:
  struct Place {
    std::uint64_t header, size;  // as the directory claims
  };
  ArchiveSource source_;
  std::map<std::string, Place> records_;  // by name, without the archive's own folder
};

// A tensor in a pickle.
struct PickledTensor {
  StoredDtype dtype{};
  std::vector<std::int64_t> shape{}, strides{};
  std::string storage{};  // the record data/<storage>
  std::int64_t storage_elements = 0, storage_offset = 0;
};
std::optional<PickledTensor> as_tensor(const PickleValue& value);
PickleValue pickle_tensor(const PickledTensor& tensor);

// `storage`: the bytes of the tensor that `value` describes; they become the record data/0. Exceptions of `sink` reach
// the caller unchanged.
using ArchiveSink = std::function<void(std::span<const std::byte> bytes)>;
void write_archive(const PickleValue& value, std::optional<std::span<const std::byte>> storage,
                   const ArchiveSink& sink);

// torch.save of a value without tensors, and torch.load; tensors stay inert objects.
std::string write_archive(const PickleValue& value);
PickleValue read_archive(std::string_view bytes, const std::string& file);

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape);

}  // namespace braid
