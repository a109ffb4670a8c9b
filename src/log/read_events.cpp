#include "log/read_events.h"

#include <fmt/format.h>

#include <bit>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

template <class Unsigned>
Unsigned little_endian(std::string_view bytes) {
  Unsigned value = 0;
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i)
    value |= static_cast<Unsigned>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

// Iterates over the fields of a protobuf message. Nested messages are returned as bytes.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t integer = 0;  // the value of a varint, or the bits of a fixed32 or fixed64
  std::string_view bytes{};
};

class MessageFields {
 public:
  explicit MessageFields(std::string_view message) : rest_(message) {}

  // Empty at the end, and as soon as a field cannot be read.
  std::optional<Field> next() {
    const auto key = varint();
    if (!key) return std::nullopt;
    Field field{.number = *key >> 3};
    switch (*key & 7) {
      case 0: {
        const auto value = varint();
        if (!value) return std::nullopt;
        field.integer = *value;
        return field;
      }
      case 1:
        return fixed<std::uint64_t>(field);
      case 2: {
        const auto size = varint();
        if (!size || *size > rest_.size()) return std::nullopt;
        field.bytes = rest_.substr(0, static_cast<std::size_t>(*size));
        rest_.remove_prefix(static_cast<std::size_t>(*size));
        return field;
      }
      case 5:
        return fixed<std::uint32_t>(field);
      default:
        return std::nullopt;
    }
  }

 private:
  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 10 && i < rest_.size(); ++i) {
      const auto byte = static_cast<unsigned char>(rest_[i]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << (7 * i);
      if (byte & 0x80) continue;
      rest_.remove_prefix(i + 1);
      return value;
    }
    return std::nullopt;
  }

  template <class Unsigned>
  std::optional<Field> fixed(Field field) {
    if (rest_.size() < sizeof(Unsigned)) return std::nullopt;
    field.integer = little_endian<Unsigned>(rest_);
    rest_.remove_prefix(sizeof(Unsigned));
    return field;
  }

  std::string_view rest_;
};

double as_float(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }

// PyTorch's SummaryWriter stores a scalar as simple_value, newer TensorFlow as a tensor with one float.
std::optional<double> tensor_value(std::string_view tensor) {
  MessageFields fields(tensor);
  while (const auto field = fields.next()) {
    if (field->number == 5 && field->bytes.size() == 4) return as_float(little_endian<std::uint32_t>(field->bytes));
    if (field->number == 5 && field->bytes.empty()) return as_float(field->integer);
  }
  return std::nullopt;
}

// Summary.Value: tag 1, simple_value 2, tensor 8.
void add_value(std::string_view message, const ScalarEvent& event, std::vector<ScalarEvent>& scalars) {
  ScalarEvent scalar = event;
  std::optional<double> value;
  MessageFields fields(message);
  while (const auto field = fields.next()) {
    if (field->number == 1) scalar.tag = field->bytes;
    if (field->number == 2) value = as_float(field->integer);
    if (field->number == 8) value = tensor_value(field->bytes);
  }
  if (!value) return;
  scalar.value = *value;
  scalars.push_back(std::move(scalar));
}

// Event: wall_time 1, step 2, summary 5.
void add_event(std::string_view message, std::vector<ScalarEvent>& scalars) {
  ScalarEvent event;
  std::string_view summary;
  MessageFields fields(message);
  while (const auto field = fields.next()) {
    if (field->number == 1) event.wall_time = std::bit_cast<double>(field->integer);
    if (field->number == 2) event.step = static_cast<std::int64_t>(field->integer);
    if (field->number == 5) summary = field->bytes;
  }
  MessageFields values(summary);
  while (const auto value = values.next())
    if (value->number == 1) add_value(value->bytes, event, scalars);
}

std::uint32_t masked_crc32c(std::string_view data) {
  return std::rotr(crc32c(std::as_bytes(std::span(data))), 15) + 0xa282ead8u;
}

}  // namespace

EventFileContents parse_events(std::string_view bytes) {
  constexpr std::size_t kHeader = 12, kFooter = 4;  // length and its checksum; checksum of the data
  EventFileContents contents;
  while (!bytes.empty()) {
    contents.cut = true;  // until the record proves to be complete
    if (bytes.size() < kHeader) break;
    const auto size = little_endian<std::uint64_t>(bytes);
    if (masked_crc32c(bytes.substr(0, 8)) != little_endian<std::uint32_t>(bytes.substr(8))) break;
    if (size > bytes.size() - kHeader || bytes.size() - kHeader - size < kFooter) break;
    const std::string_view data = bytes.substr(kHeader, static_cast<std::size_t>(size));
    bytes.remove_prefix(kHeader + data.size());
    if (masked_crc32c(data) != little_endian<std::uint32_t>(bytes)) break;
    bytes.remove_prefix(kFooter);
    add_event(data, contents.scalars);
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
