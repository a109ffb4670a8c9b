#include "shards/lane_state.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/crc32c.h"
#include "base/error.h"

namespace braid {
namespace {

constexpr std::string_view kMagic = "BRLANE02";
constexpr std::size_t kChecksumBytes = 4;

std::string checksum_of(std::string_view bytes) {
  const std::uint32_t value = crc32c(std::as_bytes(std::span(bytes)));
  std::string text;
  for (std::size_t i = 0; i < kChecksumBytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

}  // namespace

std::string seal_state(const LaneIdentity& identity, const StateWriter& state) {
  StateWriter head;
  head.number(identity.size());
  for (const auto& [name, value] : identity) {
    head.text(name);
    head.text(value);
  }
  const std::string bytes = std::string(kMagic) + head.bytes() + state.bytes();
  return bytes + checksum_of(bytes);
}

StateReader open_state(const LaneIdentity& identity, std::string_view sealed) {
  if (sealed.size() < kMagic.size() + kChecksumBytes || !sealed.starts_with(kMagic))
    throw DataError("this is not the state of a data lane, or it is from another version of braid");
  const std::string_view bytes = sealed.substr(0, sealed.size() - kChecksumBytes);
  if (checksum_of(bytes) != sealed.substr(bytes.size()))
    throw DataError("the state of a data lane is damaged: its checksum is wrong");
  StateReader reader(bytes.substr(kMagic.size()));
  const std::uint64_t stored = reader.number(UINT64_MAX);
  for (std::size_t i = 0; i < std::min<std::uint64_t>(stored, identity.size()); ++i) {
    const auto name = reader.text(), value = reader.text();
    if (value != identity[i].second)
      throw ConfigError(
          {fmt::format("{} has changed since the state was saved: {} then, {} now", identity[i].first, value,
                       identity[i].second),
           std::string(name),
           "use the same data and settings, or read the data from its start: checkpoint.load_data=false"});
  }
  if (stored != identity.size())
    throw DataError(
        fmt::format("the state of a data lane depends on {} settings, not {}: it is from another version of braid",
                    stored, identity.size()));
  return reader;
}

}  // namespace braid
