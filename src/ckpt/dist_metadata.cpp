#include "base/strings.h"
#include "ckpt/checkpoint_files.h"
#include "ckpt/dist_checkpoint.h"
#include "formats/pickle.h"

namespace braid {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kMaxFields = 64;
constexpr std::size_t kMaxKey = 4096;
const char* const kMetadataModule = "torch.distributed.checkpoint.metadata";

// Includes names from older releases of torch and Megatron, and dtypes that are later refused by name.
const PickleVocabulary& vocabulary() {
  static const PickleVocabulary names = [] {
    PickleVocabulary all = {"builtins.getattr",
                            "collections.OrderedDict",
                            "megatron.core.dist_checkpointing.*",
                            "pathlib.*",
                            "torch.Size",
                            "torch.distributed._shard.sharded_tensor.metadata.*",
                            "torch.distributed.checkpoint.*",
                            "torch.serialization._get_layout"};
    for (const DtypeNames& names : kDtypes) all.push_back(std::string("torch.") + names.torch);
    for (const char* dtype :
         {"uint16", "uint32", "uint64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz",
          "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"})
      all.push_back(std::string("torch.") + dtype);
    return all;
  }();
  return names;
}

// The bytes of a box; nothing if they exceed 64 bits with sizes of 0 counted as 1: strides must not overflow either.
std::optional<std::int64_t> bytes_in(const Sizes& size, StoredDtype dtype) {
  std::int64_t bytes = bytes_of(dtype);
  for (const std::int64_t extent : size)
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) return std::nullopt;
  return std::find(size.begin(), size.end(), 0) == size.end() ? bytes : 0;
}

// An instance of a data class. It has few fields, so they are searched linearly; many values may share one state.
bool is_object(const PickleValue& value, std::string_view class_name) {
  const PickleObject* object = as<PickleObject>(value);
  if (!object || as<PickleGlobal>(object->type)->name != class_name || !object->items.items.empty()) return false;
  const PickleDict* fields = as<PickleDict>(object->state);
  return !fields || fields->items.size() <= kMaxFields;
}

class MetadataReader {
 public:
  MetadataReader(const std::string& file, std::size_t bytes) : file_(file), bytes_(bytes) {}

  DistMetadata read(const PickleValue& root) {
    if (!is_object(root, "Metadata")) fail("this is not an index of a distributed checkpoint");
    read_parts(field(root, "storage_data"));
    // Our own indices store this as save_id.
    metadata_.has_checksums = value_of<std::string>(find(find(root, "storage_meta"), "save_id")) == kChecksumFile;
    const PickleDict* keys = as<PickleDict>(field(root, "state_dict_metadata"));
    if (!keys) fail("state_dict_metadata is not a dictionary");
    for (const auto& [key, value] : keys->items) read_entry(text(key, "a key", kMaxKey), value);
    for (const auto& [index, part] : parts_)
      if (!part.used)
        fail(fmt::format("{} has bytes in {}, but no chunk there", place(index), in_quotes(part.part.file)));
    return std::move(metadata_);
  }

 private:
  // Objects have no offset. The key points into the pickle, where many entries may share one long key.
  using Index = std::pair<std::string_view, std::optional<Sizes>>;
  struct Part {
    FileRange part;
    bool used = false;
  };

  [[noreturn]] void fail(const std::string& what) const { throw DataError(fmt::format("{}: {}", file_, what)); }

  static std::string place(const Index& index) {
    return index.second ? fmt::format("{} at {}", in_quotes(index.first), shape_text(*index.second))
                        : in_quotes(index.first);
  }

  PickleValue field(const PickleValue& object, const char* name) const {
    PickleValue value = find(object, name);
    if (!value) fail(fmt::format("no {} in {}", name, to_text(object, 100)));
    return value;
  }

  const std::string& text(const PickleValue& value, const char* what, std::size_t most) const {
    const std::string* text = as<std::string>(value);
    if (!text) fail(fmt::format("{} is {}, not a string", what, to_text(value, 100)));
    if (text->size() > most) fail(fmt::format("{} has {} characters, more than {}", what, text->size(), most));
    return *text;
  }

  std::int64_t count(const PickleValue& value, const char* what) const {
    const std::int64_t* number = as<std::int64_t>(value);
    if (!number || *number < 0) fail(fmt::format("{} is {}, not a non-negative number", what, to_text(value, 100)));
    return *number;
  }

  Sizes sizes(const PickleValue& value, const char* what) const {
    const PickleObject* object = as<PickleObject>(value);
    const bool is_size = object && is_global(object->type, "torch", "Size") && object->args.size() == 1;
    const PickleTuple* tuple = as<PickleTuple>(is_size ? object->args[0] : value);
    if (!tuple) fail(fmt::format("{} is {}, not a torch.Size", what, to_text(value, 100)));
    if (tuple->items.size() > kMaxDimensions) fail(fmt::format("{} has more than {} dimensions", what, kMaxDimensions));
    return vector_of<std::int64_t>(tuple->items, [&](const PickleValue& item) { return count(item, what); });
  }

  void read_parts(const PickleValue& storage_data) {
    const PickleDict* entries = as<PickleDict>(storage_data);
    if (!entries) fail("storage_data is not a dictionary");
    for (const auto& [key, value] : entries->items) {
      if (!is_object(key, "MetadataIndex") || !is_object(value, "_StorageInfo"))
        fail(fmt::format("storage_data has an invalid entry {}: {}", to_text(key, 100), to_text(value, 100)));
      Index index{text(field(key, "fqn"), "a key", kMaxKey), std::nullopt};
      const PickleValue offset = find(key, "offset");
      if (offset && !as<PickleNone>(offset)) index.second = sizes(offset, "the offset of a chunk");
      if (!parts_.emplace(index, Part{read_part(value, index)}).second)
        fail(fmt::format("{} is stored twice", place(index)));
    }
  }

  FileRange read_part(const PickleValue& info, const Index& index) const {
    FileRange part{.file = text(field(info, "relative_path"), "a file name", kMaxFileName),
                   .offset = count(field(info, "offset"), "an offset in a file"),
                   .length = count(field(info, "length"), "a length in a file")};
    if (!is_plain_file_name(part.file))
      fail(fmt::format("{} is in {}, which is not the name of a file in this folder", place(index),
                       in_quotes(part.file)));
    if (std::int64_t end = 0; __builtin_add_overflow(part.offset, part.length, &end))
      fail(fmt::format("{} ends beyond 2^63 in {}", place(index), in_quotes(part.file)));
    const PickleValue transforms = find(info, "transform_descriptors");
    if (transforms && !as<PickleNone>(transforms))
      fail(fmt::format("{} is transformed ({}); only plain files can be read", place(index), to_text(transforms, 100)));
    return part;
  }

  void read_entry(const std::string& key, const PickleValue& value) {
    if (metadata_.tensors.count(key) || metadata_.objects.count(key))
      fail(fmt::format("{} occurs twice", in_quotes(key)));
    if (is_object(value, "BytesStorageMetadata"))
      metadata_.objects[key] = take_part({key, std::nullopt});
    else if (is_object(value, "TensorStorageMetadata"))
      metadata_.tensors[key] = read_tensor(key, value);
    else
      fail(fmt::format("{} is {}, neither a tensor nor an object", in_quotes(key), to_text(value, 100)));
  }

  const FileRange& take_part(const Index& index) {
    const auto found = parts_.find(index);
    if (found == parts_.end()) fail(fmt::format("{} is not in any file", place(index)));
    found->second.used = true;
    return found->second.part;
  }

  DistTensor read_tensor(const std::string& key, const PickleValue& value) {
    DistTensor tensor{.dtype = read_dtype(key, field(value, "properties")),
                      .shape = sizes(field(value, "size"), "a shape")};
    if (!bytes_in(tensor.shape, tensor.dtype))
      fail(fmt::format("{} of shape {} has more than 2^63 bytes", in_quotes(key), shape_text(tensor.shape)));
    const PickleList* chunks = as<PickleList>(field(value, "chunks"));
    if (!chunks) fail(fmt::format("the chunks of {} are not a list", in_quotes(key)));
    std::set<Sizes> begins;
    for (const PickleValue& chunk : chunks->items) {
      if (++chunks_ > bytes_) fail("it has more chunks than bytes");
      StoredChunk stored = read_chunk(key, tensor, chunk);
      if (begins.insert(stored.begin).second)
        tensor.chunks.push_back(std::move(stored));
      else if (bytes_in(stored.size, tensor.dtype) != 0)  // ranks that hold nothing all declare the same empty chunk
        fail(fmt::format("{} has two chunks", place({key, stored.begin})));
    }
    return tensor;
  }

  StoredDtype read_dtype(const std::string& key, const PickleValue& properties) const {
    if (!is_object(properties, "TensorProperties")) fail(fmt::format("{} has no properties", in_quotes(key)));
    const PickleTuple* tuple = as<PickleTuple>(as<PickleObject>(properties)->state);
    if (!tuple || tuple->items.empty()) fail(fmt::format("{} has no dtype", in_quotes(key)));
    const PickleValue& name = tuple->items[0];
    const auto dtype = find_dtype([&](const DtypeNames& names) { return is_global(name, "torch", names.torch); });
    if (!dtype)
      fail(fmt::format("{} has the dtype {}, which Braid does not support", in_quotes(key), to_text(name, 100)));
    return *dtype;
  }

  StoredChunk read_chunk(const std::string& key, const DistTensor& tensor, const PickleValue& value) {
    if (!is_object(value, "ChunkStorageMetadata"))
      fail(fmt::format("a chunk of {} is not a ChunkStorageMetadata", in_quotes(key)));
    StoredChunk chunk{.begin = sizes(field(value, "offsets"), "the offset of a chunk"),
                      .size = sizes(field(value, "sizes"), "the size of a chunk")};
    if (!is_inside({chunk.begin, chunk.size}, tensor.shape))
      fail(fmt::format("{} of shape {} has an invalid chunk {} at {}", in_quotes(key), shape_text(tensor.shape),
                       shape_text(chunk.size), shape_text(chunk.begin)));
    chunk.part = take_part({key, chunk.begin});
    if (const std::int64_t bytes = *bytes_in(chunk.size, tensor.dtype); chunk.part.length < bytes)
      fail(fmt::format("{} needs {} bytes, but its part of {} has {}", place({key, chunk.begin}), bytes,
                       in_quotes(chunk.part.file), chunk.part.length));
    return chunk;
  }

  const std::string& file_;
  std::size_t bytes_, chunks_ = 0;  // bounds lists of chunks that many keys share
  std::map<Index, Part> parts_;
  DistMetadata metadata_;
};

// Pickles of Python's data classes: created without arguments, then given their fields.
PickleValue object_with(const PickleValue& type, PickleValue state) {
  return pickle(PickleObject{.type = type, .state = std::move(state), .by_new = true});
}

class MetadataWriter {
 public:
  std::string write(const DistMetadata& metadata) {
    std::vector<std::pair<std::string, PickleValue>> keys;
    PickleDict places;
    for (const auto& [key, part] : metadata.objects) {
      keys.emplace_back(key, object_with(global("BytesStorageMetadata"), nullptr));
      places.items.emplace_back(index(key, nullptr), storage_info(part));
    }
    for (const auto& [key, tensor] : metadata.tensors) {
      keys.emplace_back(key, tensor_storage(tensor));
      for (const StoredChunk& chunk : tensor.chunks)
        places.items.emplace_back(index(key, size(chunk.begin)), storage_info(chunk.part));
    }
    const PickleValue storage_meta = object_with(
        global("StorageMeta"), pickle_dict({{"checkpoint_id", none_},
                                            {"save_id", metadata.has_checksums ? pickle(kChecksumFile) : none_},
                                            {"load_id", none_},
                                            {"modules", pickle_list({})}}));
    return write_pickle(
        object_with(global("Metadata"), pickle_dict({{"state_dict_metadata", pickle_dict(std::move(keys))},
                                                     {"planner_data", none_},
                                                     {"storage_data", pickle(std::move(places))},
                                                     {"storage_meta", storage_meta},
                                                     {"version", pickle("1.0.0")}})));
  }

 private:
  static PickleValue global(const char* name) { return pickle_global(kMetadataModule, name); }

  PickleValue size(const Sizes& sizes) const {
    auto items = vector_of<PickleValue>(sizes, [](const std::int64_t extent) { return pickle(extent); });
    return pickle_call(size_type_, {pickle_tuple(std::move(items))});
  }

  PickleValue index(const std::string& key, const PickleValue& offset) const {
    std::vector<std::pair<std::string, PickleValue>> fields = {{"fqn", pickle(key)}, {"index", none_}};
    if (offset) fields.emplace_back("offset", offset);
    return object_with(index_type_, pickle_dict(std::move(fields)));
  }

  PickleValue storage_info(const FileRange& part) const {
    return object_with(info_type_, pickle_dict({{"relative_path", pickle(part.file)},
                                                {"offset", pickle(part.offset)},
                                                {"length", pickle(part.length)}}));
  }

  PickleValue tensor_storage(const DistTensor& tensor) const {
    std::vector<PickleValue> chunks;
    for (const StoredChunk& chunk : tensor.chunks)
      chunks.push_back(object_with(global("ChunkStorageMetadata"),
                                   pickle_dict({{"offsets", size(chunk.begin)}, {"sizes", size(chunk.size)}})));
    // dtype, layout, requires_grad, memory format, pin_memory
    const PickleValue properties = pickle_tuple(
        {pickle_global("torch", names_of(tensor.dtype).torch), layout_, pickle(false), memory_format_, pickle(false)});
    return object_with(global("TensorStorageMetadata"),
                       pickle_dict({{"properties", object_with(global("TensorProperties"), properties)},
                                    {"size", size(tensor.shape)},
                                    {"chunks", pickle_list(std::move(chunks))}}));
  }

  const PickleValue none_ = pickle_none();
  const PickleValue size_type_ = pickle_global("torch", "Size");
  const PickleValue index_type_ = global("MetadataIndex");
  const PickleValue info_type_ = pickle_global("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  const PickleValue layout_ =
      pickle_call(pickle_global("torch.serialization", "_get_layout"), {pickle("torch.strided")});
  const PickleValue memory_format_ = pickle_call(global("_MEM_FORMAT_ENCODING"), {pickle(0)});
};

void cut(const Slab& box, std::size_t dim, std::int64_t most, std::vector<Slab>& slabs) {
  const std::int64_t all = num_elements(box.size);
  if (all <= most || dim == box.size.size()) {
    slabs.push_back(box);
    return;
  }
  const std::int64_t rows = box.size[dim], row = all / rows;
  const std::int64_t at_once = std::max<std::int64_t>(most / row, 1);
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    Slab part = box;
    part.begin[dim] = begin;
    part.size[dim] = std::min(at_once, rows - begin);
    cut(part, dim + 1, most, slabs);
  }
}

// --- Whether chunks tile their tensors. Let f be the number of chunks that contain an element, minus 1 inside the
// tensor: the chunks tile it if and only if f is 0 everywhere. f is a sum of boxes, and the differences of a box along
// every dimension are +1 or -1 at its corners and 0 elsewhere. So f is 0 if and only if the corners of all boxes
// cancel. Otherwise the first remaining corner, in memory order, is the first element where f is not 0.

constexpr std::size_t kMaxCutDimensions = 8;  // a box has 2^n corners

struct SignedBox {
  const std::int64_t* begin;
  const std::int64_t* size;
  int sign;
};

struct Corner {
  std::int64_t at;
  std::size_t box;
  int sign;
};

// The value at the first corner that does not cancel, with its position; 0 if all cancel. `cut`: dimensions left.
int first_corner(const std::vector<SignedBox>& boxes, std::span<const std::size_t> cut, Sizes& element) {
  if (cut.empty()) {
    return sum_of<int>(boxes, &SignedBox::sign);
  }
  const std::size_t dim = cut.front();
  std::vector<Corner> corners;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const std::int64_t begin = boxes[i].begin[dim];
    corners.push_back({begin, i, boxes[i].sign});
    corners.push_back({begin + boxes[i].size[dim], i, -boxes[i].sign});
  }
  std::ranges::sort(corners, {}, &Corner::at);
  std::vector<SignedBox> here;
  for (std::size_t i = 0; i < corners.size();) {
    here.clear();
    element[dim] = corners[i].at;
    for (; i < corners.size() && corners[i].at == element[dim]; ++i) {
      here.push_back(boxes[corners[i].box]);
      here.back().sign = corners[i].sign;
    }
    if (const int count = first_corner(here, cut.subspan(1), element)) return count;
  }
  return 0;
}

const char* const kSaveAgain = "the checkpoint is damaged or incomplete: use another one";

void check_tiling(const std::string& key, const DistTensor& tensor, ProblemList& problems) {
  const auto has_elements = [](const Sizes& size) { return std::ranges::find(size, 0) == size.end(); };
  if (!has_elements(tensor.shape)) return;
  const Sizes origin(tensor.shape.size(), 0);
  std::vector<SignedBox> boxes = {{origin.data(), tensor.shape.data(), -1}};
  for (const StoredChunk& chunk : tensor.chunks)
    if (has_elements(chunk.size)) boxes.push_back({chunk.begin.data(), chunk.size.data(), 1});
  std::vector<std::size_t> cut;
  for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim)
    if (std::ranges::any_of(
            boxes, [&](const SignedBox& box) { return box.begin[dim] != 0 || box.size[dim] != tensor.shape[dim]; }))
      cut.push_back(dim);
  if (cut.size() > kMaxCutDimensions)
    return problems.add(fmt::format("{} is cut along {} dimensions, too many to check", in_quotes(key), cut.size()),
                        kIndexFile, "");
  Sizes element = origin;
  const int chunks = first_corner(boxes, cut, element) + 1;
  if (chunks == 1) return;
  problems.add(
      fmt::format("element {} of {} (shape {}) is {}", shape_text(element), in_quotes(key), shape_text(tensor.shape),
                  chunks == 0 ? "missing from all chunks" : fmt::format("in {} chunks", chunks)),
      kIndexFile, kSaveAgain);
}

void check_files(const DistMetadata& metadata, ProblemList& problems) {
  struct Owned {
    const FileRange* part;
    const std::string* key;
  };
  std::vector<Owned> parts;
  for (const auto& [key, part] : metadata.objects) parts.push_back({&part, &key});
  for (const auto& [key, tensor] : metadata.tensors)
    for (const StoredChunk& chunk : tensor.chunks) parts.push_back({&chunk.part, &key});
  std::erase_if(parts, [](const Owned& owned) { return owned.part->length == 0; });
  std::ranges::stable_sort(parts, {},
                           [](const Owned& owned) { return std::tie(owned.part->file, owned.part->offset); });
  const Owned* last = nullptr;  // of the previous parts, the one that ends last
  for (const Owned& owned : parts) {
    const bool same_file = last && last->part->file == owned.part->file;
    if (same_file && owned.part->offset - last->part->offset < last->part->length)
      problems.add(fmt::format("{} and {} overlap at offset {}", in_quotes(*last->key), in_quotes(*owned.key),
                               owned.part->offset),
                   owned.part->file, kSaveAgain);
    if (!same_file || owned.part->offset + owned.part->length > last->part->offset + last->part->length) last = &owned;
  }
}

}  // namespace

DistMetadata read_metadata(std::string_view pickle, const std::string& file) {
  return MetadataReader(file, pickle.size()).read(read_pickle(pickle, file, vocabulary()));
}

std::string write_metadata(const DistMetadata& metadata) { return MetadataWriter().write(metadata); }

void merge(DistMetadata& into, const DistMetadata& other) {
  for (const auto& [key, tensor] : other.tensors) {
    if (into.objects.count(key))
      throw DataError(fmt::format("{} is a tensor in one part and an object in another", in_quotes(key)));
    const auto [known, is_new] = into.tensors.try_emplace(key, tensor);
    if (is_new) continue;
    DistTensor& mine = known->second;
    if (mine.dtype != tensor.dtype || mine.shape != tensor.shape)
      throw DataError(fmt::format("{} is {} {} in one part and {} {} in another", in_quotes(key), name_of(mine.dtype),
                                  shape_text(mine.shape), name_of(tensor.dtype), shape_text(tensor.shape)));
    mine.chunks.insert(mine.chunks.end(), tensor.chunks.begin(), tensor.chunks.end());
  }
  for (const auto& [key, part] : other.objects)
    if (into.tensors.count(key) || !into.objects.try_emplace(key, part).second)
      throw DataError(fmt::format("the object {} occurs twice, also in {}", in_quotes(key), in_quotes(part.file)));
}

bool is_inside(const Slab& box, const std::vector<std::int64_t>& shape) {
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    if (box.begin[dim] < 0 || box.begin[dim] > shape[dim] || box.size[dim] > shape[dim] - box.begin[dim]) return false;
  return true;
}

std::vector<Slab> slabs_of(const std::vector<std::int64_t>& shape, std::int64_t most_elements) {
  std::vector<Slab> slabs;
  cut({std::vector<std::int64_t>(shape.size(), 0), shape}, 0, std::max<std::int64_t>(most_elements, 1), slabs);
  return slabs;
}

std::vector<Problem> coverage_problems(const DistMetadata& metadata) {
  ProblemList problems;
  for (const auto& [key, tensor] : metadata.tensors) check_tiling(key, tensor, problems);
  check_files(metadata, problems);
  return problems.take();
}

}  // namespace braid
