#include "data/batches/mock_data.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ops/cross_entropy.h"
#include "support/grid_sizes.h"

namespace braid {
namespace {

Topology small_topology(const std::vector<std::string>& encoders = {"images"}) {
  TopologyConfig config;
  for (const std::string& encoder : encoders)
    config.modules.push_back(testing::module_of(encoder, ModuleKind::Encoder, {}));
  config.modules.push_back(testing::module_of("language", ModuleKind::Language, {}));
  return Topology(config, {});
}

std::int64_t count(const at::Tensor& ids, int token) { return (ids == token).sum().item<std::int64_t>(); }

std::int64_t rows_in(const MockData& data, const Provider& provider, std::int64_t sample) {
  std::int64_t rows = 0;
  for (const MediaItem& item : data.media("images", sample)) {
    EXPECT_EQ(item.values.size(0), item.extent.at(0) * item.extent.at(1));
    rows += rows_of(provider.encoders[0], item.extent);
  }
  return rows;
}

TEST(MockData, IsAsItsConfigSays) {
  const Provider provider = tiny_vlm();
  MockDataConfig config = {.sequence_length = 64, .min_length = 40};
  config.media = {{.name = "images", .share = 0.7, .min_items = 2, .max_items = 3, .min_size = 4, .max_size = 8}};
  const MockData data(config, provider, small_topology(), 5);
  int with_images = 0, padded = 0;
  for (int sample = 0; sample < 200; ++sample) {
    const Tokens tokens = data.tokens(sample);
    ASSERT_EQ(tokens.ids.size(0), 64);
    EXPECT_EQ(count(tokens.ids, 511), rows_in(data, provider, sample)) << sample;
    const auto length = (tokens.ids != 0).sum().item<std::int64_t>();
    EXPECT_GE(length, 40);
    padded += length < 64;
    const std::vector<MediaItem> images = data.media("images", sample);
    with_images += !images.empty();
    EXPECT_LE(images.size(), 3u);
    for (const MediaItem& image : images)
      for (const std::int64_t side : image.extent) EXPECT_TRUE(side >= 4 && side <= 8 && side % 2 == 0) << side;
    // A label is the next token, and never an image token.
    const at::Tensor counted = tokens.labels != kIgnoredLabel;
    const at::Tensor next = at::cat({tokens.ids.narrow(0, 1, 63), at::zeros({1}, at::kLong)});
    EXPECT_TRUE(at::equal(tokens.labels.masked_select(counted), next.masked_select(counted)));
    EXPECT_EQ(count(tokens.labels, 511), 0);
  }
  EXPECT_NEAR(with_images, 140, 20);
  EXPECT_GT(padded, 150);
}

TEST(MockData, DependsOnSeedAndSampleAlone) {
  const Provider provider = tiny_vlm();
  const MockData data({}, provider, small_topology(), 5), again({}, provider, small_topology(), 5),
      other({}, provider, small_topology(), 6);
  EXPECT_TRUE(at::equal(data.tokens(3).ids, again.tokens(3).ids));
  EXPECT_FALSE(at::equal(data.tokens(3).ids, other.tokens(3).ids));
  EXPECT_FALSE(at::equal(data.tokens(3).ids, data.tokens(4).ids));
}

// Without noise, text counts up by the stride that its images show.
TEST(MockData, ImagesTellTheStride) {
  const Provider provider = tiny_vlm();
  MockDataConfig config = {.alphabet = 100, .noise = 0};
  config.media = {{.name = "images", .share = 0.8, .max_items = 1}};
  const MockData data(config, provider, small_topology(), 5);
  std::map<std::int64_t, at::Tensor> looks;  // by stride: the mean patch
  for (int sample = 0; sample < 40; ++sample) {
    const at::Tensor ids = data.tokens(sample).ids;
    const auto last = ids.size(0) - 1;
    const auto stride = (ids[last] - ids[last - 1] + 100).remainder(100).item<std::int64_t>();
    const std::vector<MediaItem> images = data.media("images", sample);
    EXPECT_EQ(images.empty(), stride == 1) << sample;
    if (images.empty()) continue;
    const at::Tensor mean = images[0].values.mean(0);
    const auto [seen, is_new] = looks.try_emplace(stride, mean);
    EXPECT_LT((seen->second - mean).abs().mean().item<double>(), 0.5);
    for (const auto& [other, look] : looks) {
      const double difference = (look - mean).abs().mean().item<double>();
      EXPECT_TRUE(other == stride || difference > 0.8) << difference;
    }
  }
  EXPECT_GT(looks.size(), 4u);
}

// An audio clip is a whole number of tokens long, and follows the images if there are both.
TEST(MockData, HasSoundsForAnEncoderThatHears) {
  const Provider provider = tiny_omni();
  const int per_token = std::get<AudioConfig>(provider.encoders[1].model).frames_per_token();
  MockDataConfig config = {.sequence_length = 64, .min_length = 40};
  config.media = {{.name = "images", .share = 0.5, .max_items = 1, .max_size = 4},
                  {.name = "audio", .share = 0.5, .min_items = 1, .max_items = 3, .min_size = 2, .max_size = 30}};
  const MockData data(config, provider, small_topology({"images", "audio"}), 5);
  std::map<std::pair<bool, bool>, int> kinds;  // by: has images, has sounds
  for (int sample = 0; sample < 200; ++sample) {
    const std::vector<MediaItem> sounds = data.media("audio", sample);
    EXPECT_LE(sounds.size(), 3u);
    std::int64_t rows = 0;
    for (const MediaItem& sound : sounds) {
      ASSERT_EQ(sound.extent.size(), 1u);
      const std::int64_t frames = sound.extent[0];
      EXPECT_EQ(frames % per_token, 0) << frames;
      EXPECT_TRUE(frames >= per_token && frames <= 30 + per_token / 2) << frames;
      EXPECT_EQ(sound.values.sizes().vec(), (std::vector<std::int64_t>{frames, 40}));
      rows += frames / per_token;
    }
    const Tokens tokens = data.tokens(sample);
    const std::int64_t images = rows_in(data, provider, sample);
    EXPECT_EQ(count(tokens.ids, 511), images) << sample;
    EXPECT_EQ(count(tokens.ids, 510), rows) << sample;
    EXPECT_EQ(count(tokens.ids.narrow(0, images, rows), 510), rows) << sample;
    EXPECT_EQ(count(tokens.labels, 510) + count(tokens.labels, 511), 0);
    ++kinds[{images > 0, rows > 0}];
  }
  for (const bool images : {false, true})
    for (const bool sounds : {false, true}) EXPECT_NEAR((kinds[{images, sounds}]), 50, 25) << images << sounds;
}

// Samples contain no media for encoders that the topology lacks.
TEST(MockData, HasNothingForAnEncoderThatDoesNotRun) {
  MockDataConfig config;
  config.media = {{.name = "images", .share = 1}, {.name = "audio", .share = 1}};
  const MockData data(config, tiny_omni(), small_topology({"audio"}), 5);
  for (int sample = 0; sample < 20; ++sample) {
    EXPECT_TRUE(data.media("images", sample).empty());
    EXPECT_FALSE(data.media("audio", sample).empty());
    EXPECT_EQ(count(data.tokens(sample).ids, 511), 0);
    EXPECT_GT(count(data.tokens(sample).ids, 510), 0);
  }
}

// CLIP takes images of one size, whatever the requested size: 4 x 4 patches of 14 x 14 pixels in 3 colours.
TEST(MockData, HasImagesOfTheOneSizeThatClipTakes) {
  const Provider provider = tiny_llava();
  MockDataConfig config = {.sequence_length = 64};
  config.media = {{.name = "images", .share = 1, .min_items = 1, .max_items = 4, .min_size = 2, .max_size = 9}};
  const MockData data(config, provider, small_topology(), 5);
  std::map<std::size_t, int> by_images;
  for (int sample = 0; sample < 100; ++sample) {
    const std::vector<MediaItem> images = data.media("images", sample);
    for (const MediaItem& image : images) {
      EXPECT_EQ(image.extent, (std::vector<std::int64_t>{4, 4}));
      EXPECT_EQ(image.values.sizes().vec(), (std::vector<std::int64_t>{16, 588}));
    }
    EXPECT_EQ(count(data.tokens(sample).ids, 511), 16 * static_cast<std::int64_t>(images.size()));
    ++by_images[images.size()];
  }
  EXPECT_EQ(by_images.size(), 3u);  // a fourth would leave no room for text
  EXPECT_EQ(by_images.rbegin()->first, 3u);
}

}  // namespace
}  // namespace braid
