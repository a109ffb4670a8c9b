#include "data/shards/lane.h"
#include "base/crc32c.h"
#include "base/strings.h"
#include "base/worker_pool.h"
#include "data/shards/energon_random.h"

namespace braid {
namespace {

constexpr int kMaxWorkers = 1 << 20;

constexpr std::string_view kMagic = "BRLANE04";
constexpr std::size_t kChecksumBytes = 4;

std::string checksum_of(std::string_view bytes) {
  const std::uint32_t value = crc32c(std::as_bytes(std::span(bytes)));
  return {reinterpret_cast<const char*>(&value), kChecksumBytes};
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (const char* at = text.data(); at + 1 < text.data() + text.size(); at += 2) {
    unsigned char byte = 0;
    if (std::from_chars(at, at + 2, byte, 16).ptr != at + 2) throw DataError("the state of a data lane is damaged");
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

constexpr const char* kWayOn = "to read the data from its start: checkpoint.load_data=false";

void serialize(StreamState& state, LaneIdentity& identity) {
  state.list(identity, UINT64_MAX, [&](auto& setting) {
    state.text(setting.first);
    state.text(setting.second);
  });
}

// What a sealed state depends on, and the state itself. DataError if it is damaged.
std::pair<LaneIdentity, StreamState> unsealed(std::string_view text) {
  const std::string sealed = from_hex(text);
  if (sealed.size() < kMagic.size() + kChecksumBytes || !sealed.starts_with(kMagic))
    throw DataError(
        fmt::format("this is not the state of a data lane, or it is from another version of braid; {}", kWayOn));
  const std::string bytes = sealed.substr(0, sealed.size() - kChecksumBytes);
  if (checksum_of(bytes) != sealed.substr(bytes.size()))
    throw DataError(fmt::format("the state of a data lane is damaged: its checksum is wrong; {}", kWayOn));
  StreamState state(bytes.substr(kMagic.size()));
  LaneIdentity identity;
  serialize(state, identity);
  return {std::move(identity), std::move(state)};
}

constexpr int kThreads = 16;  // most of the time is spent waiting for a file system
constexpr std::size_t kMostNamed = 5;

}  // namespace

void check_order(const OrderConfig& config, int lane) {
  std::vector<Problem> problems;
  const auto expect = [&](bool is_right, const char* what, std::int64_t value, const std::string& fix) {
    if (!is_right) problems.push_back({fmt::format("{}, got {}", what, value), "", fix});
  };
  const std::int64_t all = first_worker(config, config.lanes);
  expect(config.lanes >= 1, "the number of lanes must be at least 1", config.lanes, "use 1");
  const int last_lane = std::max(config.lanes, 1) - 1;
  expect(lane >= 0 && lane <= last_lane, "lanes count from 0 and end before their number", lane,
         last_lane == 0 ? "use 0" : fmt::format("use one from 0 to {}", last_lane));
  expect(config.workers >= 0, "the number of workers must be at least 0", config.workers, "use 1");
  expect(all <= kMaxWorkers, "lanes times workers must be at most 1048576", all, "use fewer workers");
  expect(config.shuffle_buffer >= 0 && config.shuffle_buffer <= 1 << 24,
         "the shuffle buffer must hold 0 to 16777216 samples", config.shuffle_buffer,
         "use 0 for none, or for example 1000");
  const std::int64_t longest = config.max_samples_per_sequence.value_or(1);
  expect(longest >= 1, "max_samples_per_sequence must be at least 1", longest, "leave it out for whole shards");
  if (!problems.empty()) throw ConfigError(problems);
}

LaneIdentity lane_identity(const Blend& blend, const OrderConfig& config, int lane) {
  check_order(config, lane);
  LaneIdentity identity;
  const auto add = [&](std::string name, const auto& value) {
    identity.emplace_back(std::move(name), fmt::format("{}", value));
  };
  add("loader.lanes", config.lanes);
  add("the lane", lane);
  add("loader.num_workers", workers_of(config));
  add("train.seed", config.seed);
  add("training", config.is_training);
  add("loader.shuffle_buffer", config.shuffle_buffer);
  add("loader.max_samples_per_sequence", config.max_samples_per_sequence.value_or(0));
  add("the kind of blend", static_cast<int>(blend.mode));
  add("the number of data sets", blend.leaves.size());
  for (const Leaf& leaf : blend.leaves) {
    const auto [begin, end] = leaf.subset.range(leaf.data.samples(), leaf.data.path);
    add(fmt::format("data set '{}' (split {})", leaf.data.path, leaf.data.split),
        fmt::format("{} in {} (contents {:x}), range {}-{}, weight {}, repetitions {}, slices {}/{}/{}",
                    counted(leaf.data.samples(), "sample"), counted(std::ssize(leaf.data.shards), "shard"),
                    leaf.data.fingerprint(), begin, end, leaf.weight, leaf.repetitions, leaf.shuffle_epochs.value_or(0),
                    leaf.spec.parallel_shard_iters.value_or(0), leaf.spec.max_samples_per_sequence.value_or(0)));
  }
  return identity;
}

Lane::Lane(std::shared_ptr<const Blend> given, const OrderConfig& config, int lane)
    : InTurn(lane_identity(*given, config, lane)), blend(std::move(given)) {
  for (int i = 0; i < workers_of(config); ++i) add(worker_order(blend, config, first_worker(config, lane) + i));
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
  if (reads_ && size > bytes_.size() - at_) throw DataError("the state of a data stream is cut off");
  if (reads_)
    value = bytes_.substr(std::exchange(at_, at_ + size), size);
  else
    bytes_ += value;
}

std::string seal_state(LaneIdentity identity, const StreamState& state) {
  StreamState head;
  serialize(head, identity);
  const std::string bytes = std::string(kMagic) + head.bytes() + state.bytes();
  return fmt::format("{:02x}", fmt::join(vector_of<unsigned char>(bytes + checksum_of(bytes), std::identity()), ""));
}

LaneIdentity stored_identity(std::string_view sealed) { return unsealed(sealed).first; }

StreamState open_state(const LaneIdentity& identity, std::string_view sealed) {
  auto [stored, state] = unsealed(sealed);
  const bool is_alike = stored.size() == identity.size();  // then names may differ: data sets may move
  for (std::size_t i = 0; i < std::min(identity.size(), stored.size()); ++i) {
    const auto& [name, value] = identity[i];
    if (value != stored[i].second && (is_alike || name == stored[i].first))
      throw ConfigError(
          {fmt::format("{} has changed since the state was saved: {} then, {} now", name, stored[i].second, value),
           name, "use the same data and settings, or read the data from its start: checkpoint.load_data=false"});
  }
  if (!is_alike)
    throw DataError(
        fmt::format("the state of a data lane depends on {} settings, not {}: it is from other data, or from another "
                    "version of braid; {}",
                    stored.size(), identity.size(), kWayOn));
  return std::move(state);
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

SampleReader::SampleReader(std::shared_ptr<const Blend> blend, std::size_t max_open_shards, ReadRetries retries)
    : blend_(std::move(blend)), max_open_shards_(std::max<std::size_t>(max_open_shards, 1)),
      retries_(std::move(retries)) {}

std::shared_ptr<const OpenShard> SampleReader::open(const Shard& shard) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(recent_, &shard, &Recent::first);
    if (found != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, found);
      return found->second;
    }
  }
  // Opening may wait for a slow disk; other threads read on, and may open the same shard.
  auto opened = std::make_shared<const OpenShard>(shard);
  const std::lock_guard lock(mutex_);
  recent_.emplace_front(&shard, opened);
  if (recent_.size() > max_open_shards_) recent_.pop_back();
  return opened;
}

template <class Read>
auto SampleReader::with_retries(const SampleRef& ref, const Read& read) {
  const auto& pauses = retries_.pauses;
  for (std::size_t attempt = 0;; ++attempt) try {
      return read(*open(shard_of(ref)));
    } catch (const ReadError& e) {
      {  // readers that use the shard keep theirs
        const std::lock_guard lock(mutex_);
        std::erase_if(recent_, [&](const Recent& recent) { return recent.first == &shard_of(ref); });
      }
      const bool is_system_error = dynamic_cast<const SystemReadError*>(&e) != nullptr;
      if (pauses.empty() || has_given_up_ || (retries_.only_system_errors && !is_system_error)) throw;
      if (attempt == pauses.size()) {
        has_given_up_ = true;
        throw SystemReadError(
            fmt::format("{} (tried {} times); a file of the data set or its file system is at fault, not a sample: "
                        "repair it, then start the run again",
                        e.what(), pauses.size() + 1));
      }
      const std::chrono::duration<double> pause = pauses[attempt];
      if (retries_.say) retries_.say(fmt::format("{}; trying again in {} s", e.what(), pause.count()));
      std::this_thread::sleep_for(pause);
    }
}

std::string SampleReader::read_bytes(const SampleRef& ref, std::uint64_t offset, std::size_t size) {
  return with_retries(ref, [&](const OpenShard& shard) { return shard.file().read(offset, size); });
}

Sample SampleReader::read(const SampleRef& ref) {
  Sample sample = with_retries(ref, [&](const OpenShard& shard) { return shard.read(ref.index); });
  if (const auto& filter = blend_->leaves[ref.leaf].spec.part_filter) {
    std::erase_if(sample.parts, [&](const SamplePart& part) { return !contains(*filter, part.name); });
    std::erase_if(sample.replaced, [&](const std::string& name) { return !contains(*filter, name); });
  }
  return sample;
}

std::string SampleReader::end_remark(const SampleRef& ref) {
  return with_retries(ref, [](const OpenShard& shard) { return shard.end_remark(); });
}

std::string SampleReader::contents_hash(const SampleRef& ref) {
  return with_retries(ref, [](const OpenShard& shard) { return shard.contents_hash(); });
}

std::string SampleReader::name_of(const SampleRef& ref) {
  try {
    return in_quotes(key(ref));
  } catch (const DataError&) {
    return fmt::format("number {}", ref.index);
  }
}

void read_contents(const std::shared_ptr<Blend>& blend, const ReadRetries& retries) {
  SampleReader reader(blend, kThreads, retries);
  WorkerPool pool(kThreads);
  for (std::uint32_t leaf = 0; leaf < blend->leaves.size(); ++leaf) {
    DataSet& data = blend->leaves[leaf].data;
    std::vector<std::string> hashes(data.shards.size());
    pool.run(hashes.size(), [&](std::size_t i) {
      hashes[i] = reader.contents_hash({.leaf = leaf, .shard = static_cast<std::uint32_t>(i)});
    });
    for (const std::string& hash : hashes) data.contents += hash;
  }
}

std::vector<Problem> unreadable_shards(const Blend& blend) {
  std::vector<Problem> problems;
  std::set<std::string> checked;
  WorkerPool pool(kThreads);
  for (const Leaf& leaf : blend.leaves) {
    std::vector<const Shard*> shards;
    for (const Shard& shard : leaf.data.shards)
      if (checked.insert(shard.path).second) shards.push_back(&shard);
    std::vector<std::string> errors(shards.size());
    pool.run(shards.size(), [&](std::size_t i) {
      try {
        OpenShard(*shards[i]).check_size();
      } catch (const DataError& e) {
        errors[i] = e.what();
      }
    });
    std::erase(errors, "");
    if (errors.empty()) continue;
    std::string what =
        fmt::format("{} of {} of '{}' cannot be read: {}", errors.size(), counted(std::ssize(shards), "shard"),
                    leaf.data.path, fmt::join(std::span(errors).first(std::min(errors.size(), kMostNamed)), "; "));
    if (errors.size() > kMostNamed) what += fmt::format("; and {} more", errors.size() - kMostNamed);
    problems.push_back({what, "",
                        fmt::format("restore the files, or leave the shards out: list them as `exclude` in '{}/{}/"
                                    "split.yaml'; `braid data prepare --force` writes indices again",
                                    leaf.data.path, kMetaFolder)});
  }
  return problems;
}

}  // namespace braid
