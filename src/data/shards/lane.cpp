#include "data/shards/lane.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/draws.h"

namespace braid {
namespace {

// Interleaves the reversals of both halves, starting with the left one.
std::vector<std::int64_t> reversed(std::int64_t first, std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  if (n <= 2) {
    std::iota(order.begin(), order.end(), first);
    return order;
  }
  const std::vector<std::int64_t> left = reversed(first, n / 2), right = reversed(first + n / 2, n - n / 2);
  order.clear();
  for (std::size_t i = 0; i < right.size(); ++i) {
    if (i < left.size()) order.push_back(left[i]);
    order.push_back(right[i]);
  }
  return order;
}

// Begins of the slices of a piece within one shard. Python's round() rounds halves to even, as nearbyint() does.
void add_slices(std::int64_t begin, std::int64_t end, std::optional<std::int64_t> longest,
                std::vector<std::int64_t>& borders) {
  const auto length = static_cast<double>(end - begin);
  double slices = 1;
  if (longest && length > static_cast<double>(*longest) * 1.5)
    slices = std::max(std::nearbyint(length / static_cast<double>(*longest)), 1.0);
  const double step = length / slices;
  for (double i = 0; i < slices; ++i) {
    const std::int64_t border = begin + static_cast<std::int64_t>(i * step);
    if (borders.empty() || border > borders.back()) borders.push_back(border);
  }
}

constexpr int kTrainingSlices = 16;  // read at a time
constexpr int kMaxWorkers = 1 << 20;

StreamPtr leaf_order(const std::shared_ptr<const Blend>& blend, std::uint32_t i, const OrderConfig& config,
                     const std::vector<std::int64_t>& workers, std::int64_t global_worker, std::int64_t rotation) {
  const Leaf& leaf = blend->leaves[i];
  const auto range = worker_range(leaf.subset.range(leaf.data.samples(), leaf.data.path), workers,
                                  rotation % std::ssize(workers), global_worker);
  const auto longest = !config.is_training                  ? std::nullopt
                       : leaf.spec.max_samples_per_sequence ? leaf.spec.max_samples_per_sequence
                                                            : config.max_samples_per_sequence;
  if (longest && (range.second - range.first) / *longest > Draws::kMaxPermutation)
    throw ConfigError({fmt::format("'{}' has too many samples to read {} in a row", leaf.data.path, *longest), "",
                       "use a larger max_samples_per_sequence"});
  LeafOptions options{.leaf = i, .borders = slice_borders(range, leaf.data.starts, longest)};
  options.seed = worker_seed(global_worker, config.seed);
  options.shuffle_epochs = config.is_training ? leaf.shuffle_epochs : std::nullopt;
  const auto parallel = leaf.spec.parallel_shard_iters.value_or(kTrainingSlices);
  options.parallel = options.shuffle_epochs ? static_cast<std::size_t>(parallel) : 1;
  return leaf_stream(std::shared_ptr<const DataSet>(blend, &leaf.data), std::move(options));
}

// The stream that a blend by weight or repetitions makes of a leaf, and how much it weighs.
std::pair<StreamPtr, float> repeated(const Blend& blend, const Leaf& leaf, StreamPtr stream) {
  if (blend.mode != BlendMode::Repetitions)
    return {repeated_stream(std::move(stream), std::nullopt), static_cast<float>(leaf.weight)};
  const double length = static_cast<double>(leaf.data.samples());  // of the whole split, even with a subset
  return {repeated_stream(std::move(stream), leaf.repetitions), static_cast<float>(length * leaf.repetitions)};
}

}  // namespace

std::vector<std::int64_t> bit_reversal(std::int64_t n) { return reversed(0, n); }

std::pair<std::int64_t, std::int64_t> worker_range(std::pair<std::int64_t, std::int64_t> samples,
                                                   const std::vector<std::int64_t>& order, std::int64_t rotation,
                                                   std::int64_t worker) {
  const std::int64_t workers = std::ssize(order);
  BRAID_CHECK(worker >= 0 && worker < workers, "worker {} of {}", worker, workers);
  const std::int64_t total = samples.second - samples.first;
  const std::int64_t base = total / workers, extra = total % workers;
  std::int64_t begin = samples.first, own = 0;
  for (std::int64_t i = 0; i < workers; ++i) {
    const std::int64_t count = base + ((i - rotation + workers) % workers < extra ? 1 : 0);
    if (order[static_cast<std::size_t>(i)] < worker) begin += count;
    if (order[static_cast<std::size_t>(i)] == worker) own = count;
  }
  return {begin, begin + own};
}

std::vector<std::int64_t> slice_borders(std::pair<std::int64_t, std::int64_t> range,
                                        const std::vector<std::int64_t>& shard_starts,
                                        std::optional<std::int64_t> longest) {
  std::vector<std::int64_t> borders;
  if (range.first >= range.second) return borders;
  auto next = std::upper_bound(shard_starts.begin(), shard_starts.end(), range.first);
  for (std::int64_t begin = range.first; begin < range.second; ++next) {
    const std::int64_t end = next == shard_starts.end() ? range.second : std::min(*next, range.second);
    if (end > begin) add_slices(begin, end, longest, borders);
    begin = end;
  }
  borders.push_back(range.second);
  return borders;
}

int workers_of(const OrderConfig& config) { return std::max(config.workers, 1); }

void check_order(const OrderConfig& config, int lane) {
  std::vector<Problem> problems;
  const auto expect = [&](bool is_right, const char* what, std::int64_t value, const std::string& fix) {
    if (!is_right) problems.push_back({fmt::format("{}, got {}", what, value), "", fix});
  };
  const auto all = static_cast<std::int64_t>(config.lanes) * workers_of(config);
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

StreamPtr worker_order(std::shared_ptr<const Blend> blend, const OrderConfig& config, std::int64_t global_worker) {
  const std::uint32_t seed = worker_seed(global_worker, config.seed);
  const std::vector<std::int64_t> workers = bit_reversal(static_cast<std::int64_t>(config.lanes) * workers_of(config));
  std::vector<StreamPtr> streams;
  std::vector<float> weights;
  std::int64_t rotation = 0;  // each leaf hands out its remaining samples where the one before stopped
  for (std::uint32_t i = 0; i < blend->leaves.size(); ++i) {
    StreamPtr stream = leaf_order(blend, i, config, workers, global_worker, rotation);
    rotation += blend->leaves[i].data.samples();
    float weight = 0;
    if (config.is_training) std::tie(stream, weight) = repeated(*blend, blend->leaves[i], std::move(stream));
    streams.push_back(std::move(stream));
    weights.push_back(weight);
  }
  if (!config.is_training) return streams.size() == 1 ? std::move(streams[0]) : joined_stream(std::move(streams));
  StreamPtr order =
      streams.size() == 1 ? std::move(streams[0]) : blended_stream(std::move(streams), std::move(weights), seed);
  if (!order->has_samples())
    throw ConfigError({fmt::format("worker {} has no samples", global_worker), blend->leaves[0].data.path,
                       "use fewer lanes or workers, or a larger data set"});
  if (blend->mode == BlendMode::Repetitions) order = repeated_stream(std::move(order), std::nullopt);
  if (config.shuffle_buffer > 1)
    order = shuffled_stream(std::move(order), static_cast<std::size_t>(config.shuffle_buffer), blend, seed);
  return order;
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

std::int64_t first_worker(const OrderConfig& config, int lane) {
  return static_cast<std::int64_t>(lane) * workers_of(config);
}

Lane::Lane(std::shared_ptr<const Blend> blend, const OrderConfig& config, int lane)
    : blend_(std::move(blend)), identity_(lane_identity(*blend_, config, lane)) {
  const std::int64_t first = first_worker(config, lane);
  for (std::int64_t i = 0; i < workers_of(config); ++i) workers_.add(worker_order(blend_, config, first + i));
}

}  // namespace braid
