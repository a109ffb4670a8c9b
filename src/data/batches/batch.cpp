#include "data/batches/batch.h"

#include <ATen/ops/cat.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/strings.h"
#include "data/samples/packing.h"
#include "data/shards/sha1.h"
#include "models/providers.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

class HashedBytes {
 public:
  void add(std::uint64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number)); }
  void add(std::string_view text) {
    add(text.size());  // so that "ab", "c" and "a", "bc" differ
    bytes_ += text;
  }

  std::int64_t hash() const { return static_cast<std::int64_t>(sha1_number(bytes_) >> 11 | 1); }

 private:
  std::string bytes_{};
};

void add(const ReadSample& sample, HashedBytes& bytes) {
  bytes.add(sample.shard->name);
  for (const std::uint64_t number :
       {std::uint64_t{sample.ref.leaf}, static_cast<std::uint64_t>(sample.ref.index), sample.ref.epoch})
    bytes.add(number);
  bytes.add(sample.key);
  bytes.add(sample.tokens.ids.size());
  for (const int id : sample.tokens.ids) bytes.add(static_cast<std::uint64_t>(id));
  for (const StoredPicture& picture : sample.pictures) {
    bytes.add(picture.offset);
    bytes.add(picture.size);
  }
}

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

SequenceIdentity identity_of(const Pack& pack) {
  SequenceIdentity identity;
  HashedBytes bytes;
  for (const ReadSample& sample : pack) {
    add(sample, bytes);
    identity.samples.push_back(fmt::format("sample {} of shard {} (lane {}, epoch {})", in_quotes(sample.key),
                                           in_quotes(sample.shard->name), sample.lane, sample.ref.epoch));
  }
  identity.hash = bytes.hash();
  return identity;
}

SequenceIdentity identity_of_mock(std::int64_t number) {
  HashedBytes bytes;
  bytes.add(static_cast<std::uint64_t>(number));
  return {bytes.hash(), {fmt::format("mock sample {}", number)}};
}

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

LanguageBatch pinned(LanguageBatch batch) {
  batch.ids = batch.ids.pin_memory();
  batch.labels = batch.labels.pin_memory();
  return batch;
}

EncoderBatch pinned(EncoderBatch batch) {
  if (batch.values.defined()) batch.values = batch.values.pin_memory();
  return batch;
}

std::int64_t bytes_of(const LanguageBatch& batch) {
  return static_cast<std::int64_t>(batch.ids.nbytes() + batch.labels.nbytes());
}

std::int64_t bytes_of(const EncoderBatch& batch) {
  return batch.values.defined() ? static_cast<std::int64_t>(batch.values.nbytes()) : 0;
}

EncoderBatch merge(std::vector<BatchPart> parts) {
  EncoderBatch merged;
  std::vector<at::Tensor> values;
  std::int64_t first_sample = 0;
  const bool any_damage =
      std::any_of(parts.begin(), parts.end(), [](const auto& p) { return !p.batch.damaged.empty(); });
  for (auto& [batch, samples] : parts) {
    const std::size_t items = batch.extents.size();
    BRAID_CHECK_EQ(batch.sample_of.size(), items, "numbers of samples of an encoder batch");
    BRAID_CHECK(batch.damaged.empty() || batch.damaged.size() == items, "marks of damage of an encoder batch");
    if (items > 0) {
      BRAID_CHECK(values.empty() || (values[0].scalar_type() == batch.values.scalar_type() &&
                                     values[0].size(1) == batch.values.size(1)),
                  "values of encoder batches differ in type or width");
      values.push_back(std::move(batch.values));
    }
    std::move(batch.extents.begin(), batch.extents.end(), std::back_inserter(merged.extents));
    for (const std::int64_t sample : batch.sample_of) {
      BRAID_CHECK(sample >= 0 && sample < samples, "sample {} of a part of {}", sample, samples);
      merged.sample_of.push_back(first_sample + sample);
    }
    if (any_damage && batch.damaged.empty()) batch.damaged.assign(items, false);
    merged.damaged.insert(merged.damaged.end(), batch.damaged.begin(), batch.damaged.end());
    std::move(batch.identities.begin(), batch.identities.end(), std::back_inserter(merged.identities));
    first_sample += samples;
  }
  if (!values.empty()) merged.values = at::cat(values);
  return merged;
}

}  // namespace braid
