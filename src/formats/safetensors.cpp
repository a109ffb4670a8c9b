#include "formats/safetensors.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "base/socket.h"
#include "base/strings.h"
#include "formats/safetensors_header.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors library
const char* const kFetchAgain = "the file is damaged or incomplete: download it again";

struct DtypeRow {
  StoredDtype dtype;
  const char* name;
  std::int64_t bytes;
};
constexpr std::array kDtypes = {DtypeRow{StoredDtype::F64, "F64", 8}, DtypeRow{StoredDtype::F32, "F32", 4},
                                DtypeRow{StoredDtype::F16, "F16", 2}, DtypeRow{StoredDtype::BF16, "BF16", 2},
                                DtypeRow{StoredDtype::I64, "I64", 8}, DtypeRow{StoredDtype::I32, "I32", 4},
                                DtypeRow{StoredDtype::I16, "I16", 2}, DtypeRow{StoredDtype::I8, "I8", 1},
                                DtypeRow{StoredDtype::U8, "U8", 1},   DtypeRow{StoredDtype::Bool, "BOOL", 1}};

std::optional<StoredDtype> dtype_named(const std::string& name) {
  for (const DtypeRow& row : kDtypes)
    if (name == row.name) return row.dtype;
  return std::nullopt;
}

// The bytes of a regular file; reading a pipe or a device could block or never end.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe could block open()
    struct stat info {};
    if (!file || ::fstat(file.get(), &info) != 0)
      throw ConfigError(
          {fmt::format("cannot read '{}': {}", path, std::strerror(errno)), "", "check the path and its permissions"});
    if (!S_ISREG(info.st_mode)) throw ConfigError({fmt::format("'{}' is not a file", path), "", "check the path"});
    size_ = static_cast<std::size_t>(info.st_size);
    if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data_ == MAP_FAILED) throw_errno(fmt::format("cannot map '{}'", path));
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (data_) ::munmap(data_, size_);
  }

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// The offset of the header's end, after its length has been checked.
std::size_t header_bytes(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < 8)
    throw ConfigError({fmt::format("{} bytes are too few for a safetensors file", file.size()), path, kFetchAgain});
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<std::uint64_t>(file[i]);
  if (length > kMaxHeaderBytes)
    throw ConfigError(
        {fmt::format("the header claims {} bytes, more than the {} that are allowed", length, kMaxHeaderBytes), path,
         "this is not a safetensors file, or it is damaged"});
  if (length > file.size() - 8)
    throw ConfigError({fmt::format("the header claims {} bytes, but the file has {} in all", length, file.size()), path,
                       kFetchAgain});
  return static_cast<std::size_t>(length);
}

std::optional<std::int64_t> checked_bytes(const std::vector<std::int64_t>& shape, StoredDtype dtype) {
  std::int64_t bytes = bytes_of(dtype);
  // An empty tensor may have any other dimensions, so zeros are checked first.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const std::int64_t size : shape)
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  return bytes;
}

// The range of a tensor's bytes, counted from the end of the header.
struct Extent {
  std::int64_t begin, end;
  std::string name;
};

// The defect of one entry, or nothing.
std::string entry_problem(const HeaderEntry& entry, std::int64_t data_bytes) {
  if (!entry.dtype) return "has no dtype";
  const auto dtype = dtype_named(*entry.dtype);
  if (!dtype) return fmt::format("has an unknown dtype {}", in_quotes(*entry.dtype));
  if (!entry.shape) return "has no shape of non-negative integers";
  if (!entry.offsets || entry.offsets->size() != 2) return "has no data_offsets of two non-negative integers";
  const std::int64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end || end > data_bytes)
    return fmt::format("has data_offsets [{}, {}], outside the file's {} data bytes", begin, end, data_bytes);
  const auto expected = checked_bytes(*entry.shape, *dtype);
  if (!expected) return fmt::format("has a shape that is too large: {}", shape_text(*entry.shape));
  if (*expected != end - begin)
    return fmt::format("has {} data bytes, but shape {} of {} needs {}", end - begin, shape_text(*entry.shape),
                       *entry.dtype, *expected);
  return "";
}

// Every byte after the header must belong to exactly one tensor.
void check_cover(std::vector<Extent> extents, std::int64_t data_bytes, const std::string& path, ProblemList& problems) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::int64_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin > covered)
      problems.add(fmt::format("data bytes {} to {} before tensor {} belong to no tensor", covered, extent.begin,
                               in_quotes(extent.name)),
                   path, kFetchAgain);
    if (extent.begin < covered)
      problems.add(fmt::format("tensor {} overlaps the previous one: it starts at data byte {}, before {}",
                               in_quotes(extent.name), extent.begin, covered),
                   path, kFetchAgain);
    covered = std::max(covered, extent.end);
  }
  if (covered < data_bytes)
    problems.add(fmt::format("{} bytes at the end of the file belong to no tensor", data_bytes - covered), path,
                 kFetchAgain);
}

std::vector<StoredTensor> read_file(const MappedFile& file, const std::string& path, ProblemList& problems) {
  const std::size_t length = header_bytes(file.bytes(), path);
  const std::span<const std::byte> data = file.bytes().subspan(8 + length);
  const auto data_bytes = static_cast<std::int64_t>(data.size());
  std::vector<StoredTensor> tensors;
  std::vector<Extent> extents;
  const std::vector<HeaderEntry> entries = parse_header(file.text().substr(8, length), path, problems);
  for (const HeaderEntry& entry : entries) {
    const std::string wrong = entry_problem(entry, data_bytes);
    if (!wrong.empty()) {
      problems.add(fmt::format("tensor {} {}", in_quotes(entry.name), wrong), path, kFetchAgain);
      continue;
    }
    const std::int64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
    extents.push_back({begin, end, entry.name});
    tensors.push_back({{entry.name, *dtype_named(*entry.dtype), *entry.shape},
                       path,
                       data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))});
  }
  // The bytes of an unreadable entry would only look like a gap.
  if (extents.size() == entries.size()) check_cover(std::move(extents), data_bytes, path, problems);
  return tensors;
}

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

// The shards that an index names, except those whose name leads out of the folder or whose file is missing.
std::set<std::string> usable_shards(const std::map<std::string, std::string>& index, const fs::path& folder,
                                    const std::string& index_path, ProblemList& problems) {
  std::set<std::string> usable, seen;
  for (const auto& [tensor, shard] : index) {
    if (!seen.insert(shard).second) continue;
    std::error_code ignored;
    if (!is_plain_file_name(shard))
      problems.add(
          fmt::format("the index maps tensor {} to {}, which is not a file name", in_quotes(tensor), in_quotes(shard)),
          index_path, "shards are in the folder of the index: use a name without folders");
    else if (!fs::is_regular_file(folder / shard, ignored))
      problems.add(fmt::format("the index names shard {}, which is missing", in_quotes(shard)), index_path,
                   "download the missing shard");
    else
      usable.insert(shard);
  }
  return usable;
}

void check_against_index(const std::map<std::string, std::string>& index, const std::string& index_path,
                         const std::set<std::string>& shards, const std::vector<StoredTensor>& tensors,
                         ProblemList& problems) {
  std::set<std::pair<std::string, std::string>> present;
  for (const StoredTensor& tensor : tensors) {
    const std::string shard = fs::path(tensor.file).filename();
    present.emplace(tensor.name, shard);
    if (const auto entry = index.find(tensor.name); entry == index.end() || entry->second != shard)
      problems.add(fmt::format("tensor {} is in {}, but not in the index", in_quotes(tensor.name), in_quotes(shard)),
                   index_path, "index and shards belong to different models: download them again");
  }
  for (const auto& [name, shard] : index)
    if (shards.count(shard) && !present.count({name, shard}))
      problems.add(
          fmt::format("the index says that tensor {} is in {}, but it is not", in_quotes(name), in_quotes(shard)),
          index_path, "index and shards belong to different models: download them again");
}

std::string weights_of_folder(const fs::path& folder) {
  const fs::path single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  std::error_code ignored;
  const bool has_single = fs::exists(single, ignored), has_index = fs::exists(index, ignored);
  if (has_single && has_index)
    throw ConfigError({"the folder has model.safetensors and an index of shards", folder, "remove the stale one"});
  if (!has_single && !has_index)
    throw ConfigError({"the folder has neither model.safetensors nor model.safetensors.index.json", folder,
                       "give a folder of weights in the safetensors format"});
  return has_single ? single : index;
}

}  // namespace

const char* name_of(StoredDtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }
std::int64_t bytes_of(StoredDtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bytes; }

std::int64_t bytes_of(const TensorInfo& tensor) {
  const auto bytes = checked_bytes(tensor.shape, tensor.dtype);
  BRAID_CHECK(bytes, "{} has shape {}", tensor.name, shape_text(tensor.shape));
  return *bytes;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", joined(shape, ", ")); }

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  ProblemList problems;
  const auto add_file = [&](const std::string& file_path) {
    const auto file = std::make_shared<const MappedFile>(file_path);
    mappings_.push_back(file);
    for (StoredTensor& tensor : read_file(*file, file_path, problems)) tensors_.push_back(std::move(tensor));
  };
  std::error_code ignored;
  const std::string weights = fs::is_directory(path, ignored) ? weights_of_folder(path) : path;
  if (weights.ends_with(".json")) {
    const fs::path folder = fs::path(weights).parent_path();
    const MappedFile file(weights);
    if (file.bytes().size() > kMaxHeaderBytes)
      throw ConfigError({fmt::format("the index has {} bytes, more than the {} that are allowed", file.bytes().size(),
                                     kMaxHeaderBytes),
                         weights, "this is not an index of shards, or it is damaged"});
    const auto index = parse_index(file.text(), weights, problems);
    const std::set<std::string> shards = usable_shards(index, folder, weights, problems);
    for (const std::string& shard : shards) add_file(folder / shard);
    if (problems.empty()) check_against_index(index, weights, shards, tensors_, problems);
  } else {
    add_file(weights);
  }
  problems.throw_if_any();
  std::sort(tensors_.begin(), tensors_.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
}

const StoredTensor* SafetensorsReader::find(const std::string& name) const {
  const auto found = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const StoredTensor& tensor, const std::string& n) { return tensor.name < n; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

}  // namespace braid
