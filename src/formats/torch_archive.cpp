#include "formats/torch_archive.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <exception>
#include <utility>

#include "base/error.h"
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
constexpr std::int64_t kMaxDirectory = 64 << 20, kMaxOwnRecord = 4 << 10;
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

struct Directory {
  std::uint64_t offset = 0, size = 0;
};

// Searched as the zip code does: the last one, followed by at most a comment.
std::optional<Directory> find_directory(const ArchiveSource& source) {
  const std::int64_t tail_size = std::min(source.size, kEndRecord + kLongestComment);
  if (tail_size < kEndRecord) return std::nullopt;
  const Bytes tail(source, source.size - tail_size, tail_size);
  for (std::int64_t at = tail_size - kEndRecord; at >= 0; --at) {
    if (tail.number(at, 4) != 0x06054b50) continue;
    Directory found = {.offset = tail.number(at + 16, 4), .size = tail.number(at + 12, 4)};
    const std::int64_t locator = source.size - tail_size + at - kLocator64;
    if (locator < 0) return found;
    const Bytes where(source, locator, kLocator64);
    if (where.number(0, 4) != 0x07064b50) return found;
    const std::uint64_t end64 = where.number(8, 8);
    if (source.size < kEndRecord64 || end64 > static_cast<std::uint64_t>(source.size - kEndRecord64)) return found;
    const Bytes record(source, static_cast<std::int64_t>(end64), kEndRecord64);
    if (record.number(0, 4) == 0x06064b50) found = {.offset = record.number(48, 8), .size = record.number(40, 8)};
    return found;
  }
  return std::nullopt;
}

// All records except the pickle and the tensors' bytes: version, byte order and the like.
bool is_own_record(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash != std::string_view::npos) name.remove_prefix(slash + 1);
  return name != "data.pkl" && !name.starts_with("data/");
}

void check_entry(const ArchiveSource& source, std::string_view name, std::uint64_t method, std::uint64_t stored,
                 std::uint64_t whole) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(
        fmt::format("{}: the record {} {}, which torch.save never writes", source.name, in_quotes(name), what));
  };
  if (method != 0 || stored != whole) refuse("is compressed");
  if (is_own_record(name) && whole > kMaxOwnRecord) refuse(fmt::format("has {} bytes", whole));
}

// Checks the record directory before libtorch's zip code, which trusts it, allocates memory for the records. DataError
// for an archive with a compressed record, with a large record of libtorch's own, or with a directory larger than any
// valid one. Files that are not zip archives are left to the zip code.
void check_directory(const ArchiveSource& source) {
  const auto found = find_directory(source);
  if (!found) return;
  const auto total = static_cast<std::uint64_t>(source.size);
  if (found->offset > total || found->size > total - found->offset || found->size > kMaxDirectory)
    throw DataError(fmt::format("{} is not an archive of torch.save: it has a directory of {} bytes at byte {} of {}",
                                source.name, found->size, found->offset, total));
  const Bytes entries(source, static_cast<std::int64_t>(found->offset), static_cast<std::int64_t>(found->size));
  for (std::int64_t at = 0; at + kEntry <= entries.size() && entries.number(at, 4) == 0x02014b50;) {
    const auto name_size = static_cast<std::int64_t>(entries.number(at + 28, 2));
    const auto more = static_cast<std::int64_t>(entries.number(at + 30, 2) + entries.number(at + 32, 2));
    if (at + kEntry + name_size + more > entries.size()) return;
    std::uint64_t stored = entries.number(at + 20, 4), whole = entries.number(at + 24, 4);
    // Such an entry keeps both in the extra field. It is a large tensor, which is read by its offset alone.
    if (stored == kIn64 || whole == kIn64) stored = whole = kIn64;
    check_entry(source, entries.text(at + kEntry, name_size), entries.number(at + 10, 2), stored, whole);
    at += kEntry + name_size + more;
  }
}

// libtorch's zip code calls us from C, which exceptions must not cross: they are stored here and rethrown afterwards.
struct HeldError {
  template <class Act>
  bool hold(const Act& act) noexcept {
    if (error_) return false;
    try {
      act();
    } catch (...) {
      error_ = std::current_exception();
    }
    return !error_;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

  std::exception_ptr error_;
};

struct Adapter : caffe2::serialize::ReadAdapterInterface {
  explicit Adapter(ArchiveSource from) : source(std::move(from)) {}
  std::size_t size() const override { return static_cast<std::size_t>(source.size); }
  std::size_t read(std::uint64_t pos, void* buf, std::size_t n, const char*) const override {
    if (pos > size() || n > size() - pos) return 0;
    const std::span<std::byte> to(static_cast<std::byte*>(buf), n);
    return error.hold([&] { source.read(static_cast<std::int64_t>(pos), to); }) ? n : 0;
  }

  ArchiveSource source;
  mutable HeldError error;
};

PickleValue pickle_ints(const std::vector<std::int64_t>& values) {
  std::vector<PickleValue> items;
  for (const std::int64_t value : values) items.push_back(pickle(value));
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

struct ArchiveReader::Zip {
  explicit Zip(ArchiveSource source) : adapter(std::make_shared<Adapter>(std::move(source))) {}

  std::shared_ptr<Adapter> adapter;
  std::optional<caffe2::serialize::PyTorchStreamReader> reader{};

  const std::string& name() const { return adapter->source.name; }

  template <class Act>
  auto guarded(const Act& act) {
    try {
      return act();
    } catch (const c10::Error& e) {
      adapter->error.rethrow();
      throw DataError(fmt::format("{} is not an archive of torch.save: {}", name(), e.what_without_backtrace()));
    }
  }
};

ArchiveReader::ArchiveReader(ArchiveSource source) : zip_(std::make_unique<Zip>(std::move(source))) {
  check_directory(zip_->adapter->source);
  zip_->guarded([&] { zip_->reader.emplace(zip_->adapter); });
}

ArchiveReader::~ArchiveReader() = default;

ArchiveReader::Record ArchiveReader::record(const std::string& name) {
  constexpr std::int64_t kLocalHeader = 30, kMethod = 8;
  const std::int64_t total = zip_->adapter->source.size;
  const auto inside = [&](std::size_t offset, std::int64_t bytes) {
    return bytes >= 0 && bytes <= total && offset <= static_cast<std::size_t>(total - bytes);
  };
  return zip_->guarded([&] {
    const std::size_t header = zip_->reader->getRecordHeaderOffset(name);
    const std::size_t offset = zip_->reader->getRecordOffset(name);
    const auto size = static_cast<std::int64_t>(zip_->reader->getRecordSize(name));
    if (!inside(header, kLocalHeader) || !inside(offset, size))
      throw DataError(fmt::format("{}: the record '{}' points outside of the archive", zip_->name(), name));
    std::array<std::byte, kLocalHeader> bytes{};
    zip_->adapter->source.read(static_cast<std::int64_t>(header), bytes);
    if (bytes[kMethod] != std::byte{0} || bytes[kMethod + 1] != std::byte{0})
      throw DataError(
          fmt::format("{}: the record '{}' is compressed, which torch.save never does", zip_->name(), name));
    return Record{static_cast<std::int64_t>(offset), size};
  });
}

PickleValue ArchiveReader::value() {
  const auto text_of = [&](const std::string& name) {
    const Record at = record(name);
    if (at.size > kMaxPickle)
      throw DataError(fmt::format("{}: the record '{}' has {}, more than any valid record", zip_->name(), name,
                                  readable_bytes(at.size)));
    std::string text(static_cast<std::size_t>(at.size), '\0');
    zip_->adapter->source.read(at.offset, std::as_writable_bytes(std::span(text)));
    return text;
  };
  if (zip_->guarded([&] { return zip_->reader->hasRecord("byteorder"); }) && text_of("byteorder") != "little")
    throw DataError(fmt::format("{} was written on a machine with another byte order", zip_->name()));
  return read_pickle(text_of("data.pkl"), zip_->name(), kNames);
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
  const PickleValue persistent = std::make_shared<const PickleNode>(PickleNode{PicklePersistent{id}});
  const PickleValue no_hooks = pickle_call(pickle_global("collections", "OrderedDict"), {});
  return pickle_call(pickle_global("torch._utils", "_rebuild_tensor_v2"),
                     {persistent, pickle(tensor.storage_offset), pickle_ints(tensor.shape), pickle_ints(tensor.strides),
                      pickle(false), no_hooks});
}

void write_archive(const PickleValue& value, std::optional<std::span<const std::byte>> storage,
                   const ArchiveSink& sink) {
  const std::string pickle = write_pickle(value);
  constexpr std::string_view kByteOrder = "little";
  HeldError error;
  // After an error the rest is discarded: PyTorchStreamWriter's destructor ends the program if a write fails.
  const auto write = [&](const void* data, std::size_t n) {
    error.hold([&] { sink({static_cast<const std::byte*>(data), n}); });
    return n;
  };
  {
    // torch.load ignores the zip's CRC-32, which would take longer than everything else.
    caffe2::serialize::PyTorchStreamWriter writer(write, /*compute_crc32=*/!storage);
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    writer.writeRecord("byteorder", kByteOrder.data(), kByteOrder.size());
    if (storage) writer.writeRecord("data/0", storage->data(), storage->size());
    writer.writeEndOfFile();
  }
  error.rethrow();
}

std::string write_archive(const PickleValue& value) {
  std::string bytes;
  write_archive(value, std::nullopt, [&](std::span<const std::byte> part) {
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  });
  return bytes;
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
