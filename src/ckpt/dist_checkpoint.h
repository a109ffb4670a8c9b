// One iteration of a checkpoint in Megatron's torch_dist layout: a folder with an index (`.metadata`), tensors and
// objects in `.distcp` files, and the common state (`common.pt`). The reader does not trust files: any defect is a
// DataError that names the file.
#pragma once

#include "ckpt/checkpoint_files.h"
#include "formats/safetensors.h"
#include "formats/torch_archive.h"
#include "plan/param_spec.h"

namespace at {
class Tensor;
}

namespace braid {

// --- the index, torch's `.metadata`: tensors, their chunks, and where each chunk is stored

struct FileRange {
  std::string file{};  // a name in the checkpoint's folder, without directories
  std::int64_t offset = 0, length = 0;
  bool operator==(const FileRange&) const = default;
};

// A box of the tensor: `size` elements from `begin`, in every dimension.
struct StoredChunk {
  std::vector<std::int64_t> begin{}, size{};
  FileRange part{};
  bool operator==(const StoredChunk&) const = default;
};

struct DistTensor {
  StoredDtype dtype{};
  std::vector<std::int64_t> shape{};
  std::vector<StoredChunk> chunks{};
  bool operator==(const DistTensor&) const = default;
};

inline std::int64_t bytes_of(const DistTensor& tensor) { return num_elements(tensor.shape) * bytes_of(tensor.dtype); }

struct DistMetadata {
  std::map<std::string, DistTensor> tensors{};
  bool has_checksums = false;                  // checksums.json is beside the index, see ckpt/checkpoint_files.h
  std::map<std::string, FileRange> objects{};  // keys as stored: "mimo.language.rng_state/shard_0.0_1.1"
  bool operator==(const DistMetadata&) const = default;
};

// DataError that names `file` when it is not an index, or is inconsistent: a chunk without bytes or outside its tensor,
// two chunks at one position, a size that overflows, a file name that leads out of the folder.
DistMetadata read_metadata(std::string_view pickle, const std::string& file);

// In the form that torch.distributed.checkpoint and megatron-core read.
std::string write_metadata(const DistMetadata& metadata);

// Merges another part of the same checkpoint: other chunks of tensors of the same shape and dtype, else DataError.
void merge(DistMetadata& into, const DistMetadata& other);

// Elements that no chunk or several chunks contain, and overlapping parts of a file; each problem names the key and, as
// `where`, the file (".metadata" for elements). Of very many problems, the first ones and the number of the others.
std::vector<Problem> coverage_problems(const DistMetadata& metadata);

// Megatron's ShardedObjects, "rng_state/shard_0.1_1.2", are stored as lists of one.
inline bool is_sharded_object(std::string_view key) { return key.find("/shard_") != std::string_view::npos; }

// A part of a stored tensor that fits into memory.
struct Slab {
  std::vector<std::int64_t> begin, size;
};
bool is_inside(const Slab& box, const std::vector<std::int64_t>& shape);

// Boxes of at most `most_elements`, in memory order: rows of the first dimension and, only if one row is too large,
// rows of the next. A tensor without elements is one slab.
std::vector<Slab> slabs_of(const std::vector<std::int64_t>& shape, std::int64_t most_elements);

// --- the checkpoint

// `part` must lie inside the file, which must outlive the source.
ArchiveSource source_of(CheckedFile& file, const FileRange& part, const std::string& key);

// The offset of a chunk's elements in the source. DataError when the tensor differs from the index.
std::int64_t data_offset(const ArchiveSource& source, StoredDtype dtype, const std::vector<std::int64_t>& size);

// The element of a ShardedObject's list. DataError when there is no such list.
PickleValue object_in(const ArchiveSource& source, const std::string& key);

// Checks the format that metadata.json names: DataError for one that cannot be read.
void check_format(const std::string& text, const std::string& path);

// One of several readers that read a checkpoint together and share the work that one of them must do.
struct ReaderShare {
  int reader = 0, readers = 1;
};

// Reads parts of tensors for any layout. It reads only the files, the blocks with a checksum and the rows that contain
// what is requested.
class DistCheckpoint {
 public:
  // Reads metadata.json, the index and the checksums if there are any, and checks that every file of its share exists
  // with its size; hundreds of readers that each ask for hundreds of files would delay a file server for minutes.
  // metadata.json may be missing, since torch.distributed.checkpoint writes none. If there are checksums, they must
  // cover every file that is read.
  explicit DistCheckpoint(std::string folder, ReaderShare share = {});

  const std::string& folder() const { return folder_; }
  const DistMetadata& metadata() const { return metadata_; }
  bool has_checksums() const { return checksums_.has_value(); }
  bool has_common() const;
  std::string common_bytes() const {  // of common.pt
    return read_whole(folder_ + "/" + kCommonFile, checksums_of_file(kCommonFile), kMaxCommonFile);
  }
  PickleValue common() const { return read_archive(common_bytes(), folder_ + "/" + kCommonFile); }

  // Fills `to`, any view on any device, with the box of its shape at `begin` in the stored tensor.
  void read(const std::string& key, const std::vector<std::int64_t>& begin, at::Tensor to);
  PickleValue read_object(const std::string& key);   // of a ShardedObject, the element of its list
  std::string object_bytes(const std::string& key);  // its archive, including any tensors

  std::int64_t bytes_read() const { return bytes_read_; }  // of tensors

  // The blocks of all files of tensors and objects, in an order that is the same for every reader: true for those that
  // were read, and thereby checked, here. Empty without checksums.
  std::vector<bool> checked() const;
  // Reads the blocks for which `wanted` is true.
  void check(const std::vector<bool>& wanted);
  void check_rest();  // reads all blocks that were not read yet, and common.pt

 private:
  // The chunks of one tensor, sorted by their begin in the dimension with the most cuts.
  struct ChunkOrder {
    std::size_t dim = 0;
    std::vector<const StoredChunk*> chunks{};
    std::vector<std::int64_t> latest_end{};  // of the chunks up to this one
    std::span<const StoredChunk* const> between(std::int64_t begin, std::int64_t end) const;
  };

  std::optional<FileChecksums> checksums_of_file(const std::string& name) const;
  std::vector<std::string> checksummed_files() const;
  void check_files(const ReaderShare& share) const;
  CheckedFile& file(const std::string& name);
  const FileRange& part_of_object(const std::string& key) const;
  const ChunkOrder& chunk_order(const std::string& key, const DistTensor& tensor);
  std::int64_t data_offset(const std::string& key, StoredDtype dtype, const StoredChunk& chunk);
  void read_box(CheckedFile& file, std::int64_t offset, std::span<const std::int64_t> stored,
                std::span<const std::int64_t> begin, StoredDtype dtype, const at::Tensor& to);

  std::string folder_;
  DistMetadata metadata_;
  std::optional<Checksums> checksums_;
  std::map<std::string, std::unique_ptr<CheckedFile>> files_;
  std::deque<CheckedFile*> awake_;  // files with an open descriptor, most recently used first
  std::map<std::string, ChunkOrder> chunk_orders_;
  std::map<const StoredChunk*, std::int64_t> data_offsets_;  // positions in their files, for archives that were opened
  std::vector<std::byte> scratch_;
  std::int64_t bytes_read_ = 0;
};

// One writer's share of a checkpoint: the file `__<writer>_0.distcp`, and its entries for the index and the checksums.
class DistWriter {
 public:
  // Writing throws soon after `cancelled` is set.
  DistWriter(const std::string& folder, int writer, const std::atomic<bool>* cancelled = nullptr);
  ~DistWriter();  // if not finished, leaves no file behind

  DistWriter(const DistWriter&) = delete;

  void add_object(const std::string& key, const PickleValue& value);  // objects before tensors, as in Megatron
  void add_archive(const std::string& key, std::string_view bytes);   // an object copied from another checkpoint
  // A box of the tensor `key` of shape `shape`; `data` is on the CPU and contiguous.
  void add_tensor(const std::string& key, const std::vector<std::int64_t>& shape,
                  const std::vector<std::int64_t>& begin, const at::Tensor& data);
  std::int64_t bytes_written() const { return bytes_written_; }

  // Syncs the file to disk. A writer without content leaves no file.
  void finish();
  const DistMetadata& metadata() const { return metadata_; }
  const Checksums& checksums() const { return checksums_; }

 private:
  class File;
  File& file();
  void check_new_object(const std::string& key) const;
  FileRange write_part(const PickleValue& value, std::optional<std::span<const std::byte>> storage);

  std::string folder_, file_name_;
  const std::atomic<bool>* const cancelled_;
  std::unique_ptr<File> file_;
  std::int64_t bytes_written_ = 0;
  bool finished_ = false;
  DistMetadata metadata_;
  Checksums checksums_;
};

}  // namespace braid
