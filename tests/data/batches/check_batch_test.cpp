#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/batches/batch.h"
#include "models/providers.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TEST(CheckBatch, OfText) {
  const LanguageBatch good = {.ids = at::arange(6),
                              .labels = at::arange(6),
                              .offsets = {0, 2, 6},
                              .rows = {{3, 0}},
                              .identities = {identity_of_mock(0), identity_of_mock(1)}};
  check_batch(good, 2, {.encoders = 1, .vocabulary = 100});
  const auto refusal = [&](const std::function<void(LanguageBatch&)>& spoil) {
    LanguageBatch batch = good;
    batch.ids = good.ids.clone();
    batch.labels = good.labels.clone();
    spoil(batch);
    return testing::error_of<DataError>([&] { check_batch(batch, 2, {.encoders = 1, .vocabulary = 100}); });
  };
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.labels = at::arange(5); }),
              HasSubstr("6 token ids but 5 labels"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.ids = at::zeros({6}); }), HasSubstr("lists of int64"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.offsets = {0, 2, 5}; }), HasSubstr("from 0 to its 6 tokens"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.offsets = {0, 7, 6}; }), HasSubstr("from 0 to its 6 tokens"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.ids[3] = 100; }), HasSubstr("token id 100 is outside"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.ids[3] = -100; }), HasSubstr("token id -100 is outside"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.labels[3] = -1; }), HasSubstr("label -1 is outside"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.rows.clear(); }), HasSubstr("for 0 encoders"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.rows[0] = {3}; }), HasSubstr("for 1 samples, but has 2"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.identities.pop_back(); }), HasSubstr("identifies 1 sequences"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.sequence_of = {{{0}}}; }), HasSubstr("name one of its"));
  EXPECT_THAT(refusal([](LanguageBatch& batch) { batch.sequence_of = {{{0}, {9}}}; }), HasSubstr("name one of its"));
}

TEST(CheckBatch, OfMedia) {
  const EncoderConfig config = provider("tiny-vlm").encoders.at(0);
  const std::int64_t features = features_of(config.model);
  const EncoderBatch good = {.values = at::zeros({10, features}),
                             .extents = {{2, 2}, {2, 3}},
                             .sample_of = {0, 1},
                             .identities = {identity_of_mock(0), identity_of_mock(1)}};
  check_batch(good, 2, config);
  check_batch({}, 2, config);
  const auto refusal = [&](const std::function<void(EncoderBatch&)>& spoil) {
    EncoderBatch batch = good;
    spoil(batch);
    return testing::error_of<DataError>([&] { check_batch(batch, 2, config); });
  };
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.sample_of = {0}; }), HasSubstr("2 items but the samples of 1"));
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.sample_of = {0, 2}; }), HasSubstr("order of its 2 samples"));
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.sample_of = {1, 0}; }), HasSubstr("order of its 2 samples"));
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.extents[1] = {2, 3, 1}; }), HasSubstr("2 x 3 x 1"));
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.extents[1] = {2, -3}; }), HasSubstr("positive numbers"));
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.identities.clear(); }), HasSubstr("identifies 0 sequences"));
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.damaged = {true}; }), HasSubstr("2 items but says of 1"));
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.values = at::Tensor(); }), HasSubstr("10 rows"));
  EXPECT_THAT(refusal([](EncoderBatch& batch) { batch.values = batch.values.narrow(0, 0, 9); }), HasSubstr("10 rows"));
}

}  // namespace
}  // namespace braid
