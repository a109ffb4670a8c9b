// The samples of one lane, in Energon's order: pure order, no bytes are read. A lane is what Energon calls a rank: one
// of several readers that share the samples of a blend. It has several workers and takes their samples in turn. The
// order of a worker is a stack of small streams:
//
//   leaf_stream ... leaf_stream    slices of one data set, several read at a time
//        repeated_stream           epochs
//        blended_stream            or joined_stream when evaluating
//        shuffled_stream
//
// And reading the samples that an order refers to.
#pragma once

#include <compare>
#include <concepts>
#include <list>
#include "base/error.h"
#include "data/shards/data_set.h"
#include "data/shards/shard.h"

namespace braid {

// The state of a stream as compact bytes, in which numbers are variable-length integers. Each stream names its numbers
// once, in a function that both writes and reads them.
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
  // A list of at most `most` items.
  void list(auto& items, std::uint64_t most, const auto& serialize_item) {
    std::uint64_t size = items.size();
    number(size, most);
    if (reads_) items.clear();
    for (std::uint64_t i = 0; i < size; ++i) serialize_item(reads_ ? items.emplace_back() : items[i]);
  }
  void expect_end() const {
    if (at_ != bytes_.size()) throw DataError("the state of a data lane is damaged: it is too long");
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::uint64_t read(std::uint64_t most);
  void write(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  bool reads_ = false;
  std::string bytes_{};
  std::size_t at_ = 0;  // how many of them are read
};

// Names and values of all that a state depends on. Data sets may move, so their paths are only names.
using LaneIdentity = std::vector<std::pair<std::string, std::string>>;

// The state with what it depends on and a checksum, in hexadecimal digits, which any file can hold.
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

template <class Item>
class Stream {
 public:
  virtual ~Stream() = default;
  // Returns nothing at the end of an epoch; the call after that starts the next one.
  virtual std::optional<Item> next() = 0;
  // Writes or reads the state. A stream built alike then continues exactly there. DataError on impossible values.
  virtual void serialize(StreamState& state) = 0;
};

class SampleStream : public Stream<SampleRef> {
 public:
  SampleStream(bool has_samples, std::int64_t samples) : has_samples(has_samples), samples(samples) {}
  const bool has_samples;
  const std::int64_t samples;  // of an epoch, those excluded by split.yaml included
};
using StreamPtr = std::unique_ptr<SampleStream>;

// Slices of one leaf: up to `parallel` at a time, in a shuffled order; each next sample is from one of them by chance,
// in proportion to their lengths.
struct LeafOptions {
  std::uint32_t leaf = 0;
  std::vector<std::int64_t> borders{};  // of the slices; empty: the worker has no samples
  ShuffleEpochs shuffle_epochs = 1;
  std::size_t parallel = 16;  // 1 without shuffling
  std::uint32_t seed = 0;
};
StreamPtr leaf_stream(std::shared_ptr<const DataSet> data, LeafOptions options);

// Which samples of a data set each worker reads, as in Energon: all workers get an equal consecutive share, cut into
// slices at shard borders. Depends only on the total number of workers, not on how ranks group them.

using SampleSpan = std::pair<std::int64_t, std::int64_t>;  // begin, end

// first .. first + n - 1 such that every prefix is spread evenly: for powers of two, with the bits of each index
// reversed.
std::vector<std::int64_t> bit_reversal(std::int64_t n, std::int64_t first = 0);

// The range of one worker. `order` is the bit_reversal() of the number of workers: the samples that remain after
// division go to workers in this order, starting after the first `rotation` of it.
SampleSpan worker_range(SampleSpan samples, const std::vector<std::int64_t>& order, std::int64_t rotation,
                        std::int64_t worker);

// The borders of slices of `range`: none crosses a border of `shard_starts`, and each has about `longest` samples.
// Empty if the range is.
std::vector<std::int64_t> slice_borders(SampleSpan range, const std::vector<std::int64_t>& shard_starts,
                                        std::optional<std::int64_t> longest);

// Takes items from several streams in turn, and skips those that have ended.
template <class Item>
class InTurn {
 public:
  // Returns nothing when all streams have ended; the call after that starts again.
  std::optional<Item> next() {
    for (std::size_t tried = 0; tried < streams_.size(); ++tried) {
      auto& [stream, has_ended] = streams_[turn_];
      turn_ = (turn_ + 1) % streams_.size();
      if (has_ended) continue;
      if (auto item = stream->next()) return item;
      has_ended = true;
    }
    for (auto& [stream, has_ended] : streams_) has_ended = false;
    turn_ = 0;
    return std::nullopt;
  }

  // restore() continues exactly where save() was called. It refuses the state of other settings or a changed data set
  // with a ConfigError that names the difference, damage with a DataError.
  std::string save() {
    StreamState state;
    serialize(state);
    return seal_state(identity_, state);
  }

  void restore(std::string_view sealed) {
    StreamState state = open_state(identity_, sealed);
    serialize(state);
    state.expect_end();
  }

 protected:
  explicit InTurn(LaneIdentity identity) : identity_(std::move(identity)) {}
  void add(std::unique_ptr<Stream<Item>> stream) { streams_.emplace_back(std::move(stream), false); }

 private:
  void serialize(StreamState& state) {
    state.number(turn_, streams_.size() - 1);
    for (auto& [stream, has_ended] : streams_) {
      state.number(has_ended, 1);
      stream->serialize(state);
    }
  }

  const LaneIdentity identity_;  // what the streams depend on
  std::vector<std::pair<std::unique_ptr<Stream<Item>>, bool>> streams_{};
  std::size_t turn_ = 0;
};

struct OrderConfig {
  int lanes = 1;
  int workers = 1;  // of each lane; 0 means 1, as in Energon
  std::int64_t seed = 0;
  bool is_training = true;                                 // otherwise each sample once, in the order of the shards
  std::int64_t shuffle_buffer = 0;                         // samples per worker; below 2: none
  std::optional<std::int64_t> max_samples_per_sequence{};  // how many are read in a row; nothing: a shard's
};

// The order of one worker, counted over all lanes. ConfigError when it would have no samples at all.
StreamPtr worker_order(std::shared_ptr<const Blend> blend, const OrderConfig& config, std::int64_t global_worker);

inline int workers_of(const OrderConfig& config) { return std::max(config.workers, 1); }  // of each lane
// Counted over all lanes.
inline std::int64_t first_worker(const OrderConfig& config, int lane) {
  return std::int64_t{lane} * workers_of(config);
}
// ConfigError if there is no such lane, or the config is invalid.
void check_order(const OrderConfig& config, int lane);
// What the state of a lane depends on; the names of settings are the recipe's keys. ConfigError as above.
LaneIdentity lane_identity(const Blend& blend, const OrderConfig& config, int lane);

// next() returns nothing at the end of evaluation; training does not end.
struct Lane : InTurn<SampleRef> {
  Lane(std::shared_ptr<const Blend> blend, const OrderConfig& config, int lane);
  const std::shared_ptr<const Blend> blend;
};

struct ReadRetries {
  std::vector<std::chrono::milliseconds> pauses{};     // before each repetition; none: the first error is final
  bool only_system_errors = false;                     // not files that are missing or cut
  std::function<void(const std::string& text)> say{};  // gets a line for each repetition, from any thread
};

// The shards that were used last stay open. A read that the system fails (ReadError) is repeated after a pause, with
// the shard opened again: network file systems return EIO and ESTALE while a server restarts. It fails for good after
// the last pause. All calls may come from several threads at once.
class SampleReader {
 public:
  explicit SampleReader(std::shared_ptr<const Blend> blend, std::size_t max_open_shards = 64, ReadRetries retries = {});

  Sample read(const SampleRef& ref);  // without the parts that part_filter excludes
  // Reads the bytes of a part again.
  std::string read_bytes(const SampleRef& ref, std::uint64_t offset, std::size_t size);
  std::string key(const SampleRef& ref) { return open(shard_of(ref))->key(ref.index); }
  std::string name_of(const SampleRef& ref);  // for messages: its key in quotes, or "number 5" if that cannot be read
  std::string end_remark(const SampleRef& ref);     // of its shard
  std::string contents_hash(const SampleRef& ref);  // of its shard
  const DataSet& data_of(const SampleRef& ref) const { return blend_->leaves[ref.leaf].data; }
  const Shard& shard_of(const SampleRef& ref) const { return data_of(ref).shards[ref.shard]; }

 private:
  using Recent = std::pair<const Shard*, std::shared_ptr<const OpenShard>>;
  std::shared_ptr<const OpenShard> open(const Shard& shard);
  template <class Read>
  auto with_retries(const SampleRef& ref, const Read& read);

  std::shared_ptr<const Blend> blend_;
  std::size_t max_open_shards_;
  const ReadRetries retries_;
  std::atomic<bool> has_given_up_ = false;  // then other reads that fail do not wait any more
  std::mutex mutex_;
  std::list<Recent> recent_;  // few; used last at the front
};

// Whether all files of a blend can be read, before a run starts: a missing shard would otherwise end it hours later.
// One problem for each data set with shards or indices that are missing, cut or cannot be opened.
std::vector<Problem> unreadable_shards(const Blend& blend);

// Fills in DataSet::contents from a few bytes of every shard: another data set with the same names and counts has
// another fingerprint then.
void read_contents(const std::shared_ptr<Blend>& blend, const ReadRetries& retries = {});

}  // namespace braid
