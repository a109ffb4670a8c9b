#include "data/samples/media_pixels.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "data/image/decode.h"
#include "data/image/patches.h"
#include "data/image/resize.h"

namespace braid {

Image decode_for(const Picture& picture, std::span<const MediaPlan> inputs, const PictureConfig& config) {
  DecodeOptions options = {.orient = config.orient};
  if (config.scaled_decode) {
    PixelSize largest;
    for (const MediaPlan& input : inputs)
      largest = {std::max(largest.width, input.resized.width), std::max(largest.height, input.resized.height)};
    options.scale_for = largest;
  }
  return decode(picture.file(), picture.name, options);
}

void write_patches(const Image& decoded, std::span<const MediaPlan> inputs, const PictureConfig& config, int patch,
                   std::span<std::uint8_t> rows) {
  const ResizeFilter filter = config.filter == "bilinear" ? ResizeFilter::Bilinear : ResizeFilter::Bicubic;
  constexpr std::uint8_t kGrey = 128;
  if (config.blank) return std::fill(rows.begin(), rows.end(), kGrey);
  std::optional<Image> resized;
  std::size_t written = 0;
  for (const MediaPlan& input : inputs) {
    if (!resized || resized->size() != input.resized) resized = resize(decoded, input.resized, filter);
    const auto size = static_cast<std::size_t>(input.patches.pixels(patch).pixels() * 3);
    BRAID_CHECK(size <= rows.size() - written, "{} bytes do not hold the patches", rows.size());
    const auto own = rows.subspan(std::exchange(written, written + size), size);
    if (input.patches.pixels(patch) == input.resized)
      cut_patches(*resized, patch, own);
    else
      cut_patches(cut_tile(*resized, input.patches.pixels(patch).width, input.tile_column, input.tile_row), patch, own);
  }
}

}  // namespace braid
