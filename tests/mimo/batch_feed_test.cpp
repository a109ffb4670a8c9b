// Every rank of a replica gets its leader's text and extents, values stay on the leader, and positions belong to the
// step that was handed out, although readers run ahead.
#include "mimo/batch_feed.h"
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/strings.h"
#include "comm/world.h"
#include "support/errors.h"
#include "support/grid_sizes.h"
#include "support/programs.h"
#include "support/ranks.h"

namespace braid {
namespace {

constexpr int kLanes = 2, kTokens = 8, kSteps = 3;

// Lane l counts up from l * 100. Every sample has one image of 2 x 2 patches, one embedding.
class CountingLanes : public BatchSource {
 public:
  explicit CountingLanes(int token) : token_(token) {}

  int lanes() const override { return kLanes; }
  void restore(const std::vector<std::string>& positions) override {
    for (std::size_t l = 0; l < positions.size(); ++l) first_[l] = std::stoi(positions[l]);
  }
  std::vector<std::string> positions_after(std::int64_t) const override { return {}; }

  BatchReader<LanguageBatch> read_language(const ReaderSamples& samples) const override {
    struct Reader {
      Reader(const CountingLanes& data, const ReaderSamples& samples) : data(data), samples(samples) {
        const int replica = static_cast<int>(samples.own.begin * samples.language_replicas / samples.all);
        const int own = kLanes / samples.language_replicas;
        for (int l = replica * own; l < (replica + 1) * own; ++l)
          lanes.push_back({l, data.first_[static_cast<std::size_t>(l)]});
      }
      LanguageBatch operator()() {
        auto& [lane, position] = lanes[static_cast<std::size_t>(turn++) % lanes.size()];
        LanguageBatch batch;
        batch.ids = at::full({kTokens}, position++, at::kLong);
        batch.ids[0] = data.token_;
        batch.labels = batch.ids;
        batch.offsets = {0, kTokens / 2, kTokens};
        batch.rows = {{1}};
        batch.identities = {identity_of_mock(position - 1)};
        for (const auto& [l, p] : lanes) batch.positions.push_back({l, std::to_string(p)});
        return batch;
      }
      const CountingLanes& data;
      const ReaderSamples samples;
      std::vector<std::pair<int, int>> lanes;  // index and position
      int turn = 0;
    };
    return Reader(*this, samples);
  }

  BatchReader<EncoderBatch> read_encoder(const std::string&, const ReaderSamples& samples) const override {
    struct Reader {
      Reader(const CountingLanes& data, const ReaderSamples& samples) : data(data), samples(samples) {}
      EncoderBatch operator()() {
        EncoderBatch batch = {
            .values = at::full({4 * samples.own.size(), 3 * 16 * 16}, 7, at::kByte), .extents = {}, .sample_of = {}};
        const int per_replica = kLanes / samples.language_replicas;
        for (std::int64_t s = samples.own.begin; s < samples.own.end; ++s) {
          batch.extents.push_back({2, 2});
          batch.sample_of.push_back(s - samples.own.begin);
          const auto lane = static_cast<std::size_t>(s * per_replica + turn % per_replica);
          batch.identities.push_back(identity_of_mock(data.first_[lane] + turn / per_replica + data.lost(turn)));
        }
        ++turn;
        return batch;
      }
      const CountingLanes& data;
      const ReaderSamples samples;
      int turn = 0;
    };
    return Reader(*this, samples);
  }

  // The encoder's readers have lost a sample before this microbatch.
  void lose_sample_before(int microbatch) { lost_before_ = microbatch; }

 private:
  int lost(int microbatch) const { return microbatch >= lost_before_ ? 1 : 0; }

  const int token_;
  std::vector<int> first_ = {0, 100};
  int lost_before_ = std::numeric_limits<int>::max();
};

struct Seen {
  std::vector<std::vector<std::int64_t>> text;  // by microbatch of all steps, on language ranks
  std::map<int, std::string> positions;         // by lane, after the last step
  std::int64_t extents = 0, values = 0;         // of one microbatch, on encoder ranks
};

// As training does at the end of a step, for the next one.
void agree(BatchFeed& feed, const Group& world) {
  at::Tensor sums = feed.sizes();
  world.all_reduce(sums);
  feed.take_sizes({sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()});
}

std::vector<Seen> feed(const Topology& topology, int microbatches, const CountingLanes& data) {
  std::vector<Seen> seen(static_cast<std::size_t>(topology.world_size()));
  testing::on_threads(topology.world_size(), [&](World& world) {
    const Groups groups(world, topology);
    const MimoModel model(tiny_vlm(), topology, groups, world, {});
    BatchFeed feed(model, microbatches, topology.language().dense.size_of("dp"), data);
    Seen& own = seen[static_cast<std::size_t>(world.rank())];
    for (int step = 0; step < kSteps; ++step) {
      if (step > 0) agree(feed, groups.world());
      const StepBatches& batches = feed.next_step(0);
      for (const LanguageBatch& batch : batches.language) {
        EXPECT_EQ(batch.offsets, (std::vector<std::int64_t>{0, kTokens / 2, kTokens}));
        EXPECT_TRUE(batch.labels.equal(batch.ids));
        own.text.emplace_back(batch.ids.data_ptr<std::int64_t>(), batch.ids.data_ptr<std::int64_t>() + kTokens);
      }
      for (const EncoderBatch& batch : batches.encoders[0]) {
        EXPECT_EQ(batch.values.scalar_type(), at::kByte);
        own.extents = static_cast<std::int64_t>(batch.extents.size());
        own.values = batch.values.numel();
      }
    }
    for (const LanePosition& position : feed.positions()) own.positions[position.lane] = position.text;
    agree(feed, groups.world());  // leaves a broadcast that nothing waits for
  });
  return seen;
}

Topology topology_of(const testing::GridSizes& encoder, const testing::GridSizes& language, int samples) {
  TopologyConfig config;
  config.modules = {testing::module_of("images", ModuleKind::Encoder, encoder),
                    testing::module_of("language", ModuleKind::Language, language)};
  return Topology(config, {.global_batch = samples, .num_experts = 16});
}

TEST(BatchFeed, GivesAReplicaItsLeadersBatches) {
  const CountingLanes data(tiny_vlm().encoders[0].token_id);
  const std::vector<Seen> seen = feed(topology_of({.tp = 2}, {.tp = 2, .pp = 2}, 4), 4, data);
  for (const int encoder_rank : {0, 1}) {
    EXPECT_EQ(seen[static_cast<std::size_t>(encoder_rank)].extents, 1);
    EXPECT_EQ(seen[static_cast<std::size_t>(encoder_rank)].values > 0, encoder_rank == 0);
  }
  ASSERT_EQ(seen[2].text.size(), 4u * kSteps);
  EXPECT_EQ(seen[2].text[0][1], 0);
  EXPECT_EQ(seen[2].text[1][1], 100);
  EXPECT_EQ(seen[2].text[2][1], 1);
  for (std::size_t rank = 3; rank < 6; ++rank) EXPECT_EQ(seen[rank].text, seen[2].text);
}

// Three steps of two samples per lane.
TEST(BatchFeed, PositionsAreThoseOfTheLastStepInAnyLayout) {
  const CountingLanes data(tiny_vlm().encoders[0].token_id);
  for (const int dp : {1, 2}) {
    std::map<int, std::string> positions;
    for (const Seen& seen : feed(topology_of({}, {.dp = dp}, 4), 4 / dp, data))
      for (const auto& [lane, text] : seen.positions) EXPECT_TRUE(positions.try_emplace(lane, text).second) << lane;
    EXPECT_EQ(positions, (std::map<int, std::string>{{0, "6"}, {1, "106"}})) << dp;
  }
}

// Two steps of two microbatches. The encoder serves both lanes of the trace.
TEST(BatchFeed, TracesTheSamplesOfEachLane) {
  const testing::TemporaryFolder folder;
  const CountingLanes data(tiny_vlm().encoders[0].token_id);
  const Topology topology = topology_of({}, {.tp = 2, .dp = 2}, 4);
  testing::on_threads(topology.world_size(), [&](World& world) {
    const Groups groups(world, topology);
    const MimoModel model(tiny_vlm(), topology, groups, world, {});
    BatchFeed feed(model, 2, 2, data, folder.path());
    for (const std::int64_t first_sample : {8, 12}) feed.next_step(first_sample);
  });
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    files[entry.path().filename()] = split(testing::read_file(entry.path()), '\n');
  using ::testing::HasSubstr;
  EXPECT_THAT(files, ::testing::UnorderedElementsAre(
                         ::testing::Key("train_dataloader_llm_lane000.rank00001.jsonl"),
                         ::testing::Key("train_dataloader_llm_lane001.rank00003.jsonl"),
                         ::testing::Key("train_dataloader_encoder_dprank000_lanes000-001.rank00000.jsonl")));
  for (const auto& [name, lines] : files) {
    ASSERT_EQ(lines.size(), 5u) << name;  // the last one is empty
    for (int step = 0; step < 4; ++step)
      EXPECT_THAT(lines[static_cast<std::size_t>(step)], HasSubstr(fmt::format("\"step\": {}}}", 4 + step))) << name;
  }
  EXPECT_THAT(files["train_dataloader_llm_lane001.rank00003.jsonl"][0], HasSubstr("{\"llm_lanes\": [1], "));
  EXPECT_THAT(files["train_dataloader_encoder_dprank000_lanes000-001.rank00000.jsonl"][0],
              HasSubstr("{\"llm_lanes\": [0, 1], \"role\": \"encoder\", \"signatures\": [[0, 0, 0, 1, "));
}

// Sizes are equal, so only the identities tell that pictures would meet the texts of other samples.
TEST(BatchFeed, EndsTheRunOnEveryRankWhenPicturesAreOfOtherSamples) {
  CountingLanes data(tiny_vlm().encoders[0].token_id);
  const Topology topology = topology_of({.tp = 2}, {.dp = 2, .pp = 2}, 4);
  for (const int microbatch : {0, 1, 3, 4}) {
    data.lose_sample_before(microbatch);
    std::atomic<int> refusals = 0;
    testing::on_threads(topology.world_size(), [&](World& world) {
      const Groups groups(world, topology);
      const MimoModel model(tiny_vlm(), topology, groups, world, {});
      BatchFeed feed(model, 2, 2, data);
      for (int step = 0; step < microbatch / 2; ++step) feed.next_step(4 * step);
      const int first = 4 * (microbatch / 2), lost = first + microbatch % 2 * 2;
      EXPECT_THAT(testing::error_of<DataError>([&] { feed.next_step(first); }),
                  ::testing::HasSubstr(fmt::format("text and media of sequence {} come from different samples: of rank "
                                                   "2 (language) and rank 0 (images), the "
                                                   "first has mock sample {}, the second mock sample {};",
                                                   lost, microbatch, microbatch + 1)));
      ++refusals;
    });
    EXPECT_EQ(refusals, topology.world_size());
  }
}

// One sample per step with sub-sequences of two tokens and `items` pictures: item i is in sub-sequence i % 4.
class OneSample : public BatchSource {
 public:
  OneSample(int token, int items, std::vector<int> damaged)
      : token_(token), items_(items), damaged_(std::move(damaged)) {}

  int lanes() const override { return 1; }
  void restore(const std::vector<std::string>&) override {}
  std::vector<std::string> positions_after(std::int64_t) const override { return {}; }
  BatchReader<LanguageBatch> read_language(const ReaderSamples&) const override {
    return [this] {
      LanguageBatch batch = {.ids = at::full({items_}, token_, at::kLong),
                             .labels = at::full({items_}, 5, at::kLong),
                             .offsets = {0, 2, 4, 6, items_},
                             .rows = {{items_}},
                             .sequence_of = {{{}}},
                             .identities = {identity_of_mock(1)}};
      for (int i = 0; i < items_; ++i) batch.sequence_of[0][0].push_back(i % 4);
      return batch;
    };
  }
  BatchReader<EncoderBatch> read_encoder(const std::string&, const ReaderSamples&) const override {
    return [this] {
      EncoderBatch batch = {.values = at::full({4 * items_, 3 * 16 * 16}, 7, at::kByte),
                            .extents = std::vector<Extent>(static_cast<std::size_t>(items_), Extent{2, 2}),
                            .sample_of = std::vector<std::int64_t>(static_cast<std::size_t>(items_)),
                            .damaged = std::vector<bool>(static_cast<std::size_t>(items_)),
                            .identities = {identity_of_mock(1)}};
      for (const int item : damaged_) batch.damaged[static_cast<std::size_t>(item)] = true;
      return batch;
    };
  }

 private:
  const int token_, items_;
  const std::vector<int> damaged_;
};

// Which sub-sequences still have labels, on every rank of the language model.
std::vector<std::string> trained_sequences(int items, const std::vector<int>& damaged) {
  const OneSample data(tiny_vlm().encoders[0].token_id, items, damaged);
  const Topology topology = topology_of({.tp = 2}, {.tp = 2, .pp = 2}, 1);
  std::vector<std::string> seen;
  std::mutex mutex;
  testing::on_threads(topology.world_size(), [&](World& world) {
    const Groups groups(world, topology);
    const MimoModel model(tiny_vlm(), topology, groups, world, {});
    BatchFeed feed(model, 1, 1, data);
    for (const LanguageBatch& batch : feed.next_step(0).language) {
      std::string trained;
      for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
        const at::Tensor labels = batch.labels.narrow(0, batch.offsets[i], batch.offsets[i + 1] - batch.offsets[i]);
        const auto counted = (labels == 5).sum().item<std::int64_t>();
        EXPECT_TRUE(counted == 0 || counted == labels.numel());
        trained += counted > 0 ? 'x' : '-';
      }
      const std::lock_guard lock(mutex);
      seen.push_back(trained);
    }
  });
  return seen;
}

TEST(BatchFeed, IgnoresTheTextOfDamagedItemsOnEveryRank) {
  using Seen = std::vector<std::string>;
  EXPECT_EQ(trained_sequences(8, {}), Seen(4, "xxxx"));
  EXPECT_EQ(trained_sequences(8, {1}), Seen(4, "x-xx"));
  EXPECT_EQ(trained_sequences(8, {0, 3, 7}), Seen(4, "-xx-"));
  EXPECT_EQ(trained_sequences(52, {51}), Seen(4, "xxx-")) << "the last item with a bit of its own";
  EXPECT_EQ(trained_sequences(54, {53}), Seen(4, "--xx")) << "items 52 and 53 share a bit";
  EXPECT_EQ(trained_sequences(60, {52, 58}), Seen(4, "----"));
}

}  // namespace
}  // namespace braid
