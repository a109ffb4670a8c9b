#include "data/batches/batch.h"
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/ranges.h>
#include "base/strings.h"
#include "data/batches/sample_sizes.h"
#include "data/samples/lane_set.h"
#include "data/samples/token_sequence.h"
#include "data/shards/energon_random.h"
#include "models/providers.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

void add(std::string& bytes, std::uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void add_text(std::string& bytes, const std::string& text) {
  add(bytes, text.size());  // so that "ab", "c" and "a", "bc" differ
  bytes += text;
}

std::int64_t hash_of(const std::string& bytes) { return static_cast<std::int64_t>(sha1_number(bytes) >> 11 | 1); }

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
  static_assert(kEncoderKinds == 3, "RADIO, CLIP and audio");
  const auto* radio = std::get_if<RadioConfig>(&model);
  const auto* clip = std::get_if<ClipConfig>(&model);
  return (radio && radio->channels == 3) || (clip && clip->channels == 3);
}

void check_sequences_of_items(const LanguageBatch& batch, std::int64_t samples) {
  const auto is_sequence = [&](std::int64_t sequence) {
    return sequence >= 0 && sequence + 1 < std::ssize(batch.offsets);
  };
  bool fits = batch.sequence_of.empty() || batch.sequence_of.size() == batch.rows.size();
  for (const auto& by_sample : batch.sequence_of) {
    fits = fits && std::ssize(by_sample) == samples;
    for (const auto& sequences : by_sample) fits = fits && std::ranges::all_of(sequences, is_sequence);
  }
  expect(fits, "a batch must name one of its {} sequences for each item of each encoder and sample",
         batch.offsets.size() - 1);
}

void check_identities(const std::vector<SequenceIdentity>& identities, std::int64_t samples) {
  expect(std::ssize(identities) == samples &&
             std::ranges::none_of(identities, [](const SequenceIdentity& identity) { return identity.hash == 0; }),
         "a batch identifies {} sequences, but has {}", identities.size(), samples);
}

bool takes_pictures(const LaneSetOptions& options, const std::string& encoder) {
  return options.vision && options.vision->encoder == encoder;
}

// What readers share.
struct LaneSource {
  std::shared_ptr<const LaneSet> set;
  std::shared_ptr<const SampleBalance> balance;  // none: sequences come as lanes give them
  std::vector<std::string> positions{};          // by lane; empty: from the start
};

// The sequences of a reader's samples, microbatch by microbatch.
class ReaderPacks {
 public:
  ReaderPacks(const LaneSource& source, const ReaderSamples& samples)
      : set_(source.set), balance_(source.balance), samples_(samples),
        per_replica_(samples.all / samples.language_replicas),
        replicas_(replicas_of(samples, per_replica_, balance_ ? balance_->replicas() : 1)),
        lanes_(set_, {static_cast<int>(replicas_.begin), static_cast<int>(replicas_.size()), samples.language_replicas},
               source.positions) {}

  // One pack for each sample of `own`. Sequences of other samples are read too where the same lanes have them.
  std::vector<Pack> next() {
    if (!balance_) return own_of(read());
    if (ordered_.empty()) read_step();
    std::vector<Pack> packs = std::move(ordered_.front());
    ordered_.pop_front();
    return packs;
  }

  // The positions of the first language replica that has any of `own`.
  auto positions() const {
    return lanes_.positions(static_cast<int>(samples_.own.begin / per_replica_ - replicas_.begin));
  }

  WorkerPool& pool() { return lanes_.pool(); }

 private:
  // Language replicas that have any of the samples, or exchange samples with one that has.
  static SampleRange replicas_of(const ReaderSamples& samples, std::int64_t per_replica, std::int64_t together) {
    const std::int64_t group = per_replica * together;
    return {samples.own.begin / group * together, (samples.own.end + group - 1) / group * together};
  }

  // A microbatch of all these replicas.
  std::vector<Pack> read() {
    std::vector<Pack> packs;
    for (std::int64_t s = 0; s < replicas_.size() * per_replica_; ++s)
      packs.push_back(lanes_.next(static_cast<int>(s / per_replica_)));
    return packs;
  }

  std::vector<Pack> own_of(std::vector<Pack> packs) const {
    const auto begin = packs.begin() + (samples_.own.begin - replicas_.begin * per_replica_);
    return {std::move_iterator(begin), std::move_iterator(begin + samples_.own.size())};
  }

  void read_step() {
    std::vector<Pack> packs;
    std::vector<SampleSizes> sizes;
    const LaneSetOptions& options = set_->options;
    const auto pictures =
        std::ranges::find_if(options.media, [&](const auto& each) { return takes_pictures(options, each.encoder); });
    for (int microbatch = 0; microbatch < samples_.microbatches; ++microbatch)
      for (Pack& pack : read()) {
        sizes.push_back(
            sizes_of(pack, options.sequence_length, options.media.size(), pictures - options.media.begin()));
        packs.push_back(std::move(pack));
      }
    const std::vector<std::int64_t> order = balance_->order(sizes, per_replica_, samples_.microbatches);
    for (auto first = order.begin(); first != order.end(); first += replicas_.size() * per_replica_) {
      std::vector<Pack> microbatch;
      for (auto place = first; place != first + replicas_.size() * per_replica_; ++place)
        microbatch.push_back(std::move(packs[*place]));
      ordered_.push_back(own_of(std::move(microbatch)));
    }
  }

  const std::shared_ptr<const LaneSet> set_;
  const std::shared_ptr<const SampleBalance> balance_;
  const ReaderSamples samples_;
  const std::int64_t per_replica_;  // samples of a microbatch per language replica
  const SampleRange replicas_;      // language replicas whose lanes are read
  ReplicaLanes lanes_;
  std::deque<std::vector<Pack>> ordered_;  // the rest of a balanced step
};

// Each token predicts the next one of its own sample; the rest of the sequence is padding, a sub-sequence of its own.
void add_pack(const Pack& pack, std::int64_t begin, const LaneSetOptions& options, LanguageBatch& batch) {
  const std::int64_t end = begin + options.sequence_length;
  auto* ids = batch.ids.data_ptr<std::int64_t>();
  auto* labels = batch.labels.data_ptr<std::int64_t>();
  std::int64_t at = begin, embeddings = 0;
  std::vector<std::int64_t> sequence_of;
  for (const ReadSample& sample : pack) {
    const std::vector<int>& targets = sample.tokens.targets;
    std::copy(sample.tokens.ids.begin(), sample.tokens.ids.end(), ids + at);
    for (std::size_t i = 0; i + 1 < targets.size(); ++i)
      if (targets[i + 1] != kIgnoredLabel) labels[at + static_cast<std::int64_t>(i)] = targets[i + 1];
    at += std::ssize(targets);
    sequence_of.insert(sequence_of.end(), sample.tokens.media.size(), std::ssize(batch.offsets) - 1);
    batch.offsets.push_back(at);
    embeddings += embeddings_of(sample.tokens.media);
  }
  batch.identities.push_back(identity_of(pack));
  if (at < end) batch.offsets.push_back(end);
  for (std::size_t k = 0; k < batch.rows.size(); ++k) {
    const bool sees = takes_pictures(options, options.media[k].encoder);
    batch.rows[k].push_back(sees ? embeddings : 0);
    batch.sequence_of[k].push_back(sees ? sequence_of : std::vector<std::int64_t>());
  }
}

BatchReader<LanguageBatch> language_reader(const LaneSource& source, const ReaderSamples& samples) {
  return [set = source.set, samples, packs = std::make_shared<ReaderPacks>(source, samples), batches = 0]() mutable {
    const std::int64_t length = set->options.sequence_length, tokens = samples.own.size() * length;
    const std::size_t encoders = set->options.media.size();
    LanguageBatch batch = {.ids = at::full({tokens}, 0, at::kLong),
                           .labels = at::full({tokens}, kIgnoredLabel, at::kLong),
                           .offsets = {0},
                           .rows = std::vector<std::vector<std::int64_t>>(encoders),
                           .sequence_of = std::vector<std::vector<std::vector<std::int64_t>>>(encoders)};
    std::int64_t begin = 0;
    for (const Pack& pack : packs->next()) add_pack(pack, std::exchange(begin, begin + length), set->options, batch);
    batches = (batches + 1) % samples.microbatches;
    if (batches == 0)
      for (auto& [lane, text] : packs->positions()) batch.positions.push_back({lane, std::move(text)});
    return batch;
  };
}

// Pixels of other encoder replicas are not read.
BatchReader<EncoderBatch> encoder_reader(const LaneSource& source, const ReaderSamples& samples) {
  return [set = source.set, reader = std::make_shared<ReaderPacks>(source, samples)] {
    EncoderBatch batch;
    const std::vector<Pack> packs = reader->next();
    std::vector<PictureJob> jobs;
    for (std::size_t s = 0; s < packs.size(); ++s) {
      batch.identities.push_back(identity_of(packs[s]));
      for (const ReadSample& sample : packs[s]) {
        add_picture_jobs(sample, jobs);
        for (const MediaPlan& media : sample.tokens.media) {
          batch.extents.push_back({media.patches.rows, media.patches.columns});
          batch.sample_of.push_back(static_cast<std::int64_t>(s));
        }
      }
    }
    if (jobs.empty()) return batch;
    const int patch = set->options.vision->patch;
    batch.values = at::empty({patches_of(jobs), std::int64_t{3} * patch * patch}, at::kByte);
    const std::span rows(batch.values.data_ptr<std::uint8_t>(), static_cast<std::size_t>(batch.values.numel()));
    std::vector<char> is_damaged(jobs.size());  // not bool: threads write neighbours
    // The language model already expects the embeddings of a damaged picture, so it becomes zeros.
    reader->pool().run(jobs.size(), [&](std::size_t i) { is_damaged[i] = !decode_into(rows, jobs[i], *set); });
    for (std::size_t i = 0; i < jobs.size(); ++i)
      batch.damaged.insert(batch.damaged.end(), jobs[i].inputs.size(), is_damaged[i] != 0);
    return batch;
  };
}

// The same batches from a reader of its own for each language replica.
BatchReader<EncoderBatch> per_replica_reader(const LaneSource& source, const ReaderSamples& samples) {
  std::vector<std::pair<BatchReader<EncoderBatch>, std::int64_t>> readers;
  const std::int64_t per_replica = samples.all / samples.language_replicas;
  for (std::int64_t begin = samples.own.begin, end; begin < samples.own.end; begin = end) {
    end = std::min((begin / per_replica + 1) * per_replica, samples.own.end);
    ReaderSamples part = samples;
    part.own = {begin, end};
    readers.emplace_back(encoder_reader(source, part), end - begin);
  }
  return [readers = std::move(readers)] {
    std::vector<BatchPart> parts;
    for (const auto& [read, count] : readers) parts.push_back({read(), count});
    return merge(std::move(parts));
  };
}

class LaneBatches : public BatchSource {
 public:
  explicit LaneBatches(LaneSource source) : source_(std::move(source)) {}

  int lanes() const override { return source_.set->options.lanes; }

  void restore(const std::vector<std::string>& positions) override {
    const LaneSet& set = *source_.set;
    check_positions(set.options, *set.blend, set.sequences.settings(), positions);
    source_.positions = positions;
  }

  std::vector<std::string> positions_after(std::int64_t) const override { return {}; }

  BatchReader<LanguageBatch> read_language(const ReaderSamples& samples) const override {
    return language_reader(source_, samples);
  }

  BatchReader<EncoderBatch> read_encoder(const std::string& encoder, const ReaderSamples& samples) const override {
    const LaneSetOptions& options = source_.set->options;
    if (!takes_pictures(options, encoder)) return [] { return EncoderBatch(); };
    return options.loader.readers == Readers::PerReplica ? per_replica_reader(source_, samples)
                                                         : encoder_reader(source_, samples);
  }

 private:
  LaneSource source_;
};

}  // namespace

SequenceIdentity identity_of(const Pack& pack) {
  SequenceIdentity identity;
  std::string bytes;
  for (const ReadSample& sample : pack) {
    const SampleRef& ref = sample.ref;
    add_text(bytes, sample.shard->name);
    for (const std::uint64_t number : {std::uint64_t{ref.leaf}, static_cast<std::uint64_t>(ref.index), ref.epoch})
      add(bytes, number);
    add_text(bytes, sample.key);
    add(bytes, sample.tokens.ids.size());
    for (const int id : sample.tokens.ids) add(bytes, static_cast<std::uint64_t>(id));
    for (const StoredPart& picture : sample.pictures) {
      add(bytes, picture.offset);
      add(bytes, picture.size);
    }
    identity.samples.push_back(fmt::format("sample {} of shard {} (lane {}, epoch {})", in_quotes(sample.key),
                                           in_quotes(sample.shard->name), sample.lane, ref.epoch));
  }
  identity.hash = hash_of(bytes);
  return identity;
}

SequenceIdentity identity_of_mock(std::int64_t number) {
  std::string bytes;
  add(bytes, static_cast<std::uint64_t>(number));
  return {hash_of(bytes), {fmt::format("mock sample {}", number)}};
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

std::unique_ptr<BatchSource> make_lane_batches(LaneSetOptions options, std::shared_ptr<const SampleBalance> balance) {
  return std::make_unique<LaneBatches>(LaneSource{std::make_shared<LaneSet>(std::move(options)), std::move(balance)});
}

}  // namespace braid
