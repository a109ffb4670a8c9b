#include "data/batches/gpt_batches.h"
#include <ATen/ops/empty.h>
#include "data/batches/mock_data.h"

namespace braid {
namespace {

class GptSamples : public SampleSource {
 public:
  explicit GptSamples(GptDataOptions options) : data_(std::move(options)) {}

  std::string position(std::int64_t sample) const override { return data_.position(sample); }
  std::int64_t sample_at(const std::vector<std::string>& positions) const override {
    return data_.sample_at(positions);
  }
  SequenceIdentity identity(std::int64_t sample) const override {
    return {identity_of_mock(sample).hash, {fmt::format("sample {} of data.path", sample)}};
  }

  // Each token predicts the next one, across the borders of documents.
  Tokens tokens(std::int64_t sample) const override {
    const std::vector<int> ids = data_.read(sample);
    const std::int64_t length = std::ssize(ids) - 1;
    Tokens tokens = {.ids = at::empty({length}, at::kLong), .labels = at::empty({length}, at::kLong)};
    std::copy(ids.begin(), ids.end() - 1, tokens.ids.data_ptr<std::int64_t>());
    std::copy(ids.begin() + 1, ids.end(), tokens.labels.data_ptr<std::int64_t>());
    return tokens;
  }

  std::vector<MediaItem> media(const std::string&, std::int64_t) const override { return {}; }

 private:
  const GptData data_;
};

}  // namespace

std::unique_ptr<BatchSource> make_gpt_batches(GptDataOptions options, std::vector<MediaToken> media) {
  for (const MediaToken& token : media) options.refused.push_back(token.id);
  return make_sample_batches(std::make_shared<const GptSamples>(std::move(options)), std::move(media));
}

}  // namespace braid
