#include "data/shards/stream_state.h"

#include "base/error.h"

namespace braid {

void StateWriter::number(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
  bytes_ += static_cast<char>(value);
}

void StateWriter::text(std::string_view value) {
  number(value.size());
  bytes_ += value;
}

std::uint64_t StateReader::number(std::uint64_t most) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) throw DataError("the state of a data stream is cut off");
    const auto byte = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  if (value > most)
    throw DataError(fmt::format("the state of a data stream has {} where at most {} is possible", value, most));
  return value;
}

void StateReader::expect_end() const {
  if (!rest_.empty()) throw DataError("the state of a data lane is damaged: it is too long");
}

std::string_view StateReader::text() {
  const std::size_t size = number(rest_.size());
  if (size > rest_.size()) throw DataError("the state of a data stream is cut off");
  const std::string_view value = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return value;
}

}  // namespace braid
