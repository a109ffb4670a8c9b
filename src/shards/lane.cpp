#include "shards/lane.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/strings.h"
#include "shards/worker_split.h"

namespace braid {
namespace {

constexpr std::string_view kMagic = "BRLANE01";
constexpr std::size_t kChecksumBytes = 4;
constexpr int kTrainingSlices = 16;  // read at a time
constexpr int kMaxWorkers = 1 << 20;

std::string checksum_of(std::string_view bytes) {
  const std::uint32_t value = crc32c(std::as_bytes(std::span(bytes)));
  std::string text;
  for (std::size_t i = 0; i < kChecksumBytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

int workers_of(const OrderConfig& config) { return std::max(config.workers, 1); }

void check(const OrderConfig& config, int lane) {
  std::vector<Problem> problems;
  const auto expect = [&](bool is_right, const char* what, std::int64_t value, const char* fix) {
    if (!is_right) problems.push_back({fmt::format("{}, got {}", what, value), "", fix});
  };
  const auto all = static_cast<std::int64_t>(config.lanes) * workers_of(config);
  expect(config.lanes >= 1, "the number of lanes must be at least 1", config.lanes, "use 1");
  expect(lane >= 0 && lane < std::max(config.lanes, 1), "lanes count from 0 and end before their number", lane,
         "use 0");
  expect(config.workers >= 0, "the number of workers must be at least 0", config.workers, "use 1");
  expect(all <= kMaxWorkers, "lanes times workers must be at most 1048576", all, "use fewer workers");
  expect(config.shuffle_buffer >= 0 && config.shuffle_buffer <= 1 << 24,
         "the shuffle buffer must hold 0 to 16777216 samples", config.shuffle_buffer, "use a smaller one");
  const std::int64_t longest = config.max_samples_per_sequence.value_or(1);
  expect(longest >= 1, "max_samples_per_sequence must be at least 1", longest, "leave it out for whole shards");
  if (!problems.empty()) throw ConfigError(problems);
}

StreamPtr leaf_order(const std::shared_ptr<const Blend>& blend, std::uint32_t i, const OrderConfig& config,
                     std::int64_t global_worker, std::int64_t rotation) {
  const Leaf& leaf = blend->leaves[i];
  const std::int64_t all = static_cast<std::int64_t>(config.lanes) * workers_of(config);
  const auto range =
      worker_range(leaf.subset.range(leaf.data.samples(), leaf.data.path), all, rotation % all, global_worker);
  const auto longest = !config.is_training                  ? std::nullopt
                       : leaf.spec.max_samples_per_sequence ? leaf.spec.max_samples_per_sequence
                                                            : config.max_samples_per_sequence;
  if (longest && (range.second - range.first) / *longest > Draws::kMaxPermutation)
    throw ConfigError({fmt::format("'{}' has too many samples to read {} in a row", leaf.data.path, *longest), "",
                       "use a larger max_samples_per_sequence"});
  LeafStream::Options options{.leaf = i, .borders = slice_borders(range, leaf.data.starts, longest)};
  options.seed = worker_seed(global_worker, config.seed);
  options.shuffle_epochs = config.is_training ? leaf.shuffle_epochs : std::nullopt;
  const auto parallel = leaf.spec.parallel_shard_iters.value_or(kTrainingSlices);
  options.parallel = options.shuffle_epochs ? static_cast<std::size_t>(parallel) : 1;
  return std::make_unique<LeafStream>(std::shared_ptr<const DataSet>(blend, &leaf.data), std::move(options));
}

// Names and values of all that a state depends on. Data sets may move, so their paths are only names.
std::vector<std::pair<std::string, std::string>> identity_of(const Blend& blend, const OrderConfig& config, int lane) {
  std::vector<std::pair<std::string, std::string>> identity;
  const auto add = [&](std::string name, const auto& value) {
    identity.emplace_back(std::move(name), fmt::format("{}", value));
  };
  add("the number of lanes", config.lanes);
  add("the lane", lane);
  add("the number of workers", workers_of(config));
  add("the seed", config.seed);
  add("training", config.is_training);
  add("the shuffle buffer", config.shuffle_buffer);
  add("max_samples_per_sequence", config.max_samples_per_sequence.value_or(0));
  add("the kind of blend", static_cast<int>(blend.mode));
  add("the number of data sets", blend.leaves.size());
  for (const Leaf& leaf : blend.leaves) {
    const auto [begin, end] = leaf.subset.range(leaf.data.samples(), leaf.data.path);
    add(fmt::format("data set '{}' (split {})", leaf.data.path, leaf.data.split),
        fmt::format("{:x} {} {} {} {} {} {} {}", leaf.data.fingerprint(), leaf.weight, leaf.repetitions, begin, end,
                    leaf.shuffle_epochs.value_or(0), leaf.spec.parallel_shard_iters.value_or(0),
                    leaf.spec.max_samples_per_sequence.value_or(0)));
  }
  return identity;
}

// What a blend by weight or repetitions puts around each leaf, and how much the leaf weighs then.
std::pair<StreamPtr, float> repeated(const Blend& blend, const Leaf& leaf, StreamPtr stream) {
  if (blend.mode != BlendMode::Repetitions)
    return {std::make_unique<RepeatStream>(std::move(stream), std::nullopt), static_cast<float>(leaf.weight)};
  const double length = static_cast<double>(leaf.data.samples());  // of the whole split, even with a subset
  return {std::make_unique<RepeatStream>(std::move(stream), leaf.repetitions),
          static_cast<float>(length * leaf.repetitions)};
}

}  // namespace

StreamPtr worker_order(std::shared_ptr<const Blend> blend, const OrderConfig& config, std::int64_t global_worker) {
  const std::uint32_t seed = worker_seed(global_worker, config.seed);
  std::vector<StreamPtr> streams;
  std::vector<float> weights;
  std::int64_t rotation = 0;  // each leaf hands out its remaining samples where the one before stopped
  for (std::uint32_t i = 0; i < blend->leaves.size(); ++i) {
    StreamPtr stream = leaf_order(blend, i, config, global_worker, rotation);
    rotation += blend->leaves[i].data.samples();
    float weight = 0;
    if (config.is_training) std::tie(stream, weight) = repeated(*blend, blend->leaves[i], std::move(stream));
    streams.push_back(std::move(stream));
    weights.push_back(weight);
  }
  if (!config.is_training)
    return streams.size() == 1 ? std::move(streams[0]) : std::make_unique<ConcatStream>(std::move(streams));
  StreamPtr order = streams.size() == 1 ? std::move(streams[0])
                                        : std::make_unique<BlendStream>(std::move(streams), std::move(weights), seed);
  if (!order->has_samples())
    throw ConfigError({fmt::format("worker {} has no samples", global_worker), blend->leaves[0].data.path,
                       "use fewer lanes or workers, or a larger data set"});
  if (blend->mode == BlendMode::Repetitions) order = std::make_unique<RepeatStream>(std::move(order), std::nullopt);
  if (config.shuffle_buffer > 1)
    order =
        std::make_unique<ShuffleBuffer>(std::move(order), static_cast<std::size_t>(config.shuffle_buffer), blend, seed);
  return order;
}

Lane::Lane(std::shared_ptr<const Blend> blend, const OrderConfig& config, int lane) : blend_(std::move(blend)) {
  check(config, lane);
  identity_ = identity_of(*blend_, config, lane);
  const std::int64_t first = static_cast<std::int64_t>(lane) * workers_of(config);
  for (std::int64_t i = 0; i < workers_of(config); ++i) workers_.push_back(worker_order(blend_, config, first + i));
  ended_.resize(workers_.size());
}

std::optional<SampleRef> Lane::next() {
  for (std::size_t tried = 0; tried < workers_.size(); ++tried) {
    const std::size_t worker = next_worker_;
    next_worker_ = (next_worker_ + 1) % workers_.size();
    if (ended_[worker]) continue;
    if (const auto sample = workers_[worker]->next()) return sample;
    ended_[worker] = true;
  }
  std::fill(ended_.begin(), ended_.end(), false);
  next_worker_ = 0;
  return std::nullopt;
}

std::string Lane::save() const {
  StateWriter state;
  state.number(identity_.size());
  for (const auto& [name, value] : identity_) {
    state.text(name);
    state.text(value);
  }
  state.number(next_worker_);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    state.number(ended_[i]);
    workers_[i]->save(state);
  }
  const std::string bytes = std::string(kMagic) + state.bytes();
  return bytes + checksum_of(bytes);
}

void Lane::restore(std::string_view state) {
  if (state.size() < kMagic.size() + kChecksumBytes || !state.starts_with(kMagic))
    throw DataError("this is not the state of a data lane, or it is from another version of braid");
  const std::string_view bytes = state.substr(0, state.size() - kChecksumBytes);
  if (checksum_of(bytes) != state.substr(bytes.size()))
    throw DataError("the state of a data lane is damaged: its checksum is wrong");
  StateReader reader(bytes.substr(kMagic.size()));
  const std::uint64_t stored = reader.number(UINT64_MAX);
  for (std::size_t i = 0; i < std::min<std::uint64_t>(stored, identity_.size()); ++i) {
    const auto name = reader.text(), value = reader.text();
    if (value != identity_[i].second)
      throw ConfigError({fmt::format("{} has changed since the state was saved: {} then, {} now", identity_[i].first,
                                     value, identity_[i].second),
                         std::string(name),
                         "restore with the same data and settings, or start the data from the beginning"});
  }
  if (stored != identity_.size())
    throw DataError("the state of a data lane is damaged: it describes another number of data sets");
  next_worker_ = reader.number(workers_.size() - 1);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    ended_[i] = reader.number(1);
    workers_[i]->restore(reader);
  }
  if (!reader.at_end()) throw DataError("the state of a data lane is damaged: it is too long");
}

}  // namespace braid
