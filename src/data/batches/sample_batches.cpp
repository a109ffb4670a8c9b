#include "data/batches/sample_batches.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

// The numbers of a reader's samples, microbatch by microbatch.
class SampleNumbers {
 public:
  SampleNumbers(const ReaderSamples& samples, SampleBatches::StepOrder order, std::int64_t first_sample)
      : samples_(samples), order_(std::move(order)), first_(first_sample) {}

  std::vector<std::int64_t> next() {
    const std::int64_t step_begin = first_ - microbatch_ * samples_.all;
    if (order_ && microbatch_ == 0) places_ = order_(step_begin, samples_);
    std::vector<std::int64_t> numbers;
    for (std::int64_t sample = samples_.own.begin; sample < samples_.own.end; ++sample)
      numbers.push_back(order_ ? step_begin + places_[static_cast<std::size_t>(microbatch_ * samples_.all + sample)]
                               : first_ + sample);
    first_ += samples_.all;
    microbatch_ = (microbatch_ + 1) % samples_.microbatches;
    return numbers;
  }

  std::int64_t first_of_next() const { return first_; }

 private:
  const ReaderSamples samples_;
  const SampleBatches::StepOrder order_;
  std::int64_t first_;                  // sample of the next microbatch
  std::int64_t microbatch_ = 0;         // of its step
  std::vector<std::int64_t> places_{};  // of the step
};

class LanguageReader : public BatchReader<LanguageBatch> {
 public:
  LanguageReader(const SampleSource& source, const std::vector<MediaToken>& media, const ReaderSamples& samples,
                 SampleNumbers numbers)
      : source_(source), media_(media), is_first_(samples.own.begin == 0), numbers_(std::move(numbers)) {}

  LanguageBatch next() override {
    LanguageBatch batch = {.offsets = {0}, .rows = std::vector<std::vector<std::int64_t>>(media_.size())};
    std::vector<at::Tensor> ids, labels;
    for (const std::int64_t number : numbers_.next()) {
      Tokens tokens = source_.tokens(number);
      if (tokens.lengths.empty()) tokens.lengths = {tokens.ids.size(0)};
      for (const std::int64_t length : tokens.lengths) batch.offsets.push_back(batch.offsets.back() + length);
      for (std::size_t m = 0; m < media_.size(); ++m)
        batch.rows[m].push_back((tokens.ids == media_[m].id).sum().item<std::int64_t>());
      batch.identities.push_back(identity_of_mock(number));
      ids.push_back(tokens.ids);
      labels.push_back(tokens.labels);
    }
    batch.ids = at::cat(ids);
    batch.labels = at::cat(labels);
    if (is_first_) batch.positions = {{0, std::to_string(numbers_.first_of_next())}};
    return batch;
  }

 private:
  const SampleSource& source_;
  const std::vector<MediaToken> media_;
  const bool is_first_;  // of the replicas
  SampleNumbers numbers_;
};

class EncoderReader : public BatchReader<EncoderBatch> {
 public:
  EncoderReader(const SampleSource& source, const std::string& encoder, SampleNumbers numbers)
      : source_(source), encoder_(encoder), numbers_(std::move(numbers)) {}

  EncoderBatch next() override {
    EncoderBatch batch;
    std::vector<at::Tensor> values;
    const std::vector<std::int64_t> numbers = numbers_.next();
    for (std::size_t s = 0; s < numbers.size(); ++s) {
      batch.identities.push_back(identity_of_mock(numbers[s]));
      for (MediaItem& item : source_.media(encoder_, numbers[s])) {
        values.push_back(std::move(item.values));
        batch.extents.push_back(std::move(item.extent));
        batch.sample_of.push_back(static_cast<std::int64_t>(s));
      }
    }
    if (!values.empty()) batch.values = at::cat(values);
    return batch;
  }

 private:
  const SampleSource& source_;
  const std::string encoder_;
  SampleNumbers numbers_;
};

}  // namespace

SampleBatches::SampleBatches(const SampleSource& source, std::vector<MediaToken> media, StepOrder order)
    : source_(source), media_(std::move(media)), order_(std::move(order)) {}

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
  return std::make_unique<LanguageReader>(source_, media_, samples, SampleNumbers(samples, order_, first_sample_));
}

std::unique_ptr<BatchReader<EncoderBatch>> SampleBatches::read_encoder(const std::string& encoder,
                                                                       const ReaderSamples& samples) const {
  return std::make_unique<EncoderReader>(source_, encoder, SampleNumbers(samples, order_, first_sample_));
}

}  // namespace braid
