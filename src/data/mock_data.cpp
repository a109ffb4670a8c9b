#include "data/mock_data.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "base/philox.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

constexpr int kClasses = 8, kPadding = 0;
constexpr std::int64_t kNoisePatches = 256;
constexpr double kNoise = 0.5;

// Draws numbers in order from a separate stream for each sample.
class Draws {
 public:
  Draws(std::uint64_t seed, const std::string& name, std::int64_t sample)
      : field_(seed, name), index_(static_cast<std::uint64_t>(sample) * kPerSample) {}
  double uniform() { return field_.uniform(index_++); }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::min(high, low + static_cast<std::int64_t>(uniform() * static_cast<double>(high - low + 1)));
  }

 private:
  static constexpr std::uint64_t kPerSample = 1 << 20;
  const RandomField field_;
  std::uint64_t index_;
};

at::Tensor normal(std::uint64_t seed, const std::string& name, std::int64_t rows, std::int64_t columns) {
  at::Tensor values = at::empty({rows, columns}, at::kDouble);
  RandomField(seed, name).fill_normal(0, {values.data_ptr<double>(), static_cast<std::size_t>(values.numel())});
  return values;
}

}  // namespace

MockData::MockData(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed)
    : config_(config), sequence_length_(piece_length(config, provider)), seed_(seed) {
  for (const EncoderConfig& encoder : provider.encoders)
    for (const Module& module : topology.modules()) {
      if (module.name != encoder.name) continue;
      const int features = features_of(encoder.model);
      modalities_.push_back({.encoder = encoder,
                             .mock = mock_of(config, encoder.name),
                             .token = encoder.token_id,
                             .looks = normal(seed, "mock.looks." + encoder.name, 1 + kClasses, features),
                             .noise = kNoise * normal(seed, "mock.noise." + encoder.name, kNoisePatches, features)});
    }
}

std::int64_t MockData::length_of(std::int64_t sample) const {
  Draws draws(seed_, "mock.length", sample);
  return draws.between(config_.min_length.value_or(sequence_length_), sequence_length_);
}

int MockData::class_of(std::int64_t sample) const {
  const std::vector<Extents> all = extents(sample);
  const bool has_media = std::any_of(all.begin(), all.end(), [](const Extents& items) { return !items.empty(); });
  return has_media ? static_cast<int>(Draws(seed_, "mock.class", sample).between(1, kClasses)) : 0;
}

std::vector<MockData::Extents> MockData::extents(std::int64_t sample) const {
  std::vector<Extents> all;
  std::int64_t room = length_of(sample) - kRoomForText;
  for (const Modality& modality : modalities_) {
    Draws draws(seed_, "mock." + modality.encoder.name, sample);
    const MockMediaConfig& mock = modality.mock;
    Extents items;
    const bool any = draws.uniform() < mock.share;
    const std::int64_t count = any ? draws.between(mock.min_items, mock.max_items) : 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = draws.between(mock.min_size, mock.max_size);
      const std::vector<std::int64_t> extent =
          fitting_extent(modality.encoder, first, draws.between(mock.min_size, mock.max_size));
      const std::int64_t rows = rows_of(modality.encoder, extent);
      if (rows > room) break;
      room -= rows;
      items.push_back(extent);
    }
    all.push_back(std::move(items));
  }
  return all;
}

std::vector<std::int64_t> MockData::text(std::int64_t sample, std::int64_t length) const {
  Draws draws(seed_, "mock.text", sample);
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
  const std::vector<Extents> all = extents(sample);
  for (std::size_t m = 0; m < modalities_.size(); ++m)
    for (const auto& extent : all[m])
      ids.insert(ids.end(), static_cast<std::size_t>(rows_of(modalities_[m].encoder, extent)), modalities_[m].token);
  const auto media = static_cast<std::int64_t>(ids.size());
  const std::vector<std::int64_t> words = text(sample, length_of(sample) - media);
  ids.insert(ids.end(), words.begin(), words.end());
  std::vector<std::int64_t> labels(static_cast<std::size_t>(sequence_length_), kIgnoredLabel);
  for (std::size_t i = static_cast<std::size_t>(std::max<std::int64_t>(media, 1)); i < ids.size(); ++i)
    labels[i - 1] = ids[i];
  ids.resize(labels.size(), kPadding);
  return {at::tensor(ids, at::kLong), at::tensor(labels, at::kLong)};
}

std::vector<MediaItem> MockData::media(const std::string& encoder, std::int64_t sample) const {
  std::vector<MediaItem> items;
  const std::vector<Extents> all = extents(sample);
  Draws draws(seed_, "mock.items." + encoder, sample);
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
