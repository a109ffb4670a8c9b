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
  LanguageReader(const SampleSource& source, const std::vector<MediaToken>& media, const ReaderShare& share,
                 std::int64_t first_sample)
      : source_(source), media_(media), share_(share), first_(first_sample) {}

  LanguageBatch next() override {
    LanguageBatch batch = {.offsets = {0}, .rows = std::vector<std::vector<std::int64_t>>(media_.size())};
    std::vector<at::Tensor> ids, labels;
    for (std::int64_t sample = share_.own.begin; sample < share_.own.end; ++sample) {
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
    first_ += share_.samples;
    return batch;
  }

 private:
  const SampleSource& source_;
  const std::vector<MediaToken> media_;
  const ReaderShare share_;
  std::int64_t first_;  // sample of the next microbatch
};

class EncoderReader : public BatchReader<EncoderBatch> {
 public:
  EncoderReader(const SampleSource& source, const std::string& encoder, const ReaderShare& share,
                std::int64_t first_sample)
      : source_(source), encoder_(encoder), share_(share), first_(first_sample) {}

  EncoderBatch next() override {
    EncoderBatch batch;
    std::vector<at::Tensor> values;
    for (std::int64_t sample = share_.own.begin; sample < share_.own.end; ++sample)
      for (MediaItem& item : source_.media(encoder_, first_ + sample)) {
        values.push_back(std::move(item.values));
        batch.extents.push_back(std::move(item.extent));
        batch.sample_of.push_back(sample - share_.own.begin);
      }
    if (!values.empty()) batch.values = at::cat(values);
    first_ += share_.samples;
    return batch;
  }

 private:
  const SampleSource& source_;
  const std::string encoder_;
  const ReaderShare share_;
  std::int64_t first_;
};

}  // namespace

std::vector<MediaToken> media_tokens(const Provider& provider, const Topology& topology) {
  std::vector<MediaToken> tokens;
  for (const Module& module : topology.modules())
    for (const EncoderConfig& encoder : provider.encoders)
      if (module.name == encoder.name) tokens.push_back({encoder.name, token_id(provider, encoder, std::nullopt)});
  return tokens;
}

SampleBatches::SampleBatches(const SampleSource& source, std::vector<MediaToken> media)
    : source_(source), media_(std::move(media)) {}

std::string SampleBatches::state(std::int64_t consumed) const { return std::to_string(consumed); }

void SampleBatches::restore(const std::string& state) {
  const auto sample = parse_int(state);
  if (!sample || *sample < 0) throw DataError(fmt::format("'{}' is not a position in this data set", state));
  first_sample_ = *sample;
}

std::unique_ptr<BatchReader<LanguageBatch>> SampleBatches::read_language(const ReaderShare& share) const {
  return std::make_unique<LanguageReader>(source_, media_, share, first_sample_);
}

std::unique_ptr<BatchReader<EncoderBatch>> SampleBatches::read_encoder(const std::string& encoder,
                                                                       const ReaderShare& share) const {
  return std::make_unique<EncoderReader>(source_, encoder, share, first_sample_);
}

}  // namespace braid
