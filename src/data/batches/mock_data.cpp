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

int MockData::class_of(std::int64_t piece) const {
  const std::vector<SampleSizes::Extents> all = sizes_.extents_of(piece);
  const bool has_media = std::any_of(all.begin(), all.end(), [](const auto& items) { return !items.empty(); });
  return has_media ? static_cast<int>(MockDraws(seed_, "mock.class", piece).between(1, kClasses)) : 0;
}

std::vector<std::int64_t> MockData::text(std::int64_t piece, std::int64_t length) const {
  MockDraws draws(seed_, "mock.text", piece);
  const int stride = 1 + class_of(piece);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t random = draws.between(1, config_.alphabet);
    const bool counts_up = draws.uniform() >= config_.noise && i > 0;
    ids.push_back(counts_up ? 1 + (ids.back() - 1 + stride) % config_.alphabet : random);
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
  MockDraws draws(seed_, "mock.items." + own.encoder.name, piece);
  const at::Tensor look = own.looks[class_of(piece)];
  for (const auto& extent : extents) {
    const at::Tensor picked =
        (at::arange(input_rows(extent), at::kLong) * 7 + draws.between(0, kNoisePatches - 1)).remainder(kNoisePatches);
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

}  // namespace braid
