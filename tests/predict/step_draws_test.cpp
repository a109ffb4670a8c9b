// The sizes of a simulated step. The oracle for mock samples is what the readers of a run return.
#include "predict/step_draws.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "data/batches/mock_data.h"
#include "ops/cross_entropy.h"
#include "plan/pipeline.h"
#include "plan/schedule.h"
#include "run/trainer.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

Recipe recipe_of(const std::string& changes) {
  std::vector<ConfigOverride> overrides;
  std::istringstream words(changes);
  for (std::string key, value; words >> key >> value;) overrides.push_back({key, value});
  return parse_recipe(R"(
topology: {modules: {images: {kind: encoder, dp: 2}, audio: {kind: encoder}, language: {kind: language, dp: 4, cp: 2}}}
model: {provider: tiny-omni, dtype: float64}
data:
  sequence_length: 64
  min_length: 40
  media:
    images: {share: 0.7, max_items: 3, max_size: 8}
    audio: {share: 0.4, max_items: 2, min_size: 4, max_size: 20}
train: {micro_batch: 2, global_batch: 32}
)",
                      overrides);
}

Topology topology_of(const Recipe& recipe) { return Topology(recipe.topology, workload_of(recipe)); }

// As the run's readers return the steps.
class Readers {
 public:
  explicit Readers(const Recipe& recipe) : recipe_(recipe), topology_(topology_of(recipe)) {
    source_ = make_batch_source(recipe, topology_, recipe.train.seed, DataUse::Training, nullptr);
    for (const Module& module : topology_.modules())
      for (int replica = 0; replica < module.dense.size_of("dp"); ++replica) {
        const ReaderSamples samples = {
            .all = all(),
            .own = samples_of_replica(module, all(), module.dense.rank_at({0, 0, replica, 0})),
            .language_replicas = topology_.language().dense.size_of("dp"),
            .microbatches = microbatches()};
        if (module.is_encoder)
          encoders_.push_back({samples.own, source_->read_encoder(module.name, samples)});
        else
          language_.push_back(source_->read_language(samples));
      }
  }

  StepSizes next() {
    StepSizes sizes;
    sizes.text.resize(index(microbatches()));
    sizes.media.resize(topology_.modules().size());
    for (auto& texts : sizes.text)
      for (const auto& reader : language_) texts.push_back(text_of(reader()));
    std::size_t reader = 0;
    for (std::size_t m = 0; m < topology_.modules().size(); ++m) {
      const Module& module = topology_.modules()[m];
      sizes.media[m].assign(index(microbatches()), std::vector<StepSizes::Extents>(index(all())));
      for (int replica = 0; module.is_encoder && replica < module.dense.size_of("dp"); ++replica, ++reader)
        for (auto& of_samples : sizes.media[m]) {
          const EncoderBatch batch = encoders_[reader].second();
          for (std::size_t i = 0; i < batch.extents.size(); ++i)
            of_samples[index(encoders_[reader].first.begin + batch.sample_of[i])].push_back(batch.extents[i]);
        }
      sizes.value_bytes.push_back(sizeof(double));
    }
    return sizes;
  }

 private:
  std::int64_t all() const {
    return std::int64_t{recipe_.train.micro_batch} * topology_.language().dense.size_of("dp");
  }
  int microbatches() const { return microbatches_of(workload_of(recipe_), topology_); }

  StepSizes::Text text_of(const LanguageBatch& batch) const {
    StepSizes::Text text = {.tokens = batch.ids.size(0), .sequences = std::ssize(batch.offsets) - 1};
    for (const at::Tensor& share : batch.labels.chunk(topology_.language().dense.size_of("cp")))
      text.labels.push_back((share != kIgnoredLabel).sum().item<std::int64_t>());
    for (std::size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      const auto length = static_cast<double>(batch.offsets[i + 1] - batch.offsets[i]);
      text.squares += length * length;
    }
    return text;
  }

  const Recipe recipe_;
  const Topology topology_;
  std::unique_ptr<BatchSource> source_;
  std::vector<BatchReader<LanguageBatch>> language_;
  std::vector<std::pair<SampleRange, BatchReader<EncoderBatch>>> encoders_;
};

void expect_equal(const StepSizes& got, const StepSizes& expected) {
  ASSERT_EQ(got.text.size(), expected.text.size());
  for (std::size_t mb = 0; mb < got.text.size(); ++mb) {
    ASSERT_EQ(got.text[mb].size(), expected.text[mb].size());
    for (std::size_t r = 0; r < got.text[mb].size(); ++r) {
      const StepSizes::Text &own = got.text[mb][r], &other = expected.text[mb][r];
      EXPECT_EQ(own.tokens, other.tokens);
      EXPECT_EQ(own.sequences, other.sequences);
      EXPECT_EQ(own.labels, other.labels) << "microbatch " << mb << ", replica " << r;
      EXPECT_EQ(own.squares, other.squares);
    }
  }
  EXPECT_EQ(got.media, expected.media);
  EXPECT_EQ(got.value_bytes, expected.value_bytes);
}

class StepDraws : public ::testing::TestWithParam<std::string> {};

TEST_P(StepDraws, AreTheSizesOfMockSamples) {
  const Recipe recipe = recipe_of(GetParam());
  const Topology topology = topology_of(recipe);
  Readers readers(recipe);
  for (std::uint64_t step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    expect_equal(draw_step(recipe, topology, nullptr, step), readers.next());
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, StepDraws,
                         ::testing::Values("", "data.packed 2 data.min_length 20", "data.min_length 64",
                                           "topology.modules.language.cp 1 train.micro_batch 1", "loader.balance cost",
                                           "loader.balance cost loader.balance_replicas 2",
                                           "loader.balance cost loader.balance_replicas 4 train.micro_batch 1"));

std::int64_t items(const StepSizes& sizes) {
  std::int64_t count = 0;
  for (const auto& module : sizes.media)
    for (const auto& microbatch : module)
      for (const auto& sample : microbatch) count += std::ssize(sample);
  return count;
}

// How unevenly the work of a module, in floating-point operations, is distributed; 1 if it is even. Modules that share
// ranks are counted together.
struct Imbalance {
  std::string module{};     // or several, joined by " + "
  double replicas = 1;      // largest / mean work of the replicas in the step
  double microbatches = 1;  // largest / mean work of all replicas in a microbatch
  double lockstep = 1;      // time / mean if all wait for the slowest replica in every microbatch
};

using WorkTable = std::vector<std::vector<double>>;  // by microbatch and replica

struct ModuleWork {
  std::string name;
  WorkTable work;
};

WorkTable text_work(const std::vector<std::vector<StepSizes::Text>>& texts, const SampleCosts& costs) {
  WorkTable work;
  for (const auto& microbatch : texts) {
    work.emplace_back();
    for (const StepSizes::Text& text : microbatch)
      work.back().push_back(costs.of_text(
          text.tokens, std::accumulate(text.labels.begin(), text.labels.end(), std::int64_t{0}), text.squares));
  }
  return work;
}

WorkTable media_work(const std::vector<std::vector<StepSizes::Extents>>& media, const Module& module,
                     const SampleCosts& costs, std::size_t encoder) {
  const auto replicas = static_cast<std::size_t>(module.dense.size_of("dp"));
  WorkTable work;
  for (const auto& samples : media) {
    work.emplace_back(replicas);
    for (std::size_t s = 0; s < samples.size(); ++s)
      work.back()[s * replicas / samples.size()] += costs.of_media(encoder, samples[s]);
  }
  return work;
}

// Adds the work of modules that share ranks. Each replica's ranks share its work, and every module assigns equal shares
// of the samples to the same ranks.
ModuleWork joined(const std::vector<ModuleWork>& modules) {
  ModuleWork all;
  std::size_t shares = 1;
  for (const ModuleWork& module : modules) {
    all.name += (all.name.empty() ? "" : " + ") + module.name;
    shares = std::lcm(shares, module.work.at(0).size());
  }
  all.work.assign(modules.at(0).work.size(), std::vector<double>(shares));
  for (const ModuleWork& module : modules)
    for (std::size_t mb = 0; mb < all.work.size(); ++mb)
      for (std::size_t share = 0; share < shares; ++share) {
        const std::size_t replicas = module.work[mb].size();
        all.work[mb][share] += module.work[mb][share * replicas / shares] * static_cast<double>(replicas);
      }
  return all;
}

Imbalance imbalance_of(const ModuleWork& module) {
  const WorkTable& work = module.work;
  const auto microbatches = static_cast<double>(work.size()), replicas = static_cast<double>(work.at(0).size());
  std::vector<double> of_replica(work[0].size());
  double all = 0, most_of_microbatch = 0, slowest = 0;
  for (const std::vector<double>& microbatch : work) {
    std::ranges::transform(of_replica, microbatch, of_replica.begin(), std::plus<>());
    const double sum = std::accumulate(microbatch.begin(), microbatch.end(), 0.0);
    all += sum;
    most_of_microbatch = std::max(most_of_microbatch, sum);
    slowest += std::ranges::max(microbatch);
  }
  if (all == 0) return {.module = module.name};
  return {.module = module.name,
          .replicas = std::ranges::max(of_replica) * replicas / all,
          .microbatches = most_of_microbatch * microbatches / all,
          .lockstep = slowest * replicas / all};
}

std::vector<Imbalance> imbalance_of(const StepSizes& sizes, const Recipe& recipe, const Topology& topology) {
  const SampleCosts costs(recipe.model.model, topology, frozen_sets(recipe));
  std::vector<ModuleWork> modules;
  std::size_t encoder = 0;
  for (std::size_t m = 0; m < topology.modules().size(); ++m) {
    const Module& module = topology.modules()[m];
    modules.push_back({module.name, module.is_encoder ? media_work(sizes.media[m], module, costs, encoder)
                                                      : text_work(sizes.text, costs)});
    encoder += module.is_encoder;
  }
  if (topology.colocated()) modules = {joined(modules)};
  std::vector<Imbalance> all;
  for (const ModuleWork& module : modules) all.push_back(imbalance_of(module));
  return all;
}

double worst(const Recipe& recipe, double Imbalance::*kind) {
  const Topology topology = topology_of(recipe);
  double most = 0;
  for (std::uint64_t step = 0; step < 20; ++step)
    for (const Imbalance& module : imbalance_of(draw_step(recipe, topology, nullptr, step), recipe, topology))
      most = std::max(most, module.*kind);
  return most;
}

TEST(Balance, EvensOutReplicasAndMicrobatches) {
  const Recipe as_read = recipe_of("data.media.audio.share 0"),
               balanced = recipe_of("data.media.audio.share 0 loader.balance cost loader.balance_replicas 4");
  for (const auto kind : {&Imbalance::replicas, &Imbalance::microbatches, &Imbalance::lockstep}) {
    EXPECT_GT(worst(as_read, kind), 1.3);
    EXPECT_LT(worst(balanced, kind) - 1, 0.35 * (worst(as_read, kind) - 1));
  }
  const Topology topology = topology_of(balanced);
  EXPECT_EQ(items(draw_step(as_read, topology, nullptr, 0)), items(draw_step(balanced, topology, nullptr, 0)));
}

// One sample per microbatch and replica: microbatches cannot be even, but replicas wait less for each other.
TEST(Balance, GathersSimilarSamplesWhereReplicasHaveOneEach) {
  const std::string alone =
      "topology.colocated true topology.modules.images.dp 4 topology.modules.images.tp 2 "
      "topology.modules.audio.dp 4 topology.modules.audio.tp 2 train.micro_batch 1 ";
  const Recipe as_read = recipe_of(alone),
               balanced = recipe_of(alone + "loader.balance cost loader.balance_replicas 4"),
               within = recipe_of(alone + "loader.balance cost");
  EXPECT_LT(worst(balanced, &Imbalance::lockstep), worst(as_read, &Imbalance::lockstep));
  EXPECT_LT(worst(within, &Imbalance::lockstep), worst(as_read, &Imbalance::lockstep));
  EXPECT_LT(worst(balanced, &Imbalance::replicas), worst(as_read, &Imbalance::replicas));
}

DataStats two_sequences() {
  return {.sequence_length = 64,
          .encoders = {"images"},
          .sequences = {{.pieces = {{30, 10, 19, 29}, {20, 5, 4, 18}}, .media = {{{4, 4}, {2, 8}}}},
                        {.pieces = {{64, 63, 0, 63}}, .media = {{}}}}};
}

TEST(StepDraws, ComeFromStatistics) {
  const Recipe recipe = recipe_of("train.micro_batch 1");
  const Topology topology = topology_of(recipe);
  const DataStats stats = two_sequences();
  int with_pictures = 0, samples = 0;
  for (std::uint64_t step = 0; step < 10; ++step) {
    const StepSizes sizes = draw_step(recipe, topology, &stats, step);
    EXPECT_EQ(sizes.value_bytes, (std::vector<std::int64_t>{1, 1, 1}));
    for (std::size_t mb = 0; mb < sizes.text.size(); ++mb)
      for (std::size_t r = 0; r < sizes.text[mb].size(); ++r, ++samples) {
        const StepSizes::Text& text = sizes.text[mb][r];
        const bool has_pictures = !sizes.media[0][mb][r].empty();
        EXPECT_EQ(text.tokens, 64);
        EXPECT_EQ(text.sequences, has_pictures ? 3 : 1);  // with the padding
        EXPECT_EQ(text.squares, has_pictures ? 30 * 30 + 20 * 20 + 14 * 14 : 64 * 64);
        // Cut at token 32: 10 and none of the second piece's, whose labels begin at 34.
        EXPECT_EQ(text.labels, (has_pictures ? std::vector<std::int64_t>{10, 5} : std::vector<std::int64_t>{32, 31}));
        if (has_pictures) EXPECT_EQ(sizes.media[0][mb][r], stats.sequences[0].media[0]);
        EXPECT_TRUE(sizes.media[1][mb][r].empty());
        with_pictures += has_pictures;
      }
  }
  EXPECT_EQ(samples, 320);
  EXPECT_NEAR(with_pictures, 160, 40);
  expect_equal(draw_step(recipe, topology, &stats, 3), draw_step(recipe, topology, &stats, 3));
}

TEST(StepDraws, RefuseStatisticsOfAnotherRecipe) {
  const auto told = [](const std::string& changes, const DataStats& stats) {
    const Recipe recipe = recipe_of(changes);
    const Topology topology = topology_of(recipe);
    return testing::error_of<ConfigError>([&] { draw_step(recipe, topology, &stats, 0); });
  };
  DataStats stats = two_sequences();
  EXPECT_THAT(told("data.sequence_length 128", stats), HasSubstr("sequences of 64 tokens, but the recipe's have 128"));
  stats.encoders = {"videos"};
  EXPECT_THAT(told("", stats), HasSubstr("media for 'videos'"));
  stats = two_sequences();
  stats.sequences[1].media[0] = {{3, 4}};
  EXPECT_THAT(told("", stats), HasSubstr("does not accept media of size 3 x 4"));
  stats.sequences[1].media[0] = {{32, 32}};
  EXPECT_THAT(told("", stats), HasSubstr("become 256 embeddings, more than its 64 tokens"));
}

}  // namespace
}  // namespace braid
