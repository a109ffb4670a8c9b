// The index of a distributed checkpoint, torch's `.metadata`: tensors, their chunks, and where each chunk is stored.
#pragma once

#include "base/error.h"
#include "formats/safetensors.h"
#include "plan/param_spec.h"

namespace braid {

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

}  // namespace braid
