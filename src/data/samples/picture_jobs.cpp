#include "data/samples/picture_jobs.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"

namespace braid {

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
