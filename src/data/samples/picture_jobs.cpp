#include "data/samples/picture_jobs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "data/image/decode.h"
#include "data/image/patches.h"
#include "data/image/image.h"

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

void add_picture_jobs(const ReadSample& sample, std::vector<PictureJob>& jobs) {
  for (const auto inputs : by_picture(sample.tokens.media))
    jobs.push_back({&sample, inputs, patches_of(jobs), patches_of(inputs)});
}

std::int64_t patches_of(const std::vector<PictureJob>& jobs) {
  return jobs.empty() ? 0 : jobs.back().first_patch + jobs.back().patches;
}

bool decode_into(std::span<std::uint8_t> rows, const PictureJob& job, SampleReader& reader, const PictureConfig& config,
                 int patch, BadSamples& bad) {
  const auto row_bytes = std::size_t{3} * static_cast<std::size_t>(patch) * static_cast<std::size_t>(patch);
  const auto own = rows.subspan(static_cast<std::size_t>(job.first_patch) * row_bytes,
                                static_cast<std::size_t>(job.patches) * row_bytes);
  try {
    const StoredPicture& picture = job.sample->pictures[job.inputs.front().picture];
    const std::string bytes = reader.read_bytes(job.sample->ref, picture.offset, picture.size);
    const Image decoded = decode_for({picture.name, bytes}, job.inputs, config);
    write_patches(decoded, job.inputs, config, patch, own);
    return true;
  } catch (const ReadError&) {
    throw;
  } catch (const DataError& e) {
    std::fill(own.begin(), own.end(), std::uint8_t{0});
    bad.add(reader.data_of(job.sample->ref), job.sample->ref, in_quotes(job.sample->key), e.what());
    return false;
  }
}

}  // namespace braid
