// Every rank of a replica gets its leader's text and extents, values stay on the leader, and positions belong to the
// step that was handed out, although readers run ahead.
#include "mimo/batch_feed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "dist/world.h"
#include "support/grid_sizes.h"
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

  std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderSamples& samples) const override {
    struct Reader : BatchReader<LanguageBatch> {
      Reader(const CountingLanes& data, const ReaderSamples& samples) : data(data), samples(samples) {
        const int replica = static_cast<int>(samples.own.begin * samples.language_replicas / samples.all);
        const int own = kLanes / samples.language_replicas;
        for (int l = replica * own; l < (replica + 1) * own; ++l)
          lanes.push_back({l, data.first_[static_cast<std::size_t>(l)]});
      }
      LanguageBatch next() override {
        auto& [lane, position] = lanes[static_cast<std::size_t>(turn++) % lanes.size()];
        LanguageBatch batch;
        batch.ids = at::full({kTokens}, position++, at::kLong);
        batch.ids[0] = data.token_;
        batch.labels = batch.ids;
        batch.offsets = {0, kTokens / 2, kTokens};
        batch.rows = {{1}};
        for (const auto& [l, p] : lanes) batch.positions.push_back({l, std::to_string(p)});
        return batch;
      }
      const CountingLanes& data;
      const ReaderSamples samples;
      std::vector<std::pair<int, int>> lanes;  // index and position
      int turn = 0;
    };
    return std::make_unique<Reader>(*this, samples);
  }

  std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string&,
                                                          const ReaderSamples& samples) const override {
    struct Reader : BatchReader<EncoderBatch> {
      explicit Reader(std::int64_t samples) : samples(samples) {}
      EncoderBatch next() override {
        EncoderBatch batch = {
            .values = at::full({4 * samples, 3 * 16 * 16}, 7, at::kByte), .extents = {}, .sample_of = {}};
        for (std::int64_t s = 0; s < samples; ++s) {
          batch.extents.push_back({2, 2});
          batch.sample_of.push_back(s);
        }
        return batch;
      }
      const std::int64_t samples;
    };
    return std::make_unique<Reader>(samples.own.size());
  }

 private:
  const int token_;
  std::vector<int> first_ = {0, 100};
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
  config.modules = {testing::module_of("images", "encoder", encoder),
                    testing::module_of("language", "language", language)};
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

}  // namespace
}  // namespace braid
