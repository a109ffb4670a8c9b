// Pictures as rows of patches, the input of vision encoders, and as normalised numbers.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "image/image.h"

namespace braid {

// Patches or tiles of a picture.
struct CellGrid {
  int columns = 0, rows = 0;
  std::int64_t cells() const { return std::int64_t{columns} * rows; }
  PixelSize pixels(int cell_side) const { return {columns * cell_side, rows * cell_side}; }
  bool operator==(const CellGrid&) const = default;
};

// Writes the patches row by row, each as (channel, y, x): c (py yy) (px xx) -> (py px) (c yy xx). The sides of the
// picture are multiples of `patch`; `rows` has as many bytes as the picture.    rows: [patches, 3 * patch * patch]
void cut_patches(const Image& image, int patch, std::span<std::uint8_t> rows);

// Encoders take (x / 255 - mean) / std.
struct PixelStatistics {
  std::array<float, 3> mean{}, std{};
};

// By the name of an encoder, as in Megatron's --vision-model-type; a ConfigError lists the known names.
PixelStatistics pixel_statistics(const std::string& encoder);

// `rows` as written by cut_patches.
void normalize_patches(std::span<const std::uint8_t> rows, int patch, const PixelStatistics& statistics,
                       std::span<float> out);

// How many embeddings the language model receives for one picture or tile.
struct EmbeddingRule {
  int class_tokens = 0;                              // that the encoder keeps
  bool pixel_shuffle = false, conv_merging = false;  // each joins 2 x 2 patches
};
std::int64_t embedding_count(const CellGrid& patches, const EmbeddingRule& rule);

}  // namespace braid
