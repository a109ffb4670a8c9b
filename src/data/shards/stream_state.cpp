#include "data/shards/stream_state.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/strings.h"
#include "data/shards/metadataset.h"

namespace braid {
namespace {

constexpr std::string_view kMagic = "BRLANE04";
constexpr std::size_t kChecksumBytes = 4;

std::string checksum_of(std::string_view bytes) {
  const std::uint32_t value = crc32c(std::as_bytes(std::span(bytes)));
  std::string text;
  for (std::size_t i = 0; i < kChecksumBytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

constexpr const char* kWayOn = "to read the data from its start: checkpoint.load_data=false";

// At the identity, in a state whose checksum is right.
StateReader reader_of(std::string_view sealed) {
  if (sealed.size() < kMagic.size() + kChecksumBytes || !sealed.starts_with(kMagic))
    throw DataError(
        fmt::format("this is not the state of a data lane, or it is from another version of braid; {}", kWayOn));
  const std::string_view bytes = sealed.substr(0, sealed.size() - kChecksumBytes);
  if (checksum_of(bytes) != sealed.substr(bytes.size()))
    throw DataError(fmt::format("the state of a data lane is damaged: its checksum is wrong; {}", kWayOn));
  return StateReader(bytes.substr(kMagic.size()));
}

LaneIdentity read_identity(StateReader& reader) {
  LaneIdentity identity;
  for (std::uint64_t left = reader.number(UINT64_MAX); left > 0; --left) {
    std::string name(reader.text());
    identity.emplace_back(std::move(name), std::string(reader.text()));
  }
  return identity;
}

}  // namespace

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

LaneIdentity stored_identity(std::string_view sealed) {
  StateReader reader = reader_of(sealed);
  return read_identity(reader);
}

StateReader open_state(const LaneIdentity& identity, std::string_view sealed) {
  StateReader reader = reader_of(sealed);
  const LaneIdentity stored = read_identity(reader);
  if (stored.size() != identity.size())
    throw DataError(
        fmt::format("the state of a data lane depends on {} settings, not {}: it is from another version of braid; {}",
                    stored.size(), identity.size(), kWayOn));
  for (std::size_t i = 0; i < identity.size(); ++i) {
    const auto& [name, value] = identity[i];
    if (value != stored[i].second)
      throw ConfigError(
          {fmt::format("{} has changed since the state was saved: {} then, {} now", name, stored[i].second, value),
           name, "use the same data and settings, or read the data from its start: checkpoint.load_data=false"});
  }
  return reader;
}

void save_ref(StateWriter& state, const SampleRef& ref) {
  state.number(ref.leaf);
  state.number(ref.shard);
  state.number(static_cast<std::uint64_t>(ref.index));
  state.number(ref.epoch);
}

SampleRef restore_ref(StateReader& state, const Blend& blend) {
  SampleRef ref;
  ref.leaf = static_cast<std::uint32_t>(state.number(blend.leaves.size() - 1));
  const std::vector<Shard>& shards = blend.leaves[ref.leaf].data.shards;
  ref.shard = static_cast<std::uint32_t>(state.number(shards.size() - 1));
  const Shard& shard = shards[ref.shard];
  if (shard.samples == 0)
    throw DataError(
        fmt::format("the state of a data stream names a sample of shard {}, which has none", in_quotes(shard.name)));
  ref.index = static_cast<std::int64_t>(state.number(static_cast<std::uint64_t>(shard.samples) - 1));
  ref.epoch = state.number(UINT64_MAX);
  return ref;
}

}  // namespace braid
