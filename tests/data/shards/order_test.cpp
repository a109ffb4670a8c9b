// The order of samples: equal to lists that Energon printed, each sample once per epoch over all workers, and the same
// after save and restore at any position. The comparison with a live Energon is in tests/oracles/energon_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "data/shards/lane.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

Leaf leaf(std::vector<std::int64_t> counts, const std::string& name = "a") {
  Leaf leaf{.data = {.path = name, .split = "train", .starts = {0}}};
  for (const std::int64_t count : counts) {
    leaf.data.shards.push_back({fmt::format("{}_{}.tar", name, leaf.data.shards.size()), "", count});
    leaf.data.starts.push_back(leaf.data.samples() + count);
  }
  return leaf;
}

Blend blend_of(BlendMode mode, std::vector<Leaf> leaves) { return {.mode = mode, .leaves = std::move(leaves)}; }

std::shared_ptr<const Blend> shared(Blend blend) { return std::make_shared<const Blend>(std::move(blend)); }

// Sample numbers within their leaf; leaves after the first are marked by thousands.
std::vector<std::int64_t> numbers(Lane& lane, int count) {
  std::vector<std::int64_t> found;
  for (int i = 0; i < count; ++i) {
    const auto ref = lane.next();
    if (!ref) break;
    found.push_back(1000 * ref->leaf + lane.blend->leaves[ref->leaf].data.starts[ref->shard] + ref->index);
  }
  return found;
}

std::vector<std::int64_t> numbers(const Blend& blend, const OrderConfig& config, int count) {
  Lane lane(shared(blend), config, 0);
  return numbers(lane, count);
}

const Blend kOne = blend_of(BlendMode::Single, {leaf({4, 5, 6, 10})});

TEST(Order, IsEnergons) {
  EXPECT_THAT(numbers(kOne, {}, 25),
              ElementsAre(15, 16, 4, 0, 9, 17, 18, 1, 2, 5, 19, 3, 10, 11, 20, 21, 22, 23, 6, 7, 24, 8, 12, 13, 14));
  EXPECT_THAT(numbers(kOne, {.max_samples_per_sequence = 3}, 25),
              ElementsAre(18, 9, 21, 4, 12, 0, 1, 13, 6, 7, 10, 22, 23, 24, 2, 15, 3, 14, 19, 11, 5, 20, 16, 17, 8));
  EXPECT_THAT(numbers(kOne, {.shuffle_buffer = 4, .max_samples_per_sequence = 3}, 25),
              ElementsAre(21, 4, 9, 18, 13, 0, 12, 6, 22, 1, 10, 24, 2, 7, 15, 3, 23, 11, 5, 20, 17, 8, 16, 19, 15));
}

TEST(Order, OfABlendIsEnergons) {
  Blend blend = blend_of(BlendMode::Weights, {leaf({4, 5, 6, 10}), leaf({5, 4}, "b")});
  blend.leaves[0].weight = 0.75;
  blend.leaves[1].weight = 0.25;
  EXPECT_THAT(numbers(blend, {}, 20),
              ElementsAre(15, 16, 4, 0, 9, 17, 1000, 18, 1001, 1, 1005, 1006, 2, 5, 1002, 19, 3, 1007, 10, 11));
}

TEST(Order, OfEvaluationIsThatOfTheShards) {
  const Blend blend = blend_of(BlendMode::Weights, {leaf({2, 1}), leaf({2}, "b")});
  Lane lane(shared(blend), {.is_training = false}, 0);
  EXPECT_THAT(numbers(lane, 100), ElementsAre(0, 1, 2, 1000, 1001));
  EXPECT_THAT(numbers(lane, 100), ElementsAre(0, 1, 2, 1000, 1001));  // once more
}

TEST(Order, WorkersThatEndEarlyAreLeftOut) {
  EXPECT_THAT(numbers(blend_of(BlendMode::Single, {leaf({5})}), {.workers = 3, .is_training = false}, 100),
              ElementsAre(0, 2, 4, 1, 3));
}

// All ways to group the same number of workers into lanes.
TEST(Order, DependsOnTheTotalOfWorkersOnly) {
  const auto blend = shared(kOne);
  Lane both(blend, {.workers = 2}, 0);
  Lane first(blend, {.lanes = 2}, 0), second(blend, {.lanes = 2}, 1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(both.next(), i % 2 == 0 ? first.next() : second.next()) << i;
}

struct Setting {
  Blend blend;
  OrderConfig config;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  all.push_back({kOne, {}});
  all.push_back({kOne, {.workers = 3, .seed = 5, .shuffle_buffer = 6, .max_samples_per_sequence = 2}});
  all.push_back({kOne, {.workers = 2, .is_training = false}});
  Blend weighted = blend_of(BlendMode::Weights, {leaf({4, 5, 6, 10}), leaf({5, 4}, "b"), leaf({7, 1, 12}, "c")});
  weighted.leaves[1].shuffle_epochs = 3;
  weighted.leaves[2].shuffle_epochs = -1;
  weighted.leaves[0].data.excluded = {{1, 2}, {3, 0}};
  all.push_back({weighted, {.workers = 2, .shuffle_buffer = 4}});
  all.push_back({weighted, {.workers = 2, .is_training = false}});
  Blend repeated = blend_of(BlendMode::Repetitions, {leaf({4, 5, 6, 10}), leaf({5, 4}, "b"), leaf({7, 1, 12}, "c")});
  repeated.leaves[0].repetitions = 2;
  repeated.leaves[1].repetitions = 0.6;
  repeated.leaves[2].repetitions = 1.5;
  all.push_back({repeated, {.workers = 2, .shuffle_buffer = 3, .max_samples_per_sequence = 4}});
  return all;
}

TEST(LaneState, ContinuesExactlyFromEveryPosition) {
  for (const Setting& setting : settings()) {
    const auto blend = shared(setting.blend);
    Lane lane(blend, setting.config, 0);
    for (int position = 0; position < 200; ++position) {
      const std::string state = lane.save();
      Lane restored(blend, setting.config, 0);
      restored.next();  // a used lane must forget where it was
      restored.restore(state);
      EXPECT_EQ(restored.save(), state);
      Lane copy(blend, setting.config, 0);
      copy.restore(state);
      std::vector<std::optional<SampleRef>> expected, found;
      for (int i = 0; i < 60; ++i) {
        found.push_back(restored.next());
        expected.push_back(copy.next());
      }
      ASSERT_EQ(found, expected);
      ASSERT_EQ(lane.next(), found[0]) << position;
    }
  }
}

TEST(LaneState, RefusesOtherSettingsByName) {
  const Setting setting = settings()[3];
  const std::string state = Lane(shared(setting.blend), setting.config, 0).save();
  const auto error = [&](const Blend& blend, const OrderConfig& config) {
    Lane lane(shared(blend), config, 0);
    return error_of<ConfigError>([&] { lane.restore(state); });
  };
  OrderConfig seed = setting.config, workers = setting.config;
  seed.seed = 1;
  workers.workers = 3;
  EXPECT_THAT(error(setting.blend, seed), HasSubstr("train.seed has changed"));
  EXPECT_THAT(error(setting.blend, workers), HasSubstr("loader.num_workers has changed"));
  Blend changed = setting.blend;
  ++changed.leaves[1].data.shards[0].samples;
  EXPECT_THAT(error(changed, setting.config), HasSubstr("data set 'b' (split train) has changed"));
  Blend excluding = setting.blend;
  excluding.leaves[2].data.excluded = {{0, 1}};
  EXPECT_THAT(error(excluding, setting.config), HasSubstr("data set 'c'"));
  Blend heavier = setting.blend;
  heavier.leaves[0].weight = 2;
  EXPECT_THAT(error(heavier, setting.config), HasSubstr("data set 'a'"));
}

TEST(LaneState, DamageIsNoticed) {
  const Setting setting = settings()[3];
  Lane lane(shared(setting.blend), setting.config, 0);
  for (int i = 0; i < 20; ++i) lane.next();
  const std::string state = lane.save();
  EXPECT_LT(state.size(), 2000u);
  for (std::size_t i = 0; i < state.size(); ++i) {
    EXPECT_NE(error_of<DataError>([&] { lane.restore(state.substr(0, i)); }), "no error") << i;
    std::string damaged = state;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    EXPECT_NE(error_of<DataError>([&] { lane.restore(damaged); }), "no error") << i;
  }
}

// Streams check values themselves: a state with a right checksum may come from another program.
TEST(LaneState, ImpossibleValuesAreRefused) {
  const StreamPtr stream =
      leaf_stream(std::make_shared<const DataSet>(leaf({4, 5}).data), {.borders = {0, 4, 9}, .parallel = 2});
  int refused = 0;
  for (int seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    StreamState written;
    for (int i = 0; i < 12; ++i) {
      std::uint64_t number = random() % 12;
      written.number(number, 12);
    }
    try {
      StreamState state(written.bytes());
      stream->serialize(state);
      for (int i = 0; i < 30; ++i) stream->next();
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(LaneState, SamplesOfAnEmptyShardAreRefused) {
  const Blend blend = blend_of(BlendMode::Single, {leaf({4, 0})});
  const Blend full = blend_of(BlendMode::Single, {leaf({9, 9})});
  const auto restored = [&](SampleRef ref) {
    StreamState written;
    serialize(written, ref, full);
    StreamState state(written.bytes());
    serialize(state, ref, blend);
    return ref;
  };
  const SampleRef last = {.shard = 0, .index = 3, .epoch = 7};
  EXPECT_EQ(restored(last), last);
  EXPECT_THAT(error_of<DataError>([&] { restored({.shard = 0, .index = 4}); }), HasSubstr("at most 3"));
  EXPECT_THAT(error_of<DataError>([&] { restored({.shard = 1}); }), HasSubstr("'a_1.tar', which has none"));
}

TEST(Order, EachSampleComesOncePerEpochOverAllWorkers) {
  for (const int workers : {1, 2, 3, 5, 7})
    for (const int longest : {1, 3, 100}) {
      std::map<std::pair<std::uint32_t, std::int64_t>, int> seen;
      for (int worker = 0; worker < workers; ++worker) {
        const auto range = worker_order(shared(kOne), {.lanes = workers, .max_samples_per_sequence = longest}, worker);
        while (const auto ref = range->next()) {
          if (ref->epoch == 3) break;
          ++seen[{ref->shard, ref->index}];
        }
      }
      EXPECT_EQ(seen.size(), 25u);
      for (const auto& [sample, times] : seen) EXPECT_EQ(times, 3) << workers << " workers, " << longest;
    }
}

TEST(Order, RepetitionsAreKept) {
  const Setting setting = settings()[5];
  OrderConfig config{};  // one worker, no buffer
  Lane lane(shared(setting.blend), config, 0);
  std::map<std::uint32_t, int> seen;
  for (int i = 0; i < 50 + 5 + 30; ++i) ++seen[lane.next()->leaf];  // 25 * 2, floor(9 * 0.6), 20 * 1.5
  EXPECT_THAT(seen, ElementsAre(std::pair(0u, 50), std::pair(1u, 5), std::pair(2u, 30)));
}

TEST(Order, ExcludedSamplesNeverCome) {
  Blend blend = kOne;
  blend.leaves[0].data.excluded = {{0, 0}, {3, 9}};
  for (const std::int64_t number : numbers(blend, {.workers = 2}, 500)) EXPECT_TRUE(number != 0 && number != 24);
}

TEST(Order, RefusesWorkersWithoutSamples) {
  const auto error = [](Blend blend, const OrderConfig& config) {
    return error_of<ConfigError>([&] { Lane(shared(std::move(blend)), config, config.lanes - 1).next(); });
  };
  EXPECT_THAT(error(blend_of(BlendMode::Single, {leaf({2})}), {.lanes = 8}), HasSubstr("worker 7 has no samples"));
  Blend excluding = kOne;
  for (std::int64_t i = 0; i < 4; ++i) excluding.leaves[0].data.excluded.emplace(0, i);
  for (std::int64_t i = 0; i < 5; ++i) excluding.leaves[0].data.excluded.emplace(1, i);
  EXPECT_THAT(error(excluding, {.lanes = 1, .workers = 4}), HasSubstr("excludes all 7 samples of a worker"));
  EXPECT_THAT(error(kOne, {.lanes = 0}), HasSubstr("lanes must be at least 1"));
}

TEST(Order, RepetitionsThatLeaveNothingAreRefused) {
  Blend blend = blend_of(BlendMode::Repetitions, {leaf({3}), leaf({2}, "b")});
  for (Leaf& leaf : blend.leaves) leaf.repetitions = 0.1;
  EXPECT_THAT(error_of<DataError>([&] { numbers(blend, {}, 1); }), HasSubstr("an epoch of a worker has no samples"));
}

}  // namespace
}  // namespace braid
