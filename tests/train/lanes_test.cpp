// A source whose position only its readers know: a run resumes from the positions that training reports, although the
// readers are ahead of it, with another number of replicas too.
#include <gtest/gtest.h>
#include "comm/world.h"
#include "data/batches/mock_data.h"
#include "support/ranks.h"
#include "train/all_ranks.h"
#include "train/training_run.h"

namespace braid {
namespace {

constexpr int kLanes = 2;

// Sample i of lane l is sample i * kLanes + l of `samples`. A replica takes samples from its lanes in turn.
class Lanes : public BatchSource {
 public:
  Lanes(const SampleSource& samples, std::vector<MediaToken> media)
      : one_by_one_(make_sample_batches(samples, std::move(media))) {}

  int lanes() const override { return kLanes; }
  void restore(const std::vector<std::string>& positions) override {
    for (std::size_t l = 0; l < kLanes; ++l) first_[l] = std::stoi(positions.at(l));
  }
  std::vector<std::string> positions_after(std::int64_t) const override { return {}; }

  BatchReader<LanguageBatch> read_language(const ReaderSamples& samples) const override {
    return Reader<LanguageBatch>(*this, samples,
                                 [this](const ReaderSamples& one) { return one_by_one_->read_language(one); });
  }
  BatchReader<EncoderBatch> read_encoder(const std::string& encoder, const ReaderSamples& samples) const override {
    return Reader<EncoderBatch>(
        *this, samples, [this, encoder](const ReaderSamples& one) { return one_by_one_->read_encoder(encoder, one); });
  }

 private:
  // One sample per microbatch and replica, which is all these tests need.
  template <class Batch>
  class Reader {
   public:
    template <class Read>
    Reader(const Lanes& data, const ReaderSamples& samples, Read read)
        : replica_(static_cast<int>(samples.own.begin)), own_(kLanes / samples.language_replicas), next_(data.first_) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes_.push_back(read({.all = kLanes, .own = {lane, lane + 1}}));
        for (int i = 0; i < next_[static_cast<std::size_t>(lane)]; ++i) lanes_.back()();
      }
    }
    Batch operator()() {
      const auto lane = static_cast<std::size_t>(replica_ * own_ + turn_++ % own_);
      Batch batch = lanes_[lane]();
      ++next_[lane];
      if constexpr (std::is_same_v<Batch, LanguageBatch>) {
        batch.positions.clear();
        for (int l = replica_ * own_; l < (replica_ + 1) * own_; ++l)
          batch.positions.push_back({l, std::to_string(next_[static_cast<std::size_t>(l)])});
      }
      return batch;
    }

   private:
    const int replica_, own_;
    std::vector<int> next_;  // by lane
    std::vector<BatchReader<Batch>> lanes_;
    int turn_ = 0;
  };

  const std::unique_ptr<BatchSource> one_by_one_;
  std::vector<int> first_ = std::vector<int>(kLanes);
};

// Nothing changes from step to step: the loss depends on the samples only.
Provider without_expert_bias() {
  Provider provider = testing::small_vlm();
  std::get<HybridLmConfig>(provider.language).expert_bias_rate = 0;
  return provider;
}

struct Part {
  std::vector<double> losses;
  std::vector<std::string> positions;
};

Part run(int dp, int steps, const std::vector<std::string>& positions) {
  const testing::TrainingLayout layout = {
      .images = {.dp = dp}, .language = {.dp = dp}, .micro_batch = 1, .provider = without_expert_bias};
  const Topology topology = testing::topology_of(layout);
  const Provider provider = layout.provider();
  const auto samples = testing::mock(testing::mixed_data())(provider, topology);
  Part part;
  testing::on_threads(topology.world_size(), [&](World& world) {
    Lanes data(*samples, media_tokens(provider, topology));
    if (!positions.empty()) data.restore(positions);
    TrainingConfig config = testing::config_of(layout);
    config.schedule.max_lr = config.schedule.min_lr = 0;
    const Groups groups(world, topology);
    Training training(provider, topology, groups, world, config);
    training.read_from(data, 0);
    StepClock clock;
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step)
      losses.push_back(training.step(clock, [] { return StopReason::None; }).loss);
    const std::vector<std::string> reported = training.data_positions();
    training.finish_parameters();
    if (world.rank() == 0) part = {losses, reported};
  });
  return part;
}

TEST(Lanes, ARunContinuesWhereTrainingWas) {
  const Part whole = run(1, 4, {});
  for (const int dp : {1, 2}) {
    const Part first = run(dp, 2, {}), rest = run(3 - dp, 2, first.positions);
    EXPECT_EQ(first.positions,
              (std::vector<std::string>{std::to_string(testing::kGlobalBatch), std::to_string(testing::kGlobalBatch)}));
    EXPECT_EQ(rest.positions, whole.positions);
    for (std::size_t step = 0; step < 4; ++step)
      EXPECT_NEAR(step < 2 ? first.losses[step] : rest.losses[step - 2], whole.losses[step], 1e-12) << dp;
  }
}

TEST(Lanes, EachTextHasOneProvider) {
  testing::on_threads(2, [](World& world) {
    const std::string own = world.rank() == 0 ? "first" : "the second";
    EXPECT_EQ(gathered_texts({{world.rank(), own}}, 2, world), (std::vector<std::string>{"first", "the second"}));
    EXPECT_ANY_THROW(gathered_texts({{0, own}}, 1, world));
    EXPECT_ANY_THROW(gathered_texts({{world.rank(), own}}, 3, world));
  });
}

}  // namespace
}  // namespace braid
