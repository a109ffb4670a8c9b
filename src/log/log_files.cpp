#include "log/log_files.h"
#include <concepts>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include "base/crc32c.h"
#include "base/strings.h"

namespace braid {
namespace {

// Protobuf: a field is a key (number * 8 + wire type), then its value in the form the wire type names.
enum WireType : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// TFRecord masks its checksums, since the CRC of data that holds its own CRC is a constant.
std::uint32_t masked_crc32c(std::string_view data) {
  return std::rotr(crc32c(std::as_bytes(std::span(data))), 15) + 0xa282ead8u;
}

void put_little_endian(std::string& out, std::unsigned_integral auto value) {
  for (std::size_t byte = 0; byte < sizeof(value); ++byte) out += static_cast<char>(value >> (8 * byte) & 0xff);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint64_t field, WireType type) { put_varint(out, field << 3 | type); }

void put_bytes(std::string& out, std::uint64_t field, std::string_view value) {
  put_key(out, field, kBytes);
  put_varint(out, value.size());
  out += value;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Files that one process starts in the same second differ in n, so they sort in the order of their start.
std::string new_path_in(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const std::string start = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", folder,
                                        static_cast<std::int64_t>(wall_seconds()), host_name(), ::getpid());
  int n = 0;
  while (std::filesystem::exists(fmt::format("{}.{}", start, n))) ++n;
  return fmt::format("{}.{}", start, n);
}

template <std::unsigned_integral Unsigned>
Unsigned little_endian(std::string_view bytes) {
  Unsigned value = 0;
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i)
    value |= static_cast<Unsigned>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

std::optional<std::uint64_t> take_varint(std::string_view& rest) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 10 && i < rest.size(); ++i) {
    const auto byte = static_cast<unsigned char>(rest[i]);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << (7 * i);
    if (byte & 0x80) continue;
    rest.remove_prefix(i + 1);
    return value;
  }
  return std::nullopt;
}

// Calls visit(number, integer, bytes) for each field of a protobuf message, up to the first that cannot be read.
// `integer`: the value of a varint, or the bits of a fixed32 or fixed64. `bytes`: those of texts and nested messages.
template <class Visit>
void for_each_field(std::string_view message, const Visit& visit) {
  while (const auto key = take_varint(message)) {
    const std::uint64_t type = *key & 7;
    std::uint64_t integer = 0, size = type == kFixed64 ? 8 : type == kFixed32 ? 4 : 0;
    if (type == kVarint || type == kBytes) {
      const auto value = take_varint(message);
      if (!value) return;
      (type == kVarint ? integer : size) = *value;
    } else if (size == 0) {
      return;
    }
    if (size > message.size()) return;
    const std::string_view bytes = message.substr(0, size);
    message.remove_prefix(size);
    if (type == kFixed64) integer = little_endian<std::uint64_t>(bytes);
    if (type == kFixed32) integer = little_endian<std::uint32_t>(bytes);
    visit(*key >> 3, integer, type == kBytes ? bytes : std::string_view());
  }
}

double as_float(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }

// PyTorch's SummaryWriter stores a scalar as simple_value; TensorFlow, and PyTorch on request, as a tensor with one
// number. TensorProto: dtype 1, tensor_content 4, float_val 5, double_val 6; the latter may be packed.
std::optional<double> tensor_value(std::string_view tensor) {
  constexpr std::uint64_t kFloat = 1, kDouble = 2;
  std::uint64_t dtype = 0;
  std::optional<double> value;
  for_each_field(tensor, [&](std::uint64_t number, std::uint64_t integer, std::string_view bytes) {
    if (number == 1) dtype = integer;
    const bool is_float = number == 5 || (number == 4 && dtype == kFloat);
    const bool is_double = number == 6 || (number == 4 && dtype == kDouble);
    if (value || !(is_float || is_double)) return;
    if (is_float && bytes.size() == 4) value = as_float(little_endian<std::uint32_t>(bytes));
    if (is_double && bytes.size() == 8) value = std::bit_cast<double>(little_endian<std::uint64_t>(bytes));
    if (bytes.empty() && number != 4) value = is_float ? as_float(integer) : std::bit_cast<double>(integer);
  });
  return value;
}

// Summary.Value: tag 1, simple_value 2, tensor 8.
void add_value(std::string_view message, ScalarEvent scalar, std::vector<ScalarEvent>& scalars) {
  std::optional<double> value;
  for_each_field(message, [&](std::uint64_t number, std::uint64_t integer, std::string_view bytes) {
    if (number == 1) scalar.tag = bytes;
    if (number == 2) value = as_float(integer);
    if (number == 8) value = tensor_value(bytes);
  });
  if (!value) return;
  scalar.value = *value;
  scalars.push_back(std::move(scalar));
}

// Event: wall_time 1, step 2, summary 5, which has values as 1.
void add_scalars(std::string_view message, std::vector<ScalarEvent>& scalars) {
  ScalarEvent event;
  std::string_view summary;
  for_each_field(message, [&](std::uint64_t number, std::uint64_t integer, std::string_view bytes) {
    if (number == 1) event.wall_time = std::bit_cast<double>(integer);
    if (number == 2) event.step = static_cast<std::int64_t>(integer);
    if (number == 5) summary = bytes;
  });
  for_each_field(summary, [&](std::uint64_t number, std::uint64_t, std::string_view bytes) {
    if (number == 1) add_value(bytes, event, scalars);
  });
}

}  // namespace

AppendOnlyFile::AppendOnlyFile(std::string path, Start start) : path_(std::move(path)) {
  fd_ = Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (start == Start::New ? O_EXCL : 0), 0666));
  if (!fd_) throw_errno(fmt::format("cannot open '{}' for writing", path_));
  size_ = ::lseek(fd_.get(), 0, SEEK_END);
  if (size_ < 0) throw_errno(fmt::format("'{}' is not a regular file", path_));
  if (start != Start::Empty) return;
  // The lock lasts while this process has the file open. File systems without locks give no protection.
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw ConfigError({fmt::format("another run writes '{}' now", path_), path_,
                       "wait until it ends, or give this run another folder"});
  if (::ftruncate(fd_.get(), 0) != 0) throw_errno(fmt::format("cannot empty '{}'", path_));
  size_ = 0;
}

void AppendOnlyFile::append(std::string_view text, std::string_view ending) {
  const std::string bytes = std::string(text).append(ending);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written =
        ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, size_ + static_cast<std::int64_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) take_back(ending);
    done += static_cast<std::size_t>(written);
  }
  size_ += static_cast<std::int64_t>(text.size());
}

// Restores the file's contents from before the text that did not fit.
void AppendOnlyFile::take_back(std::string_view ending) {
  const int reason = errno;
  const bool is_back =
      ::ftruncate(fd_.get(), size_) == 0 && ::pwrite(fd_.get(), ending.data(), ending.size(), size_) >= 0;
  errno = is_back ? reason : errno;
  throw_errno(fmt::format("cannot write '{}'", path_));
}

char AppendOnlyFile::last_char() const {
  char last = 0;
  if (::pread(fd_.get(), &last, 1, size_ - 1) != 1) throw_errno(fmt::format("cannot read '{}'", path_));
  return last;
}

EventFile::EventFile(const std::string& folder) : file_(new_path_in(folder), AppendOnlyFile::Start::New) {
  std::string fields;
  put_bytes(fields, 3, "brain.Event:2");  // Event.file_version
  add_event(fields);
  flush();
}

EventFile::~EventFile() {
  try {
    flush();
  } catch (const std::exception&) {  // e.g. a full disk; explicit flushes report such errors
  }
}

void EventFile::add_scalar(std::string_view tag, double value, std::int64_t step) {
  std::string summary_value, summary, fields;
  put_bytes(summary_value, 1, tag);     // Summary.Value.tag
  put_key(summary_value, 2, kFixed32);  // Summary.Value.simple_value
  put_little_endian(summary_value, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  put_bytes(summary, 1, summary_value);  // Summary.value
  put_key(fields, 2, kVarint);           // Event.step
  put_varint(fields, static_cast<std::uint64_t>(step));
  put_bytes(fields, 5, summary);  // Event.summary
  add_event(fields);
}

void EventFile::add_event(std::string_view fields) {
  std::string event;
  put_key(event, 1, kFixed64);  // Event.wall_time
  put_little_endian(event, std::bit_cast<std::uint64_t>(wall_seconds()));
  event += fields;
  std::string length;
  put_little_endian(length, std::uint64_t{event.size()});
  pending_ += length;
  put_little_endian(pending_, masked_crc32c(length));
  pending_ += event;
  put_little_endian(pending_, masked_crc32c(event));
}

void EventFile::flush() { file_.append(std::exchange(pending_, {})); }

EventFileContents parse_events(std::string_view bytes) {
  constexpr std::size_t kHeader = 12, kFooter = 4;  // length and its checksum; checksum of the data
  EventFileContents contents;
  while (!bytes.empty()) {
    contents.cut = true;  // until the record proves to be complete
    if (bytes.size() < kHeader) break;
    const auto size = little_endian<std::uint64_t>(bytes);
    if (masked_crc32c(bytes.substr(0, 8)) != little_endian<std::uint32_t>(bytes.substr(8))) break;
    if (size > bytes.size() - kHeader || bytes.size() - kHeader - size < kFooter) break;
    const std::string_view data = bytes.substr(kHeader, size);
    bytes.remove_prefix(kHeader + data.size());
    if (masked_crc32c(data) != little_endian<std::uint32_t>(bytes)) break;
    bytes.remove_prefix(kFooter);
    add_scalars(data, contents.scalars);
    contents.cut = false;
  }
  return contents;
}

EventFileContents read_events(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw DataError(fmt::format("cannot read {}", in_quotes(path)));
  return parse_events(bytes);
}

}  // namespace braid
