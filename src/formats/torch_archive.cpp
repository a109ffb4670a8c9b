#include "formats/torch_archive.h"
#include "base/strings.h"

namespace braid {
namespace {

constexpr std::int64_t kMaxPickle = 256 << 20;  // far above what any object of a checkpoint needs

// Beside Python's own, which are always allowed.
const PickleVocabulary kNames = split(
    "argparse.Namespace builtins.getattr collections.OrderedDict collections.defaultdict collections.deque "
    "copyreg._reconstructor io.BytesIO megatron.core.* megatron.training.* numpy.* pathlib.Path pathlib.PosixPath "
    "pathlib.PurePosixPath pathlib._local.* signal.Signals torch.BFloat16Storage torch.BoolStorage "
    "torch.ByteStorage torch.CharStorage torch.DoubleStorage torch.FloatStorage torch.HalfStorage torch.IntStorage "
    "torch.LongStorage torch.ShortStorage torch.Size torch._utils._rebuild_parameter "
    "torch._utils._rebuild_tensor_v2 torch._utils._rebuild_tensor_v3 torch.bfloat16 torch.bool torch.device "
    "torch.double torch.float torch.float16 torch.float32 torch.float64 torch.float8_e4m3fn torch.float8_e5m2 "
    "torch.half torch.int torch.int16 torch.int32 torch.int64 torch.int8 torch.long torch.short "
    "torch.storage.UntypedStorage torch.uint8",
    ' ');

constexpr std::int64_t kEndRecord = 22, kLocator64 = 20, kEndRecord64 = 56, kEntry = 46, kLongestComment = 0xffff;
constexpr std::uint64_t kMaxDirectory = 64 << 20, kMaxOwnRecord = 4 << 10;  // version, byte order and the like
constexpr std::uint64_t kIn64 = 0xffffffff;  // value of a 32-bit field that refers to the 64-bit one

// Little-endian fields of a record of the archive.
class Bytes {
 public:
  Bytes(const ArchiveSource& source, std::int64_t offset, std::int64_t count)
      : bytes_(static_cast<std::size_t>(count)) {
    source.read(offset, bytes_);
  }

  std::uint64_t number(std::int64_t at, int size) const {
    std::uint64_t value = 0;
    for (int i = size - 1; i >= 0; --i) value = value << 8 | std::to_integer<std::uint64_t>(bytes_[at + i]);
    return value;
  }
  std::string_view text(std::int64_t at, std::int64_t count) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + at, static_cast<std::size_t>(count)};
  }
  std::int64_t size() const { return std::ssize(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

[[noreturn]] void refuse(const ArchiveSource& source, const std::string& what) {
  throw DataError(fmt::format("{} is not an archive of torch.save: {}", source.name, what));
}

// The bytes from `offset`, which a file may claim to be anywhere.
Bytes bytes_at(const ArchiveSource& source, std::uint64_t offset, std::uint64_t count, const char* what) {
  const auto total = static_cast<std::uint64_t>(source.size);
  if (offset > total || count > total - offset)
    refuse(source, fmt::format("it has {} of {} bytes at byte {} of {}", what, count, offset, total));
  return Bytes(source, static_cast<std::int64_t>(offset), static_cast<std::int64_t>(count));
}

// The directory of records. The last end record counts, which is followed by at most a comment.
Bytes find_directory(const ArchiveSource& source) {
  const std::int64_t tail_size = std::min(source.size, kEndRecord + kLongestComment);
  const Bytes tail(source, source.size - tail_size, tail_size);
  std::int64_t at = tail_size - kEndRecord;
  while (at >= 0 && tail.number(at, 4) != 0x06054b50) --at;
  if (at < 0) refuse(source, "it has no directory");
  std::uint64_t offset = tail.number(at + 16, 4), size = tail.number(at + 12, 4);
  if (const std::int64_t locator = source.size - tail_size + at - kLocator64; locator >= 0) {
    const Bytes where(source, locator, kLocator64);
    if (where.number(0, 4) == 0x07064b50) {
      const Bytes record = bytes_at(source, where.number(8, 8), kEndRecord64, "an end record");
      offset = record.number(48, 8);
      size = record.number(40, 8);
    }
  }
  if (size > kMaxDirectory) refuse(source, fmt::format("it has a directory of {} bytes", size));
  return bytes_at(source, offset, size, "a directory");
}

PickleValue pickle_ints(const std::vector<std::int64_t>& values) {
  auto items = vector_of<PickleValue>(values, [](const std::int64_t value) { return pickle(value); });
  return pickle_tuple(std::move(items));
}

std::optional<std::vector<std::int64_t>> as_ints(const PickleValue& value) {
  const PickleTuple* tuple = as<PickleTuple>(value);
  if (!tuple) return std::nullopt;
  std::vector<std::int64_t> ints;
  for (const PickleValue& item : tuple->items) {
    const std::int64_t* number = as<std::int64_t>(item);
    if (!number || *number < 0) return std::nullopt;
    ints.push_back(*number);
  }
  return ints;
}

// ('storage', torch.FloatStorage, '0', 'cpu', 6)
bool read_storage(const PickleValue& value, PickledTensor& tensor) {
  const PicklePersistent* persistent = as<PicklePersistent>(value);
  const PickleTuple* id = persistent ? as<PickleTuple>(persistent->id) : nullptr;
  if (!id || id->items.size() != 5) return false;
  const std::string* kind = as<std::string>(id->items[0]);
  const auto dtype =
      find_dtype([&](const DtypeNames& names) { return is_global(id->items[1], "torch", names.storage); });
  const std::string* name = as<std::string>(id->items[2]);
  const std::int64_t* elements = as<std::int64_t>(id->items[4]);
  if (!kind || *kind != "storage" || !dtype || !name || !elements) return false;
  tensor.dtype = *dtype;
  tensor.storage = *name;
  tensor.storage_elements = *elements;
  return true;
}

}  // namespace

ArchiveReader::ArchiveReader(ArchiveSource source) : source_(std::move(source)) {
  const Bytes entries = find_directory(source_);
  for (std::int64_t at = 0; at + kEntry <= entries.size() && entries.number(at, 4) == 0x02014b50;) {
    const auto name_size = static_cast<std::int64_t>(entries.number(at + 28, 2));
    const std::int64_t extra = at + kEntry + name_size;
    const auto end_of_extra = extra + static_cast<std::int64_t>(entries.number(at + 30, 2));
    const auto next = end_of_extra + static_cast<std::int64_t>(entries.number(at + 32, 2));
    if (next > entries.size()) break;
    std::uint64_t stored = entries.number(at + 20, 4), whole = entries.number(at + 24, 4),
                  header = entries.number(at + 42, 4);
    // Of these, the extra field with id 1 has those that need more than 32 bits.
    for (std::int64_t field = extra; field + 4 <= end_of_extra;) {
      const bool is_wanted = entries.number(field, 2) == 1;
      const auto end = field + 4 + static_cast<std::int64_t>(entries.number(field + 2, 2));
      field += 4;
      for (std::uint64_t* value : {&whole, &stored, &header})
        if (is_wanted && *value == kIn64 && field + 8 <= std::min(end, end_of_extra)) {
          *value = entries.number(field, 8);
          field += 8;
        }
      field = end;
    }
    const std::string_view full = entries.text(at + kEntry, name_size), name = full.substr(full.find('/') + 1);
    if (entries.number(at + 10, 2) != 0 || stored != whole)
      refuse(source_, fmt::format("the record {} is compressed", in_quotes(full)));
    if (name != "data.pkl" && !name.starts_with("data/") && whole > kMaxOwnRecord)
      refuse(source_, fmt::format("the record {} has {} bytes", in_quotes(full), whole));
    records_.try_emplace(std::string(name), Place{header, whole});
    at = next;
  }
}

ArchiveReader::Record ArchiveReader::record(const std::string& name) const {
  constexpr std::uint64_t kLocalHeader = 30;
  const auto found = records_.find(name);
  if (found == records_.end()) refuse(source_, fmt::format("it has no record {}", in_quotes(name)));
  const auto [header, size] = found->second;
  const Bytes local = bytes_at(source_, header, kLocalHeader, "a record");
  const std::uint64_t offset = header + kLocalHeader + local.number(26, 2) + local.number(28, 2);
  const auto total = static_cast<std::uint64_t>(source_.size);
  if (offset > total || size > total - offset)
    refuse(source_, fmt::format("the record {} points outside of it", in_quotes(name)));
  if (local.number(8, 2) != 0) refuse(source_, fmt::format("the record {} is compressed", in_quotes(name)));
  return {static_cast<std::int64_t>(offset), static_cast<std::int64_t>(size)};
}

PickleValue ArchiveReader::value() const {
  const auto text_of = [&](const std::string& name) {
    const Record at = record(name);
    if (at.size > kMaxPickle)
      throw DataError(fmt::format("{}: the record '{}' has {}, more than any valid record", source_.name, name,
                                  readable_bytes(at.size)));
    std::string text(static_cast<std::size_t>(at.size), '\0');
    source_.read(at.offset, std::as_writable_bytes(std::span(text)));
    return text;
  };
  if (records_.contains("byteorder") && text_of("byteorder") != "little")
    throw DataError(fmt::format("{} was written on a machine with another byte order", source_.name));
  return read_pickle(text_of("data.pkl"), source_.name, kNames);
}

std::optional<PickledTensor> as_tensor(const PickleValue& value) {
  const PickleObject* object = as<PickleObject>(value);
  if (!object) return std::nullopt;
  if (is_global(object->type, "torch._utils", "_rebuild_parameter") && !object->args.empty())
    return as_tensor(object->args[0]);
  if (!is_global(object->type, "torch._utils", "_rebuild_tensor_v2") || object->args.size() < 6) return std::nullopt;
  PickledTensor tensor;
  const std::int64_t* offset = as<std::int64_t>(object->args[1]);
  const auto shape = as_ints(object->args[2]), strides = as_ints(object->args[3]);
  if (!read_storage(object->args[0], tensor) || !offset || !shape || !strides) return std::nullopt;
  tensor.storage_offset = *offset;
  tensor.shape = *shape;
  tensor.strides = *strides;
  return tensor;
}

PickleValue pickle_tensor(const PickledTensor& tensor) {
  const PickleValue id = pickle_tuple({pickle("storage"), pickle_global("torch", names_of(tensor.dtype).storage),
                                       pickle(tensor.storage), pickle("cpu"), pickle(tensor.storage_elements)});
  const PickleValue no_hooks = pickle_call(pickle_global("collections", "OrderedDict"), {});
  return pickle_call(pickle_global("torch._utils", "_rebuild_tensor_v2"),
                     {pickle(PicklePersistent{id}), pickle(tensor.storage_offset), pickle_ints(tensor.shape),
                      pickle_ints(tensor.strides), pickle(false), no_hooks});
}

PickleValue read_archive(std::string_view bytes, const std::string& file) {
  const auto read = [bytes](std::int64_t offset, std::span<std::byte> to) {
    std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()) + offset, to.size(), to.begin());
  };
  return ArchiveReader({.name = file, .size = std::ssize(bytes), .read = read}).value();
}

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t dim = shape.size(); dim-- > 1;)
    strides[dim - 1] = strides[dim] * std::max<std::int64_t>(shape[dim], 1);
  return strides;
}

}  // namespace braid
