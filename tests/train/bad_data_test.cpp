// Samples whose tokens do not match their media end a run, in any layout, with an error that names the sample and both
// counts.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include "base/error.h"
#include "support/errors.h"
#include "train/training_run.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

using testing::mixed_data;
using testing::small_omni;

using Layout = testing::TrainingLayout;

constexpr int kRunSteps = 4;

enum class Flaw { NoMedia, NoTokens, TokenTooFew, TokenTooMany, RowOfTheNextSample };

struct Bad {
  std::string encoder;
  int token;
  Flaw flaw;
  std::int64_t sample;
};

class BadData : public SampleSource {
 public:
  BadData(std::unique_ptr<SampleSource> good, const Bad& bad) : good_(std::move(good)), bad_(bad) {}

  Tokens tokens(std::int64_t sample) const override {
    Tokens tokens = good_->tokens(sample);
    const at::Tensor media = (tokens.ids == bad_.token).nonzero().squeeze(1);
    const at::Tensor last = at::tensor({tokens.ids.size(0) - 1}, at::kLong);
    if (sample == bad_.sample && bad_.flaw == Flaw::NoTokens) tokens.ids.index_fill_(0, media, 1);
    if (sample == bad_.sample && (bad_.flaw == Flaw::TokenTooFew || bad_.flaw == Flaw::RowOfTheNextSample))
      tokens.ids.index_fill_(0, media.narrow(0, 0, 1), 1);
    const bool adds = bad_.flaw == Flaw::TokenTooMany
                          ? sample == bad_.sample
                          : bad_.flaw == Flaw::RowOfTheNextSample && sample == bad_.sample + 1;
    if (adds) tokens.ids.index_fill_(0, last, bad_.token);
    return tokens;
  }
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    if (encoder == bad_.encoder && sample == bad_.sample && bad_.flaw == Flaw::NoMedia) return {};
    return good_->media(encoder, sample);
  }

 private:
  const std::unique_ptr<SampleSource> good_;
  const Bad bad_;
};

testing::MakeData with(const Bad& bad) {
  return [bad](const Provider& provider, const Topology& topology) {
    return std::make_unique<BadData>(testing::mock(mixed_data())(provider, topology), bad);
  };
}

// After the first step, the first of a replica's two samples that has input for the encoder.
std::int64_t a_sample_with(const std::string& encoder, const Layout& layout) {
  const auto data = testing::mock(mixed_data())(layout.provider(), topology_of(layout));
  for (std::int64_t sample = testing::kGlobalBatch + 2; sample < kRunSteps * testing::kGlobalBatch; sample += 2)
    if (!data->media(encoder, sample).empty()) return sample;
  throw std::logic_error("no such sample");
}

void expect_to_end_with_sample_and_counts(const EncoderConfig& encoder, Flaw flaw, const Layout& layout) {
  const Bad bad = {encoder.name, encoder.token_id, flaw, a_sample_with(encoder.name, layout)};
  const auto data = with(bad)(layout.provider(), topology_of(layout));
  const auto tokens = (data->tokens(bad.sample).ids == bad.token).sum().item<std::int64_t>();
  std::int64_t rows = 0;
  for (const MediaItem& item : data->media(encoder.name, bad.sample)) rows += rows_of(encoder, item.extent);
  EXPECT_NE(tokens, rows);
  EXPECT_THAT(testing::error_of<DataError>([&] { train(layout, {.steps = kRunSteps, .data = with(bad)}); }),
              HasSubstr(fmt::format("sample {} has {} tokens for {}, but its media produce {} embeddings", bad.sample,
                                    tokens, encoder.name, rows)));
}

class BadSamples : public ::testing::TestWithParam<Flaw> {};

TEST_P(BadSamples, EndTheRunWithSampleAndCounts) {
  const Layout apart = {.images = {.dp = 2}, .audio = {.pp = 2}, .language = {.tp = 2, .dp = 2}, .sp = true};
  const Layout together = {.images = {.tp = 2}, .audio = {.dp = 2}, .language = {.pp = 2}, .colocated = true};
  for (Layout layout : {apart, together})
    for (const EncoderConfig& encoder : small_omni().encoders) {
      layout.micro_batch = 2;
      layout.provider = small_omni;
      expect_to_end_with_sample_and_counts(encoder, GetParam(), layout);
    }
}

INSTANTIATE_TEST_SUITE_P(Threads, BadSamples,
                         ::testing::Values(Flaw::NoMedia, Flaw::NoTokens, Flaw::TokenTooFew, Flaw::TokenTooMany,
                                           Flaw::RowOfTheNextSample));

// A source that cannot read a sample, as when a file of a data set is missing or damaged.
class UnreadableSample : public SampleSource {
 public:
  UnreadableSample(std::unique_ptr<SampleSource> good, std::int64_t sample, bool in_media)
      : good_(std::move(good)), sample_(sample), in_media_(in_media) {}

  Tokens tokens(std::int64_t sample) const override {
    if (!in_media_) check(sample);
    return good_->tokens(sample);
  }
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override {
    if (in_media_) check(sample);
    return good_->media(encoder, sample);
  }

 private:
  void check(std::int64_t sample) const {
    if (sample == sample_) throw std::runtime_error("cannot read shard 7");
  }

  const std::unique_ptr<SampleSource> good_;
  const std::int64_t sample_;
  const bool in_media_;
};

// In the first step, which agrees on sizes separately, and later; never as an error of the ranks that wait for it.
TEST(UnreadableSamples, EndTheRunWithTheErrorOfTheReader) {
  Layout layout = {.images = {.dp = 2}, .audio = {.pp = 2}, .language = {.tp = 2, .dp = 2}, .sp = true};
  layout.micro_batch = 2;
  layout.provider = small_omni;
  for (const bool in_media : {false, true})
    for (const std::int64_t sample : {0, testing::kGlobalBatch + 1}) {
      const auto data = [&](const Provider& provider, const Topology& topology) {
        return std::make_unique<UnreadableSample>(testing::mock(mixed_data())(provider, topology), sample, in_media);
      };
      EXPECT_THAT(testing::error_of<std::runtime_error>([&] { train(layout, {.steps = kRunSteps, .data = data}); }),
                  HasSubstr("cannot read shard 7"));
    }
}

}  // namespace
}  // namespace braid
