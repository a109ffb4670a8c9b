#include "data/batches/mock_data.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

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

}  // namespace

MockData::MockData(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed)
    : config_(config), seed_(seed), sizes_(config, provider, topology, seed) {
  for (const EncoderConfig& encoder : sizes_.encoders()) {
    const int features = features_of(encoder.model);
    modalities_.push_back({.encoder = encoder,
                           .looks = normal(seed, "mock.looks." + encoder.name, 1 + kClasses, features),
                           .noise = kNoise * normal(seed, "mock.noise." + encoder.name, kNoisePatches, features)});
  }
}

int MockData::class_of(std::int64_t sample) const {
  const std::vector<SampleSizes::Extents> all = sizes_.extents_of(sample);
  const bool has_media = std::any_of(all.begin(), all.end(), [](const auto& items) { return !items.empty(); });
  return has_media ? static_cast<int>(MockDraws(seed_, "mock.class", sample).between(1, kClasses)) : 0;
}

std::vector<std::int64_t> MockData::text(std::int64_t sample, std::int64_t length) const {
  MockDraws draws(seed_, "mock.text", sample);
  const int stride = 1 + class_of(sample);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t random = draws.between(1, config_.alphabet);
    const bool counts_up = draws.uniform() >= config_.noise && i > 0;
    ids.push_back(counts_up ? 1 + (ids.back() - 1 + stride) % config_.alphabet : random);
  }
  return ids;
}

Tokens MockData::tokens(std::int64_t sample) const {
  std::vector<std::int64_t> ids;
  const std::vector<SampleSizes::Extents> all = sizes_.extents_of(sample);
  for (std::size_t m = 0; m < modalities_.size(); ++m)
    for (const auto& extent : all[m])
      ids.insert(ids.end(), static_cast<std::size_t>(rows_of(modalities_[m].encoder, extent)),
                 modalities_[m].encoder.token_id);
  const auto media = static_cast<std::int64_t>(ids.size());
  const std::vector<std::int64_t> words = text(sample, sizes_.length_of(sample) - media);
  ids.insert(ids.end(), words.begin(), words.end());
  const SampleSizes::Piece piece = sizes_.piece_of(sample, all);
  std::vector<std::int64_t> labels(static_cast<std::size_t>(piece.tokens), kIgnoredLabel);
  for (auto i = static_cast<std::size_t>(piece.first_label); i < static_cast<std::size_t>(piece.end_label); ++i)
    labels[i] = ids[i + 1];
  ids.resize(labels.size(), kPadding);
  return {at::tensor(ids, at::kLong), at::tensor(labels, at::kLong)};
}

std::vector<MediaItem> MockData::media(const std::string& encoder, std::int64_t sample) const {
  std::vector<MediaItem> items;
  const std::vector<SampleSizes::Extents> all = sizes_.extents_of(sample);
  MockDraws draws(seed_, "mock.items." + encoder, sample);
  for (std::size_t m = 0; m < modalities_.size(); ++m) {
    if (modalities_[m].encoder.name != encoder || all[m].empty()) continue;
    const at::Tensor look = modalities_[m].looks[class_of(sample)];
    for (const auto& extent : all[m]) {
      std::int64_t rows = 1;
      for (const std::int64_t side : extent) rows *= side;
      const at::Tensor picked =
          (at::arange(rows, at::kLong) * 7 + draws.between(0, kNoisePatches - 1)).remainder(kNoisePatches);
      items.push_back({modalities_[m].noise.index_select(0, picked) + look, extent});
    }
  }
  return items;
}

}  // namespace braid
