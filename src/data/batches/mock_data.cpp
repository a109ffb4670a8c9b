#include "data/batches/mock_data.h"
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>
#include "base/strings.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

constexpr int kClasses = 8, kPadding = 0;
constexpr std::int64_t kNoisePatches = 256;
constexpr double kNoise = 0.5;

at::Tensor normal(std::uint64_t seed, const std::string& name, std::int64_t rows, std::int64_t columns) {
  at::Tensor values = at::empty({rows, columns}, at::kDouble);
  RandomField(seed, name).fill_normal(0, {values.data_ptr<double>(), static_cast<std::size_t>(values.numel())});
  return values;
}

// The numbers of a reader's samples, microbatch by microbatch.
class SampleNumbers {
 public:
  SampleNumbers(const ReaderSamples& samples, StepOrder order, std::int64_t first_sample)
      : samples_(samples), order_(std::move(order)), first_(first_sample) {}

  std::vector<std::int64_t> next() {
    const std::int64_t step_begin = first_ - microbatch_ * samples_.all;
    if (order_ && microbatch_ == 0) places_ = order_(step_begin, samples_);
    std::vector<std::int64_t> numbers;
    for (std::int64_t sample = samples_.own.begin; sample < samples_.own.end; ++sample)
      numbers.push_back(order_ ? step_begin + places_[microbatch_ * samples_.all + sample] : first_ + sample);
    first_ += samples_.all;
    microbatch_ = (microbatch_ + 1) % samples_.microbatches;
    return numbers;
  }

  std::int64_t first_of_next() const { return first_; }

 private:
  const ReaderSamples samples_;
  const StepOrder order_;
  std::int64_t first_;                  // sample of the next microbatch
  std::int64_t microbatch_ = 0;         // of its step
  std::vector<std::int64_t> places_{};  // of the step
};

class SampleBatches : public BatchSource {
 public:
  SampleBatches(std::shared_ptr<const SampleSource> source, std::vector<MediaToken> media, StepOrder order)
      : source_(std::move(source)), media_(std::move(media)), order_(std::move(order)) {}

  int lanes() const override { return 1; }

  void restore(const std::vector<std::string>& positions) override { first_sample_ = source_->sample_at(positions); }

  std::vector<std::string> positions_after(std::int64_t consumed) const override {
    return {source_->position(consumed)};
  }

  BatchReader<LanguageBatch> read_language(const ReaderSamples& samples) const override {
    return [source = source_, media = media_, is_first_replica = samples.own.begin == 0,
            numbers = SampleNumbers(samples, order_, first_sample_)]() mutable {
      LanguageBatch batch = {.offsets = {0}, .rows = std::vector<std::vector<std::int64_t>>(media.size())};
      std::vector<at::Tensor> ids, labels;
      for (const std::int64_t number : numbers.next()) {
        Tokens tokens = source->tokens(number);
        if (tokens.lengths.empty()) tokens.lengths = {tokens.ids.size(0)};
        for (const std::int64_t length : tokens.lengths) batch.offsets.push_back(batch.offsets.back() + length);
        for (std::size_t m = 0; m < media.size(); ++m)
          batch.rows[m].push_back((tokens.ids == media[m].id).sum().item<std::int64_t>());
        batch.identities.push_back(source->identity(number));
        ids.push_back(tokens.ids);
        labels.push_back(tokens.labels);
      }
      batch.ids = at::cat(ids);
      batch.labels = at::cat(labels);
      if (is_first_replica) batch.positions = {{0, source->position(numbers.first_of_next())}};
      return batch;
    };
  }

  BatchReader<EncoderBatch> read_encoder(const std::string& encoder, const ReaderSamples& samples) const override {
    return [source = source_, encoder, numbers = SampleNumbers(samples, order_, first_sample_)]() mutable {
      EncoderBatch batch;
      std::vector<at::Tensor> values;
      const std::vector<std::int64_t> own = numbers.next();
      for (std::size_t s = 0; s < own.size(); ++s) {
        batch.identities.push_back(source->identity(own[s]));
        for (MediaItem& item : source->media(encoder, own[s])) {
          values.push_back(std::move(item.values));
          batch.extents.push_back(std::move(item.extent));
          batch.sample_of.push_back(static_cast<std::int64_t>(s));
        }
      }
      if (!values.empty()) batch.values = at::cat(values);
      return batch;
    };
  }

 private:
  const std::shared_ptr<const SampleSource> source_;
  const std::vector<MediaToken> media_;
  const StepOrder order_;
  std::int64_t first_sample_ = 0;
};

}  // namespace

std::int64_t SampleSource::sample_at(const std::vector<std::string>& positions) const {
  const auto sample = positions.size() == 1 ? parse_int(positions[0]) : std::nullopt;
  if (!sample || *sample < 0)
    throw DataError(fmt::format("'{}' is not a position in mock data", fmt::join(positions, "', '")));
  return *sample;
}

MockData::MockData(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed)
    : config_(config), seed_(seed), sizes_(config, provider, topology, seed) {
  for (const EncoderConfig& encoder : sizes_.encoders()) {
    const int features = features_of(encoder.model);
    modalities_.push_back({.encoder = encoder,
                           .looks = normal(seed, "mock.looks." + encoder.name, 1 + kClasses, features),
                           .noise = kNoise * normal(seed, "mock.noise." + encoder.name, kNoisePatches, features)});
  }
}

int MockData::class_of(std::int64_t piece) const {
  const std::vector<SampleSizes::Extents> all = sizes_.extents_of(piece);
  const bool has_media = std::any_of(all.begin(), all.end(), [](const auto& items) { return !items.empty(); });
  return has_media ? static_cast<int>(MockRandom(seed_, "mock.class", piece).between(1, kClasses)) : 0;
}

std::vector<std::int64_t> MockData::text(std::int64_t piece, std::int64_t length) const {
  MockRandom random(seed_, "mock.text", piece);
  const int stride = 1 + class_of(piece);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t any = random.between(1, config_.alphabet);
    const bool counts_up = random.uniform() >= config_.noise && i > 0;
    ids.push_back(counts_up ? 1 + (ids.back() - 1 + stride) % config_.alphabet : any);
  }
  return ids;
}

void MockData::add_piece(std::int64_t piece, std::vector<std::int64_t>& ids, std::vector<std::int64_t>& labels) const {
  const std::size_t begin = ids.size();
  const std::vector<SampleSizes::Extents> all = sizes_.extents_of(piece);
  for (std::size_t m = 0; m < modalities_.size(); ++m)
    for (const auto& extent : all[m])
      ids.insert(ids.end(), static_cast<std::size_t>(rows_of(modalities_[m].encoder, extent)),
                 modalities_[m].encoder.token_id);
  const auto media = static_cast<std::int64_t>(ids.size() - begin);
  const std::vector<std::int64_t> words = text(piece, sizes_.length_of(piece) - media);
  ids.insert(ids.end(), words.begin(), words.end());
  const SampleSizes::Piece size = sizes_.piece_of(piece, all);
  labels.resize(begin + static_cast<std::size_t>(size.tokens), kIgnoredLabel);
  for (auto i = static_cast<std::size_t>(size.first_label); i < static_cast<std::size_t>(size.end_label); ++i)
    labels[begin + i] = ids[begin + i + 1];
  ids.resize(labels.size(), kPadding);
}

Tokens MockData::tokens(std::int64_t sample) const {
  std::vector<std::int64_t> ids, labels, lengths;
  for (std::int64_t piece = sample * config_.packed; piece < (sample + 1) * config_.packed; ++piece) {
    const std::size_t before = ids.size();
    add_piece(piece, ids, labels);
    lengths.push_back(static_cast<std::int64_t>(ids.size() - before));
  }
  return {at::tensor(ids, at::kLong), at::tensor(labels, at::kLong), lengths};
}

void MockData::add_media(std::size_t modality, std::int64_t piece, std::vector<MediaItem>& items) const {
  const Modality& own = modalities_[modality];
  const SampleSizes::Extents extents = sizes_.extents_of(piece)[modality];
  if (extents.empty()) return;
  MockRandom random(seed_, "mock.items." + own.encoder.name, piece);
  const at::Tensor look = own.looks[class_of(piece)];
  for (const auto& extent : extents) {
    const at::Tensor picked =
        (at::arange(input_rows(extent), at::kLong) * 7 + random.between(0, kNoisePatches - 1)).remainder(kNoisePatches);
    items.push_back({own.noise.index_select(0, picked) + look, extent});
  }
}

std::vector<MediaItem> MockData::media(const std::string& encoder, std::int64_t sample) const {
  std::vector<MediaItem> items;
  for (std::int64_t piece = sample * config_.packed; piece < (sample + 1) * config_.packed; ++piece)
    for (std::size_t m = 0; m < modalities_.size(); ++m)
      if (modalities_[m].encoder.name == encoder) add_media(m, piece, items);
  return items;
}

StepOrder balanced_mock_order(MockSizes sizes, std::shared_ptr<const SampleBalance> balance) {
  return [sizes = std::move(sizes), balance = std::move(balance)](std::int64_t first, const ReaderSamples& samples) {
    std::vector<SampleSizes> of_step;
    for (std::int64_t i = 0; i < samples.all * samples.microbatches; ++i) of_step.push_back(sizes.of(first + i));
    return balance->order(of_step, samples.all / samples.language_replicas, samples.microbatches);
  };
}

std::unique_ptr<BatchSource> make_sample_batches(const SampleSource& source, std::vector<MediaToken> media,
                                                 StepOrder order) {
  return make_sample_batches(std::shared_ptr<const SampleSource>(std::shared_ptr<void>(), &source), std::move(media),
                             std::move(order));
}

std::unique_ptr<BatchSource> make_sample_batches(std::shared_ptr<const SampleSource> source,
                                                 std::vector<MediaToken> media, StepOrder order) {
  return std::make_unique<SampleBatches>(std::move(source), std::move(media), std::move(order));
}

std::unique_ptr<BatchSource> make_mock_batches(const MockDataConfig& config, const Provider& provider,
                                               const Topology& topology, std::uint64_t seed,
                                               std::shared_ptr<const SampleBalance> balance) {
  return std::make_unique<SampleBatches>(
      std::make_shared<MockData>(config, provider, topology, seed), media_tokens(provider, topology),
      balance ? balanced_mock_order(MockSizes(config, provider, topology, seed), std::move(balance)) : nullptr);
}

}  // namespace braid
