// One iteration of a checkpoint in Megatron's torch_dist layout: a folder with an index (`.metadata`), tensors and
// objects in `.distcp` files, and the common state (`common.pt`). Files come from elsewhere; whatever is wrong with
// them is a DataError that names the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checked_file.h"
#include "ckpt/dist_metadata.h"
#include "ckpt/pickle.h"

namespace at {
class Tensor;
}

namespace braid {

// Reads parts of tensors in any layout, only the bytes that are asked for.
class DistCheckpoint {
 public:
  // Reads metadata.json, the index and the checksums where there are any, and checks that every file is there with its
  // size. metadata.json may be absent, as torch.distributed.checkpoint writes none.
  explicit DistCheckpoint(std::string folder);

  const std::string& folder() const { return folder_; }
  const DistMetadata& metadata() const { return metadata_; }
  bool has_checksums() const { return checksums_.has_value(); }
  bool has_common() const;
  PickleValue common() const;  // of common.pt

  // Fills `to` with the box of its shape that begins at `begin` in the stored tensor, in the dtype and on the device
  // of `to`, which may be any view.
  void read(const std::string& key, const std::vector<std::int64_t>& begin, at::Tensor to);
  PickleValue read_object(const std::string& key);

  std::int64_t bytes_read() const { return bytes_read_; }

  // Reads every file that has not been read as a whole yet, for its checksums.
  void check_rest();

 private:
  struct Archive {  // a tensor in a file
    std::int64_t data_offset = 0;
  };
  CheckedFile& file(const std::string& name);
  const Archive& archive(const DistTensor& tensor, const StoredChunk& chunk, const std::string& key);

  std::string folder_;
  DistMetadata metadata_;
  std::optional<Checksums> checksums_;
  std::map<std::string, std::unique_ptr<CheckedFile>> files_;
  std::map<std::pair<std::string, std::int64_t>, Archive> archives_;  // by file and offset
  std::int64_t bytes_read_ = 0;
};

// What one writer puts into a checkpoint: the file `__<writer>_0.distcp`, and what the index and the checksums have to
// say of it.
class DistWriter {
 public:
  DistWriter(const std::string& folder, int writer);
  ~DistWriter();

  void add_object(const std::string& key, const PickleValue& value);  // objects before tensors, as Megatron has them
  // A box of the tensor `key` of shape `shape`; `data` is on the CPU and contiguous.
  void add_tensor(const std::string& key, const std::vector<std::int64_t>& shape,
                  const std::vector<std::int64_t>& begin, const at::Tensor& data);
  std::int64_t bytes_written() const;

  // Brings the file to disk. A writer that had nothing to write leaves no file.
  void finish();
  const DistMetadata& metadata() const { return metadata_; }
  const Checksums& checksums() const { return checksums_; }

 private:
  class File;
  std::unique_ptr<File> file_;
  std::string file_name_;
  DistMetadata metadata_;
  Checksums checksums_;
};

// torch.save of a value without tensors, and torch.load of one; tensors in it are left as objects.
std::string write_archive(const PickleValue& value);
PickleValue read_archive(std::string_view bytes, const std::string& file);

}  // namespace braid
