#include "mimo/mock_data.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "base/philox.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

constexpr std::int64_t kDrawsPerSample = 64;  // of the layout of a sample's images

std::int64_t tokens_of(const PatchGrid& grid) { return grid.patches() / 4; }

}  // namespace

std::vector<PatchGrid> MockData::grids(std::int64_t sample) const {
  const RandomField field(static_cast<std::uint64_t>(config_.seed), "mock.images");
  auto index = static_cast<std::uint64_t>(sample * kDrawsPerSample);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(field.uniform(index++) * (high - low + 1));
  };
  std::vector<PatchGrid> grids;
  if (field.uniform(index++) >= config_.image_share) return grids;
  const int count = draw(1, config_.max_images);
  std::int64_t room = config_.sequence_length - 2;  // a sample has something to learn from
  for (int i = 0; i < count; ++i) {
    const PatchGrid grid = {2 * draw(config_.min_side / 2, config_.max_side / 2),
                            2 * draw(config_.min_side / 2, config_.max_side / 2)};
    if (tokens_of(grid) > room) break;
    room -= tokens_of(grid);
    grids.push_back(grid);
  }
  return grids;
}

Tokens MockData::tokens(std::int64_t sample) const {
  const RandomField field(static_cast<std::uint64_t>(config_.seed), "mock.tokens");
  std::vector<std::int64_t> ids, labels;
  for (const PatchGrid& grid : grids(sample))
    ids.insert(ids.end(), static_cast<std::size_t>(tokens_of(grid)), config_.image_token_id);
  while (static_cast<int>(ids.size()) < config_.sequence_length) {
    const auto index = static_cast<std::uint64_t>(sample * config_.sequence_length) + ids.size();
    const auto id = 1 + static_cast<std::int64_t>(field.uniform(index) * (config_.vocab - 1));
    ids.push_back(id == config_.image_token_id ? 1 : id);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool has_next = i + 1 < ids.size() && ids[i + 1] != config_.image_token_id;
    labels.push_back(has_next ? ids[i + 1] : kIgnoredLabel);
  }
  return {at::tensor(ids, at::kLong), at::tensor(labels, at::kLong)};
}

std::vector<Image> MockData::images(std::int64_t sample) const {
  std::vector<Image> images;
  const RandomField field(static_cast<std::uint64_t>(config_.seed), "mock.pixels");
  const std::int64_t most = std::int64_t{config_.max_side} * config_.max_side * config_.pixels;
  for (const PatchGrid& grid : grids(sample)) {
    const auto first =
        static_cast<std::uint64_t>((sample * config_.max_images + static_cast<int>(images.size())) * most);
    at::Tensor patches = at::empty({grid.patches(), config_.pixels}, at::kDouble);
    field.fill_normal(first, {patches.data_ptr<double>(), static_cast<std::size_t>(patches.numel())});
    images.push_back({patches, grid});
  }
  return images;
}

}  // namespace braid
