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

constexpr std::string_view kDigits = "0123456789abcdef";

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const std::size_t high = kDigits.find(text[i]), low = kDigits.find(text[i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) throw DataError("the state of a data lane is damaged");
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

constexpr const char* kWayOn = "to read the data from its start: checkpoint.load_data=false";

// At the identity, in a state whose checksum is right.
StreamState reader_of(std::string_view text) {
  const std::string sealed = from_hex(text);
  if (sealed.size() < kMagic.size() + kChecksumBytes || !sealed.starts_with(kMagic))
    throw DataError(
        fmt::format("this is not the state of a data lane, or it is from another version of braid; {}", kWayOn));
  const std::string bytes = sealed.substr(0, sealed.size() - kChecksumBytes);
  if (checksum_of(bytes) != sealed.substr(bytes.size()))
    throw DataError(fmt::format("the state of a data lane is damaged: its checksum is wrong; {}", kWayOn));
  return StreamState(bytes.substr(kMagic.size()));
}

void serialize(StreamState& state, LaneIdentity& identity) {
  std::uint64_t size = identity.size();
  state.number(size, UINT64_MAX);
  for (std::uint64_t i = 0; i < size; ++i) {
    if (state.reads()) identity.emplace_back();
    state.text(identity[i].first);
    state.text(identity[i].second);
  }
}

}  // namespace

void StreamState::write(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
  bytes_ += static_cast<char>(value);
}

std::uint64_t StreamState::read(std::uint64_t most) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ == bytes_.size()) throw DataError("the state of a data stream is cut off");
    const auto byte = static_cast<std::uint8_t>(bytes_[at_++]);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  if (value > most)
    throw DataError(fmt::format("the state of a data stream has {} where at most {} is possible", value, most));
  return value;
}

void StreamState::text(std::string& value) {
  std::uint64_t size = value.size();
  number(size, bytes_.size());
  if (!reads_) {
    bytes_ += value;
    return;
  }
  if (size > bytes_.size() - at_) throw DataError("the state of a data stream is cut off");
  value = bytes_.substr(at_, size);
  at_ += size;
}

void StreamState::expect_end() const {
  if (at_ != bytes_.size()) throw DataError("the state of a data lane is damaged: it is too long");
}

std::string seal_state(LaneIdentity identity, const StreamState& state) {
  StreamState head;
  serialize(head, identity);
  const std::string bytes = std::string(kMagic) + head.bytes() + state.bytes();
  return to_hex(bytes + checksum_of(bytes));
}

LaneIdentity stored_identity(std::string_view sealed) {
  StreamState state = reader_of(sealed);
  LaneIdentity identity;
  serialize(state, identity);
  return identity;
}

StreamState open_state(const LaneIdentity& identity, std::string_view sealed) {
  StreamState state = reader_of(sealed);
  LaneIdentity stored;
  serialize(state, stored);
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
  return state;
}

void serialize(StreamState& state, SampleRef& ref, const Blend& blend) {
  state.number(ref.leaf, blend.leaves.size() - 1);
  const std::vector<Shard>& shards = blend.leaves[ref.leaf].data.shards;
  state.number(ref.shard, shards.size() - 1);
  const Shard& shard = shards[ref.shard];
  if (shard.samples == 0)
    throw DataError(
        fmt::format("the state of a data stream names a sample of shard {}, which has none", in_quotes(shard.name)));
  state.number(ref.index, static_cast<std::uint64_t>(shard.samples) - 1);
  state.number(ref.epoch, UINT64_MAX);
}

void serialize(StreamState& state, std::vector<SampleRef>& refs, std::uint64_t most, const Blend& blend) {
  std::uint64_t size = refs.size();
  state.number(size, most);
  if (state.reads()) refs.clear();
  for (std::uint64_t i = 0; i < size; ++i) {
    if (state.reads()) refs.emplace_back();
    serialize(state, refs[i], blend);
  }
}

}  // namespace braid
