// Safetensors, the file format of Hugging Face: eight bytes of header length, a JSON header, then the tensors' bytes.
// The reader does not trust files: any defect is a ConfigError that names it.
#pragma once

#include "formats/atomic_file.h"

namespace braid {

enum class StoredDtype { F64, F32, F16, BF16, I64, I32, I16, I8, U8, Bool };

// The names of dtypes in safetensors and in torch, and torch's classes of their storages, in the order of StoredDtype.
struct DtypeNames {
  const char *safetensors, *torch, *storage;
  std::int64_t bytes;
};
inline constexpr std::array kDtypes = {
    DtypeNames{"F64", "float64", "DoubleStorage", 8}, DtypeNames{"F32", "float32", "FloatStorage", 4},
    DtypeNames{"F16", "float16", "HalfStorage", 2},   DtypeNames{"BF16", "bfloat16", "BFloat16Storage", 2},
    DtypeNames{"I64", "int64", "LongStorage", 8},     DtypeNames{"I32", "int32", "IntStorage", 4},
    DtypeNames{"I16", "int16", "ShortStorage", 2},    DtypeNames{"I8", "int8", "CharStorage", 1},
    DtypeNames{"U8", "uint8", "ByteStorage", 1},      DtypeNames{"BOOL", "bool", "BoolStorage", 1}};

constexpr const DtypeNames& names_of(StoredDtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }
constexpr const char* name_of(StoredDtype dtype) { return names_of(dtype).safetensors; }
constexpr std::int64_t bytes_of(StoredDtype dtype) { return names_of(dtype).bytes; }

// The first dtype whose names are the wanted ones.
template <class Wanted>
std::optional<StoredDtype> find_dtype(const Wanted& is_wanted) {
  const auto found = std::ranges::find_if(kDtypes, is_wanted);
  return found == kDtypes.end() ? std::nullopt : std::optional(static_cast<StoredDtype>(found - kDtypes.begin()));
}

struct TensorInfo {
  std::string name{};
  StoredDtype dtype{};
  std::vector<std::int64_t> shape{};
};

std::int64_t bytes_of(const TensorInfo& tensor);

struct StoredTensor : TensorInfo {
  std::string file{};                 // its file, for messages
  std::span<const std::byte> data{};  // in the mapped file: valid as long as the reader exists
};

// "[2, 3]"
std::string shape_text(const std::vector<std::int64_t>& shape);

// The tensors of one file, or of a folder with model.safetensors or with model.safetensors.index.json and its shards.
// Reads only headers; the pages of tensors are loaded when accessed.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // by name
  const StoredTensor* find(const std::string& name) const;               // null if missing

 private:
  std::string path_;
  std::vector<std::shared_ptr<const void>> mappings_;
  std::vector<StoredTensor> tensors_;
};

inline constexpr std::int64_t kShardBytes = 5'000'000'000;

// Writes model.safetensors into a folder or, if the tensors exceed `max_shard_bytes`, shards and their index. All
// tensors are declared first and then written in any order; complete files appear in finish().
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::string folder, const std::vector<TensorInfo>& tensors,
                    std::int64_t max_shard_bytes = kShardBytes);
  // One file of any name and size.
  static SafetensorsWriter to_file(const std::string& path, const std::vector<TensorInfo>& tensors);

  void write(const std::string& name, std::span<const std::byte> data);  // the whole tensor
  void finish();
  std::int64_t total_bytes() const { return total_bytes_; }

 private:
  struct Slot {
    std::size_t shard;
    std::int64_t offset, bytes;
    bool written = false;
  };
  explicit SafetensorsWriter(std::string folder) : folder_(std::move(folder)) {}
  void start_shard(const std::string& file_name, std::vector<TensorInfo> tensors);

  std::string folder_;
  std::vector<std::string> file_names_;
  std::vector<AtomicFile> files_;
  std::map<std::string, Slot> slots_;
  std::int64_t total_bytes_ = 0;
};

}  // namespace braid
