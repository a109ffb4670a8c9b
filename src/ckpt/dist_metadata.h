// The index of a distributed checkpoint, torch's `.metadata`: which tensors there are, in which chunks, and in which
// bytes of which file each chunk is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/safetensors.h"
#include "plan/param_spec.h"

namespace braid {

struct FilePart {
  std::string file{};  // a plain name in the checkpoint's folder
  std::int64_t offset = 0, length = 0;
  bool operator==(const FilePart&) const = default;
};

// A box of the tensor: `size` elements from `begin` on, in every dimension.
struct StoredChunk {
  std::vector<std::int64_t> begin{}, size{};
  FilePart part{};
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
  bool has_checksums = false;                 // there is a file of them beside the index, see ckpt/checksums.h
  std::map<std::string, FilePart> objects{};  // keys as stored: "mimo.language.rng_state/shard_0.0_1.1"
  bool operator==(const DistMetadata&) const = default;
};

// DataError that names `file` when it is no index, or one that cannot be right: a chunk without bytes or outside its
// tensor, two chunks at one place, a size that overflows, a file name that leads out of the folder.
DistMetadata read_metadata(std::string_view pickle, const std::string& file);

// As torch.distributed.checkpoint and megatron-core read it.
std::string write_metadata(const DistMetadata& metadata);

// Adds another part of the same checkpoint, whose tensors have other chunks of the same shape and dtype; DataError
// where they have not.
void merge(DistMetadata& into, const DistMetadata& other);

// Elements that no chunk has or that several have, and parts of a file that overlap; each problem names the key and,
// as `where`, the file (".metadata" for elements). Of very many problems the first ones, and how many more.
std::vector<Problem> coverage_problems(const DistMetadata& metadata);

}  // namespace braid
