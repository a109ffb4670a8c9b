#include "data/sample_batches.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

class LanguageReader : public BatchReader<LanguageBatch> {
 public:
  LanguageReader(const SampleSource& source, const std::vector<MediaToken>& media, const ReaderSamples& samples,
                 std::int64_t first_sample)
      : source_(source), media_(media), samples_(samples), first_(first_sample) {}

  LanguageBatch next() override {
    LanguageBatch batch = {.offsets = {0}, .rows = std::vector<std::vector<std::int64_t>>(media_.size())};
    std::vector<at::Tensor> ids, labels;
    for (std::int64_t sample = samples_.own.begin; sample < samples_.own.end; ++sample) {
      Tokens tokens = source_.tokens(first_ + sample);
      if (tokens.lengths.empty()) tokens.lengths = {tokens.ids.size(0)};
      for (const std::int64_t length : tokens.lengths) batch.offsets.push_back(batch.offsets.back() + length);
      for (std::size_t m = 0; m < media_.size(); ++m)
        batch.rows[m].push_back((tokens.ids == media_[m].id).sum().item<std::int64_t>());
      ids.push_back(tokens.ids);
      labels.push_back(tokens.labels);
    }
    batch.ids = at::cat(ids);
    batch.labels = at::cat(labels);
    first_ += samples_.all;
    if (samples_.own.begin == 0) batch.positions = {{0, std::to_string(first_)}};
    return batch;
  }

 private:
  const SampleSource& source_;
  const std::vector<MediaToken> media_;
  const ReaderSamples samples_;
  std::int64_t first_;  // sample of the next microbatch
};

class EncoderReader : public BatchReader<EncoderBatch> {
 public:
  EncoderReader(const SampleSource& source, const std::string& encoder, const ReaderSamples& samples,
                std::int64_t first_sample)
      : source_(source), encoder_(encoder), samples_(samples), first_(first_sample) {}

  EncoderBatch next() override {
    EncoderBatch batch;
    std::vector<at::Tensor> values;
    for (std::int64_t sample = samples_.own.begin; sample < samples_.own.end; ++sample)
      for (MediaItem& item : source_.media(encoder_, first_ + sample)) {
        values.push_back(std::move(item.values));
        batch.extents.push_back(std::move(item.extent));
        batch.sample_of.push_back(sample - samples_.own.begin);
      }
    if (!values.empty()) batch.values = at::cat(values);
    first_ += samples_.all;
    return batch;
  }

 private:
  const SampleSource& source_;
  const std::string encoder_;
  const ReaderSamples samples_;
  std::int64_t first_;
};

}  // namespace

SampleBatches::SampleBatches(const SampleSource& source, std::vector<MediaToken> media)
    : source_(source), media_(std::move(media)) {}

void SampleBatches::restore(const std::vector<std::string>& positions) {
  const auto sample = positions.size() == 1 ? parse_int(positions[0]) : std::nullopt;
  if (!sample || *sample < 0)
    throw DataError(fmt::format("'{}' is not a position in mock data", fmt::join(positions, "', '")));
  first_sample_ = *sample;
}

std::vector<std::string> SampleBatches::positions_after(std::int64_t consumed) const {
  return {std::to_string(consumed)};
}

std::unique_ptr<BatchReader<LanguageBatch>> SampleBatches::read_language(const ReaderSamples& samples) const {
  return std::make_unique<LanguageReader>(source_, media_, samples, first_sample_);
}

std::unique_ptr<BatchReader<EncoderBatch>> SampleBatches::read_encoder(const std::string& encoder,
                                                                       const ReaderSamples& samples) const {
  return std::make_unique<EncoderReader>(source_, encoder, samples, first_sample_);
}

}  // namespace braid
