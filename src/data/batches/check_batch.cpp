#include "data/batches/check_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

template <class... Values>
void expect(bool holds, fmt::format_string<Values...> what, Values&&... values) {
  if (!holds) throw DataError(fmt::format(what, std::forward<Values>(values)...));
}

bool is_list_of_ids(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 1 && tensor.scalar_type() == at::kLong;
}

void check_ids(const at::Tensor& ids, std::int64_t vocabulary, const char* what, std::optional<std::int64_t> allowed) {
  const auto* first = ids.const_data_ptr<std::int64_t>();
  const auto* wrong = std::find_if(first, first + ids.numel(),
                                   [&](std::int64_t id) { return (id < 0 || id >= vocabulary) && id != allowed; });
  if (wrong == first + ids.numel()) return;
  throw DataError(
      fmt::format("{} {} is outside the model's vocabulary of {}: use the tokenizer that the vocabulary was "
                  "made for",
                  what, *wrong, vocabulary));
}

// Bytes are the pixels of RGB pictures.
bool takes_bytes(const EncoderModel& model) {
  const auto* radio = std::get_if<RadioConfig>(&model);
  const auto* clip = std::get_if<ClipConfig>(&model);
  return (radio && radio->channels == 3) || (clip && clip->channels == 3);
}

void check_sequences_of_items(const LanguageBatch& batch, std::int64_t samples) {
  if (batch.sequence_of.empty()) return;
  bool fits = batch.sequence_of.size() == batch.rows.size();
  for (const auto& by_sample : batch.sequence_of) {
    fits = fits && std::ssize(by_sample) == samples;
    for (const auto& sequences : by_sample)
      fits = fits && std::all_of(sequences.begin(), sequences.end(), [&](std::int64_t sequence) {
               return sequence >= 0 && sequence + 1 < std::ssize(batch.offsets);
             });
  }
  expect(fits, "a batch must name one of its {} sequences for each item of each encoder and sample",
         batch.offsets.size() - 1);
}

void check_identities(const std::vector<SequenceIdentity>& identities, std::int64_t samples) {
  expect(std::ssize(identities) == samples &&
             std::ranges::none_of(identities, [](const SequenceIdentity& identity) { return identity.hash == 0; }),
         "a batch identifies {} sequences, but has {}", identities.size(), samples);
}

}  // namespace

void check_batch(const LanguageBatch& batch, std::int64_t samples, const LanguageExpects& expected) {
  expect(is_list_of_ids(batch.ids) && is_list_of_ids(batch.labels), "ids and labels of a batch must be lists of int64");
  const std::int64_t tokens = batch.ids.size(0);
  expect(batch.labels.size(0) == tokens, "a batch has {} token ids but {} labels", tokens, batch.labels.size(0));
  expect(!batch.offsets.empty() && batch.offsets.front() == 0 && batch.offsets.back() == tokens &&
             std::is_sorted(batch.offsets.begin(), batch.offsets.end()),
         "the offsets of a batch's sequences must rise from 0 to its {} tokens", tokens);
  check_ids(batch.ids, expected.vocabulary, "token id", {});
  check_ids(batch.labels, expected.vocabulary, "label", kIgnoredLabel);
  expect(batch.rows.size() == expected.encoders, "a batch counts embeddings for {} encoders, but the topology has {}",
         batch.rows.size(), expected.encoders);
  for (const auto& rows : batch.rows)
    expect(std::ssize(rows) == samples, "a batch counts embeddings for {} samples, but has {}", rows.size(), samples);
  check_sequences_of_items(batch, samples);
  check_identities(batch.identities, samples);
}

void check_batch(const EncoderBatch& batch, std::int64_t samples, const EncoderConfig& config) {
  expect(batch.sample_of.size() == batch.extents.size(), "{}: a batch has {} items but the samples of {}", config.name,
         batch.extents.size(), batch.sample_of.size());
  expect(std::is_sorted(batch.sample_of.begin(), batch.sample_of.end()) &&
             (batch.sample_of.empty() || (batch.sample_of.front() >= 0 && batch.sample_of.back() < samples)),
         "{}: the items of a batch must be in the order of its {} samples", config.name, samples);
  expect(batch.damaged.empty() || batch.damaged.size() == batch.extents.size(),
         "{}: a batch has {} items but says of {} whether they are damaged", config.name, batch.extents.size(),
         batch.damaged.size());
  if (!batch.identities.empty() || !batch.extents.empty()) check_identities(batch.identities, samples);
  std::int64_t rows = 0;
  for (const Extent& extent : batch.extents) {
    expect(std::ssize(extent) == extent_dims(config.model) &&
               std::all_of(extent.begin(), extent.end(), [](std::int64_t size) { return size > 0; }),
           "{}: an item has the extent {}, which must be {} positive numbers", config.name, fmt::join(extent, " x "),
           extent_dims(config.model));
    rows += input_rows(extent);
  }
  if (batch.extents.empty()) return;
  expect(batch.values.defined() && batch.values.dim() == 2 && batch.values.size(0) == rows &&
             batch.values.size(1) == features_of(config.model),
         "{}: the values of a batch must have {} rows of {} features", config.name, rows, features_of(config.model));
  expect(batch.values.scalar_type() != at::kByte || takes_bytes(config.model),
         "{}: only image encoders with 3 channels take values that are bytes", config.name);
}

}  // namespace braid
