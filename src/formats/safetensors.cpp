#include "formats/safetensors.h"
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/stat.h>
#include "base/files.h"
#include "base/strings.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors library
const char* const kFetchAgain = "the file is damaged or incomplete: download it again";

// The bytes of a regular file; reading a pipe or a device could block or never end.
struct MappedFile {
  explicit MappedFile(const std::string& path) {
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe could block open()
    struct stat info {};
    if (!file || ::fstat(file.get(), &info) != 0)
      throw ConfigError(
          {fmt::format("cannot read '{}': {}", path, std::strerror(errno)), "", "check the path and its permissions"});
    if (!S_ISREG(info.st_mode)) throw ConfigError({fmt::format("'{}' is not a file", path), "", "check the path"});
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size == 0) return;
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data == MAP_FAILED) throw_errno(fmt::format("cannot map '{}'", path));
    mapping = {data, [size](void* mapped) { ::munmap(mapped, size); }};
    bytes = {static_cast<const std::byte*>(data), size};
  }
  std::string_view text(std::size_t begin, std::size_t count) const {
    return {reinterpret_cast<const char*>(bytes.data()) + begin, count};
  }

  std::shared_ptr<void> mapping;
  std::span<const std::byte> bytes;
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

constexpr std::size_t kMaxDimensions = 64;

std::string kind_of(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  return value.is_null() ? "null" : "a number";
}

[[noreturn]] void refuse(const std::string& what, const std::string& path) {
  throw ConfigError({what, path, "the file is damaged, or its name is wrong: download it again"});
}

// Calls `key` and `value`, which throw for what is not expected, with the depth. Leaves out what `value` refuses.
Json parse(std::string_view json, const std::string& path, const char* what,
           const std::function<void(int depth, const std::string& key)>& key,
           const std::function<bool(int depth, const std::string& kind)>& value) {
  const auto visit = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::key) key(depth, parsed.get_ref<const std::string&>());
    if (event == Event::object_start) return value(depth, "an object");
    if (event == Event::array_start) return value(depth, "a list");
    return event != Event::value || value(depth, kind_of(parsed));
  };
  try {
    return Json::parse(json.begin(), json.end(), visit);
  } catch (const Json::exception& e) {
    refuse(fmt::format("{} is not JSON: {}", what, json_error(e.what())), path);
  }
}

// A text that is not a header throws; tensors that occur twice are added to `problems`. The text is checked while it is
// parsed: a deeply nested header of 100 MB must not become a tree in memory.
Json parse_header(std::string_view json, const std::string& path, ProblemList& problems) {
  std::set<std::string> names, fields;
  std::string name, field;
  std::size_t items = 0;
  bool is_metadata = false;
  const auto see_key = [&](int depth, const std::string& key) {
    if (depth == 1) {
      name = key;
      is_metadata = key == "__metadata__";
      fields = {"dtype", "shape", "data_offsets"};
      if (!names.insert(key).second)
        problems.add(fmt::format("tensor {} is in the header twice", in_quotes(key)), path, "write the file again");
    } else {
      field = key;
      items = 0;
      if (!is_metadata && fields.erase(key) == 0)
        refuse(fmt::format("tensor {} has {} twice, or it is not a field of a tensor", in_quotes(name), in_quotes(key)),
               path);
    }
  };
  const auto see_value = [&](int depth, const std::string& kind) {
    const bool is_text = is_metadata || field == "dtype", is_nested = kind == "an object" || kind == "a list";
    if (depth == 0 && kind != "an object") refuse(fmt::format("the header is {}, not an object", kind), path);
    if (depth == 1 && kind != "an object")
      refuse(fmt::format("tensor {} is described by {}, not by an object", in_quotes(name), kind), path);
    if ((depth == 2 && kind != (is_text ? "a string" : "a list")) || (depth == 3 && is_nested))
      refuse(fmt::format("field {} of {} is {}", in_quotes(field), in_quotes(name), kind), path);
    if (depth == 3 && ++items > kMaxDimensions)
      refuse(fmt::format("tensor {} has more than {} dimensions", in_quotes(name), kMaxDimensions), path);
    return true;
  };
  return parse(json, path, "the header", see_key, see_value);
}

// The "weight_map" of model.safetensors.index.json: the shard of each tensor.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& path, ProblemList& problems) {
  std::set<std::string> names;
  std::string name;
  bool is_map = false;
  const auto see_key = [&](int depth, const std::string& key) {
    name = key;
    if (depth == 1) is_map = key == "weight_map";
    if (depth == 2 && is_map && !names.insert(key).second)
      problems.add(fmt::format("tensor {} is in the index twice", in_quotes(key)), path, "write the model again");
  };
  // The index may have any other keys beside the weight map.
  const auto see_value = [&](int depth, const std::string& kind) {
    if (depth == 0 && kind != "an object") refuse(fmt::format("the index is {}, not an object", kind), path);
    if (is_map && depth > 0 && kind != (depth == 1 ? "an object" : "a string"))
      refuse(fmt::format("the weight_map has {} at {}, not a file name", kind, in_quotes(name)), path);
    return depth == 0 || is_map || (kind != "an object" && kind != "a list");
  };
  const Json index = parse(json, path, "the index", see_key, see_value);
  if (!index.contains("weight_map")) throw ConfigError({"the index has no weight_map", path, "write the model again"});
  return index["weight_map"].get<std::map<std::string, std::string>>();
}

// Nothing if the field is missing or an item is not a non-negative integer.
std::optional<std::vector<std::int64_t>> integers_of(const Json& tensor, const char* field) {
  const auto list = tensor.find(field);
  if (list == tensor.end()) return std::nullopt;
  std::vector<std::int64_t> integers;
  for (const Json& item : *list) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
    integers.push_back(item.get<std::int64_t>());
  }
  return integers;
}

// Fills in the tensor that an entry of the header describes. Returns the defect of the entry, or nothing.
std::string read_entry(const Json& entry, std::span<const std::byte> data, StoredTensor& tensor) {
  if (!entry.contains("dtype")) return "has no dtype";
  const auto& dtype_name = entry["dtype"].get_ref<const std::string&>();
  const auto dtype = find_dtype([&](const DtypeNames& names) { return dtype_name == names.safetensors; });
  const auto shape = integers_of(entry, "shape"), offsets = integers_of(entry, "data_offsets");
  if (!dtype) return fmt::format("has an unknown dtype {}", in_quotes(dtype_name));
  if (!shape) return "has no shape of non-negative integers";
  if (!offsets || offsets->size() != 2) return "has no data_offsets of two non-negative integers";
  const std::int64_t begin = offsets->front(), end = offsets->back();
  if (begin > end || end > std::ssize(data))
    return fmt::format("has data_offsets [{}, {}], outside the file's {} data bytes", begin, end, data.size());
  const auto expected = checked_bytes(*shape, *dtype);
  if (!expected) return fmt::format("has a shape that is too large: {}", shape_text(*shape));
  if (*expected != end - begin)
    return fmt::format("has {} data bytes, but shape {} of {} needs {}", end - begin, shape_text(*shape), dtype_name,
                       *expected);
  tensor.dtype = *dtype;
  tensor.shape = *shape;
  tensor.data = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(*expected));
  return "";
}

// Every byte after the header must belong to exactly one tensor.
void check_cover(std::vector<StoredTensor> tensors, std::span<const std::byte> data, const std::string& path,
                 ProblemList& problems) {
  const auto range = [&](const StoredTensor& tensor) {
    const std::int64_t begin = tensor.data.data() - data.data();
    return std::pair(begin, begin + std::ssize(tensor.data));
  };
  std::ranges::sort(tensors, {}, range);
  std::int64_t covered = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto [begin, end] = range(tensor);
    if (begin > covered)
      problems.add(fmt::format("data bytes {} to {} before tensor {} belong to no tensor", covered, begin,
                               in_quotes(tensor.name)),
                   path, kFetchAgain);
    if (begin < covered)
      problems.add(fmt::format("tensor {} overlaps the previous one: it starts at data byte {}, before {}",
                               in_quotes(tensor.name), begin, covered),
                   path, kFetchAgain);
    covered = std::max(covered, end);
  }
  if (covered < std::ssize(data))
    problems.add(fmt::format("{} bytes at the end of the file belong to no tensor", std::ssize(data) - covered), path,
                 kFetchAgain);
}

std::vector<StoredTensor> read_file(const MappedFile& file, const std::string& path, ProblemList& problems) {
  const std::size_t length = header_bytes(file.bytes, path);
  const std::span<const std::byte> data = file.bytes.subspan(8 + length);
  std::vector<StoredTensor> tensors;
  Json header = parse_header(file.text(8, length), path, problems);
  header.erase("__metadata__");
  for (const auto& [name, entry] : header.items()) {
    StoredTensor tensor = {{.name = name}, path};
    const std::string wrong = read_entry(entry, data, tensor);
    if (wrong.empty())
      tensors.push_back(std::move(tensor));
    else
      problems.add(fmt::format("tensor {} {}", in_quotes(name), wrong), path, kFetchAgain);
  }
  // The bytes of an unreadable entry would only look like a gap.
  if (tensors.size() == header.size()) check_cover(tensors, data, path, problems);
  return tensors;
}

// The shards that an index names, except those whose name leads out of the folder or whose file is missing.
std::set<std::string> usable_shards(const std::map<std::string, std::string>& index, const fs::path& folder,
                                    const std::string& index_path, ProblemList& problems) {
  std::set<std::string> usable, seen;
  for (const auto& [tensor, shard] : index) {
    if (!seen.insert(shard).second) continue;
    if (!is_plain_file_name(shard))
      problems.add(
          fmt::format("the index maps tensor {} to {}, which is not a file name", in_quotes(tensor), in_quotes(shard)),
          index_path, "shards are in the folder of the index: use a name without folders");
    else if (!is_file(folder / shard))
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
  const bool has_single = is_there(single), has_index = is_there(index);
  if (has_single && has_index)
    throw ConfigError({"the folder has model.safetensors and an index of shards", folder, "remove the stale one"});
  if (!has_single && !has_index)
    throw ConfigError({"the folder has neither model.safetensors nor model.safetensors.index.json", folder,
                       "give a folder of weights in the safetensors format"});
  return has_single ? single : index;
}

// Fills shards as Hugging Face does: in order, starting a new one when the next tensor does not fit.
std::vector<std::vector<TensorInfo>> split_into_shards(const std::vector<TensorInfo>& tensors, std::int64_t max_bytes) {
  std::vector<std::vector<TensorInfo>> shards(1);
  std::int64_t filled = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::int64_t bytes = bytes_of(tensor);
    if (!shards.back().empty() && filled + bytes > max_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += bytes;
  }
  return shards;
}

}  // namespace

std::int64_t bytes_of(const TensorInfo& tensor) {
  const auto bytes = checked_bytes(tensor.shape, tensor.dtype);
  BRAID_CHECK(bytes, "{} has shape {}", tensor.name, shape_text(tensor.shape));
  return *bytes;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", joined(shape, ", ")); }

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  ProblemList problems;
  const auto add_file = [&](const std::string& file_path) {
    const MappedFile file(file_path);
    mappings_.push_back(file.mapping);
    std::ranges::move(read_file(file, file_path, problems), std::back_inserter(tensors_));
  };
  const std::string weights = is_folder(path) ? weights_of_folder(path) : path;
  if (weights.ends_with(".json")) {
    const fs::path folder = fs::path(weights).parent_path();
    const MappedFile file(weights);
    if (file.bytes.size() > kMaxHeaderBytes)
      throw ConfigError(
          {fmt::format("the index has {} bytes, more than the {} that are allowed", file.bytes.size(), kMaxHeaderBytes),
           weights, "this is not an index of shards, or it is damaged"});
    const auto index = parse_index(file.text(0, file.bytes.size()), weights, problems);
    const std::set<std::string> shards = usable_shards(index, folder, weights, problems);
    for (const std::string& shard : shards) add_file(folder / shard);
    if (problems.empty()) check_against_index(index, weights, shards, tensors_, problems);
  } else {
    add_file(weights);
  }
  problems.throw_if_any();
  std::ranges::sort(tensors_, {}, &StoredTensor::name);
}

const StoredTensor* SafetensorsReader::find(const std::string& name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &StoredTensor::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

SafetensorsWriter::SafetensorsWriter(std::string folder, const std::vector<TensorInfo>& tensors,
                                     std::int64_t max_shard_bytes)
    : folder_(std::move(folder)) {
  const auto shards = split_into_shards(tensors, max_shard_bytes);
  for (std::size_t i = 0; i < shards.size(); ++i)
    start_shard(shards.size() == 1 ? "model.safetensors"
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()),
                shards[i]);
}

SafetensorsWriter SafetensorsWriter::to_file(const std::string& path, const std::vector<TensorInfo>& tensors) {
  // A symbolic link is kept. Made absolute, since the name of a file that does not exist yet would have no folder.
  const fs::path file = fs::weakly_canonical(fs::absolute(path));
  SafetensorsWriter writer(file.parent_path().string());
  writer.start_shard(file.filename().string(), tensors);
  return writer;
}

void SafetensorsWriter::start_shard(const std::string& file_name, std::vector<TensorInfo> tensors) {
  // Sorted by descending element size, so that every tensor is aligned.
  std::ranges::stable_sort(tensors, std::ranges::greater(),
                           [](const TensorInfo& info) { return bytes_of(info.dtype); });
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";  // transformers rejects files without it
  std::int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::int64_t bytes = bytes_of(tensor);
    header[tensor.name] = {
        {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    const bool is_new = slots_.emplace(tensor.name, Slot{files_.size(), offset, bytes}).second;
    BRAID_CHECK(is_new, "tensor {} is declared twice", tensor.name);
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  text.insert(0, length);
  for (const TensorInfo& tensor : tensors) slots_.at(tensor.name).offset += static_cast<std::int64_t>(text.size());
  file_names_.push_back(file_name);
  files_.emplace_back((fs::path(folder_) / file_name).string());
  files_.back().write_at(0, std::as_bytes(std::span(text)));
  total_bytes_ += offset;
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> data) {
  const auto slot = slots_.find(name);
  BRAID_CHECK(slot != slots_.end(), "tensor {} was not declared", name);
  BRAID_CHECK_EQ(static_cast<std::int64_t>(data.size()), slot->second.bytes, "bytes of tensor {}", name);
  files_[slot->second.shard].write_at(slot->second.offset, data);
  slot->second.written = true;
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) BRAID_CHECK(slot.written, "tensor {} was declared but not written", name);
  for (AtomicFile& file : files_) file.commit();
  if (files_.size() > 1) {
    nlohmann::json index;
    index["metadata"]["total_size"] = total_bytes_;
    for (const auto& [name, slot] : slots_) index["weight_map"][name] = file_names_[slot.shard];
    write_file(fs::path(folder_) / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  sync_folder(folder_);
}

}  // namespace braid
