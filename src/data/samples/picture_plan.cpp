#include "data/samples/picture_plan.h"

#include "data/image/patches.h"

namespace braid {
namespace {

MediaPlan whole_picture(std::size_t picture, const CellGrid& patches, const VisionInput& vision) {
  return {.picture = picture,
          .resized = patches.pixels(vision.patch),
          .patches = patches,
          .embeddings = embedding_count(patches, vision.pixel_shuffle)};
}

std::vector<MediaPlan> tiles_of(std::size_t picture, const CellGrid& tiles, const TilingConfig& config,
                                const VisionInput& vision) {
  const int side = config.tile / vision.patch;
  std::vector<MediaPlan> plans;
  for (int row = 0; row < tiles.rows; ++row)
    for (int column = 0; column < tiles.columns; ++column) {
      plans.push_back(whole_picture(picture, {side, side}, vision));
      plans.back().resized = tiles.pixels(config.tile);
      plans.back().tile_column = column;
      plans.back().tile_row = row;
    }
  if (tile_count(tiles, config) > tiles.cells()) plans.push_back(whole_picture(picture, {side, side}, vision));
  return plans;
}

}  // namespace

std::vector<std::span<const MediaPlan>> by_picture(std::span<const MediaPlan> media) {
  std::vector<std::span<const MediaPlan>> groups;
  for (std::size_t i = 0; i < media.size(); ++i) {
    if (i == 0 || media[i].picture != media[i - 1].picture) groups.push_back(media.subspan(i, 0));
    groups.back() = {groups.back().data(), groups.back().size() + 1};
  }
  return groups;
}

std::int64_t patches_of(std::span<const MediaPlan> inputs) {
  std::int64_t patches = 0;
  for (const MediaPlan& input : inputs) patches += input.patches.cells();
  return patches;
}

std::int64_t embeddings_of(std::span<const MediaPlan> inputs) {
  std::int64_t embeddings = 0;
  for (const MediaPlan& input : inputs) embeddings += input.embeddings;
  return embeddings;
}

std::vector<std::vector<MediaPlan>> plan_pictures(const std::vector<PixelSize>& pictures, std::int64_t room,
                                                  const PictureConfig& config, const VisionInput& vision) {
  std::vector<std::vector<MediaPlan>> plans;
  if (vision.square || config.fit == "square") {
    const int side = vision.square.value_or(config.tile_side / vision.patch);
    for (std::size_t i = 0; i < pictures.size(); ++i) plans.push_back({whole_picture(i, {side, side}, vision)});
  } else if (config.fit == "tiles") {
    const TilingConfig tiling = {
        .tile = config.tile_side, .max_tiles = config.max_tiles, .thumbnail = config.thumbnail};
    const int side = config.tile_side / vision.patch;
    const std::int64_t per_tile = embedding_count({side, side}, vision.pixel_shuffle);
    const std::vector<CellGrid> grids = fit_tiles(pictures, room, per_tile, tiling);
    for (std::size_t i = 0; i < grids.size(); ++i) plans.push_back(tiles_of(i, grids[i], tiling, vision));
  } else {
    const std::vector<CellGrid> grids = fit_images(pictures, room,
                                                   {.patch = vision.patch,
                                                    .min_patches = config.min_patches,
                                                    .max_patches = config.max_patches,
                                                    .min_side = config.min_side,
                                                    .divisor = vision.pixel_shuffle ? 2 : 1});
    for (std::size_t i = 0; i < grids.size(); ++i) plans.push_back({whole_picture(i, grids[i], vision)});
  }
  return plans;
}

}  // namespace braid
