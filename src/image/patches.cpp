#include "image/patches.h"

#include <map>
#include <vector>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

constexpr PixelStatistics kClip = {{0.48145466f, 0.4578275f, 0.40821073f}, {0.26862954f, 0.26130258f, 0.27577711f}};
constexpr PixelStatistics kImageNet = {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};
constexpr PixelStatistics kHalf = {{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}};

// radio-g was trained with 0.223, not ImageNet's 0.229.
constexpr PixelStatistics kRadioG = {{0.485f, 0.456f, 0.406f}, {0.223f, 0.224f, 0.225f}};

const std::map<std::string, PixelStatistics>& known_statistics() {
  static const std::map<std::string, PixelStatistics> known = {
      {"clip", kClip},      {"radio", kClip},         {"cradio-g", kClip},
      {"siglip", kHalf},    {"internvit", kImageNet}, {"internvit300M", kImageNet},
      {"radio-g", kRadioG},
  };
  return known;
}

}  // namespace

void cut_patches(const Image& image, int patch, std::span<std::uint8_t> rows) {
  const auto [width, height] = image.size();
  BRAID_CHECK(patch > 0 && width % patch == 0 && height % patch == 0, "{} x {} pixels, patches of {}", width, height,
              patch);
  BRAID_CHECK_EQ(rows.size(), image.byte_count(), "bytes for patches");
  std::uint8_t* to = rows.data();
  for (int top = 0; top < height; top += patch)
    for (int left = 0; left < width; left += patch)
      for (int channel = 0; channel < 3; ++channel)
        for (int y = top; y < top + patch; ++y) {
          const std::uint8_t* from = image.row(y) + std::size_t{3} * left + channel;
          for (int x = 0; x < patch; ++x) *to++ = from[3 * x];
        }
}

PixelStatistics pixel_statistics(const std::string& encoder) {
  const auto& known = known_statistics();
  if (const auto found = known.find(encoder); found != known.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, statistics] : known) names.push_back(name);
  const auto meant = nearest(encoder, names);
  throw ConfigError(
      {fmt::format("no mean and standard deviation of pixels are known for the encoder {}", in_quotes(encoder)), "",
       fmt::format("{}known encoders: {}", meant ? fmt::format("did you mean {}? ", *meant) : "",
                   fmt::join(names, ", "))});
}

void normalize_patches(std::span<const std::uint8_t> rows, int patch, const PixelStatistics& statistics,
                       std::span<float> out) {
  BRAID_CHECK_EQ(rows.size(), out.size(), "numbers of the patches");
  std::array<std::array<float, 256>, 3> values;
  for (std::size_t channel = 0; channel < 3; ++channel)
    for (int level = 0; level < 256; ++level)
      values[channel][level] =
          (static_cast<float>(level) / 255.0f - statistics.mean[channel]) / statistics.std[channel];
  const std::size_t per_channel = static_cast<std::size_t>(patch) * patch;
  BRAID_CHECK(per_channel > 0 && rows.size() % (3 * per_channel) == 0, "{} bytes of patches of {}", rows.size(), patch);
  for (std::size_t begin = 0; begin < rows.size(); begin += per_channel)
    for (std::size_t i = begin; i < begin + per_channel; ++i) out[i] = values[begin / per_channel % 3][rows[i]];
}

std::int64_t embedding_count(const CellGrid& patches, const EmbeddingRule& rule) {
  std::int64_t count = patches.cells() + rule.class_tokens;
  if (rule.pixel_shuffle) count /= 4;
  if (rule.conv_merging) count /= 4;
  return count;
}

}  // namespace braid
