// The state of a stream of samples as compact bytes, in which numbers are variable-length integers, and sealed for a
// checkpoint: with what it depends on, and a checksum.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace braid {

struct Blend;

// Each stream names its numbers once, in a function that both writes and reads them.
class StreamState {
 public:
  StreamState() = default;  // writes
  explicit StreamState(std::string bytes) : reads_(true), bytes_(std::move(bytes)) {}

  bool reads() const { return reads_; }
  // Writes the value or replaces it. When reading, a DataError if the bytes end or the value is larger than `most`.
  void number(std::integral auto& value, std::uint64_t most) {
    if (reads_)
      value = static_cast<std::remove_reference_t<decltype(value)>>(read(most));
    else
      write(static_cast<std::uint64_t>(value));
  }
  void text(std::string& value);
  void expect_end() const;
  const std::string& bytes() const { return bytes_; }

 private:
  std::uint64_t read(std::uint64_t most);
  void write(std::uint64_t value);

  bool reads_ = false;
  std::string bytes_{};
  std::size_t at_ = 0;  // how many of them are read
};

// Names and values of all that a state depends on. Data sets may move, so their paths are only names.
using LaneIdentity = std::vector<std::pair<std::string, std::string>>;

// In hexadecimal digits, which any file can hold.
std::string seal_state(LaneIdentity identity, const StreamState& state);

// What a sealed state depends on. DataError if it is damaged.
LaneIdentity stored_identity(std::string_view sealed);

// The state in a sealed one. ConfigError that names the difference if it depends on something else, DataError if it is
// damaged.
StreamState open_state(const LaneIdentity& identity, std::string_view sealed);

// Which sample of a blend an order names.
struct SampleRef {
  std::uint32_t leaf = 0;   // in Blend::leaves
  std::uint32_t shard = 0;  // in its DataSet::shards
  std::int64_t index = 0;   // in the shard
  std::uint64_t epoch = 0;  // how often the worker had completed its share of the leaf

  auto operator<=>(const SampleRef&) const = default;
};

// DataError unless the blend has the sample.
void serialize(StreamState& state, SampleRef& ref, const Blend& blend);
// At most `most` of them.
void serialize(StreamState& state, std::vector<SampleRef>& refs, std::uint64_t most, const Blend& blend);

}  // namespace braid
