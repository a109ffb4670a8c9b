#include "log/event_file.h"

#include <unistd.h>

#include <bit>
#include <chrono>
#include <filesystem>
#include <span>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/socket.h"
#include "log/append_only_file.h"

namespace braid {
namespace {

template <class Unsigned>
void put_little_endian(std::string& out, Unsigned value) {
  for (std::size_t byte = 0; byte < sizeof(value); ++byte) out += static_cast<char>(value >> (8 * byte) & 0xff);
}

// Protobuf: a field is a key (number * 8 + wire type), then its value in the form the wire type names.
enum WireType : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint64_t field, WireType type) { put_varint(out, field << 3 | type); }

void put_int64(std::string& out, std::uint64_t field, std::int64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, static_cast<std::uint64_t>(value));
}

void put_double(std::string& out, std::uint64_t field, double value) {
  put_key(out, field, kFixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(value));
}

void put_float(std::string& out, std::uint64_t field, float value) {
  put_key(out, field, kFixed32);
  put_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

void put_bytes(std::string& out, std::uint64_t field, std::string_view value) {
  put_key(out, field, kBytes);
  put_varint(out, value.size());
  out += value;
}

// TFRecord masks its checksums, since the CRC of data that holds its own CRC is a constant.
std::uint32_t masked_crc32c(std::string_view data) {
  return std::rotr(crc32c(std::as_bytes(std::span(data))), 15) + 0xa282ead8u;
}

void put_record(std::string& out, std::string_view data) {
  std::string length;
  put_little_endian(length, static_cast<std::uint64_t>(data.size()));
  out += length;
  put_little_endian(out, masked_crc32c(length));
  out += data;
  put_little_endian(out, masked_crc32c(data));
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Files that one process starts in the same second differ in n, so they sort in the order of their start.
std::unique_ptr<AppendOnlyFile> new_file_in(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const std::string start = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", folder,
                                        static_cast<std::int64_t>(wall_seconds()), host_name(), ::getpid());
  int n = 0;
  while (std::filesystem::exists(fmt::format("{}.{}", start, n))) ++n;
  return std::make_unique<AppendOnlyFile>(fmt::format("{}.{}", start, n), AppendOnlyFile::Start::New);
}

}  // namespace

EventFile::EventFile(const std::string& folder) : file_(new_file_in(folder)) {
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
  std::string summary_value;
  put_bytes(summary_value, 1, tag);                        // Summary.Value.tag
  put_float(summary_value, 2, static_cast<float>(value));  // Summary.Value.simple_value
  std::string summary;
  put_bytes(summary, 1, summary_value);  // Summary.value
  std::string fields;
  put_int64(fields, 2, step);     // Event.step
  put_bytes(fields, 5, summary);  // Event.summary
  add_event(fields);
}

void EventFile::add_event(std::string_view fields) {
  std::string event;
  put_double(event, 1, wall_seconds());  // Event.wall_time
  put_record(pending_, event.append(fields));
}

void EventFile::flush() { file_->append(std::exchange(pending_, {})); }

const std::string& EventFile::path() const { return file_->path(); }

}  // namespace braid
