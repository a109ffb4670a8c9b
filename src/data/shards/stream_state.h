// The state of a stream of samples as compact bytes, in which numbers are variable-length integers, and sealed for a
// checkpoint: with what it depends on, and a checksum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

struct Blend;

class StateWriter {
 public:
  void number(std::uint64_t value);
  void text(std::string_view value);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Each call is a DataError when the bytes end or the value is out of bounds.
class StateReader {
 public:
  explicit StateReader(std::string_view bytes) : rest_(bytes) {}
  std::uint64_t number(std::uint64_t most);
  std::string_view text();
  void expect_end() const;

 private:
  std::string_view rest_;
};

// Names and values of all that a state depends on. Data sets may move, so their paths are only names.
using LaneIdentity = std::vector<std::pair<std::string, std::string>>;

std::string seal_state(const LaneIdentity& identity, const StateWriter& state);

// What a sealed state depends on. DataError if it is damaged.
LaneIdentity stored_identity(std::string_view sealed);

// The state in a sealed one, which must outlive the result. ConfigError that names the difference if it depends on
// something else, DataError if it is damaged.
StateReader open_state(const LaneIdentity& identity, std::string_view sealed);

// Which sample of a blend an order names.
struct SampleRef {
  std::uint32_t leaf = 0;   // in Blend::leaves
  std::uint32_t shard = 0;  // in its DataSet::shards
  std::int64_t index = 0;   // in the shard
  std::uint64_t epoch = 0;  // how often the worker had completed its share of the leaf

  bool operator==(const SampleRef&) const = default;
};

void save_ref(StateWriter& state, const SampleRef& ref);
// DataError unless the blend has the sample.
SampleRef restore_ref(StateReader& state, const Blend& blend);

}  // namespace braid
