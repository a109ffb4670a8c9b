// The pictures of some sequences as work for several threads: each is decoded and cut into its own rows of patches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/samples/bad_samples.h"
#include "data/samples/media_pixels.h"
#include "data/samples/pack_stream.h"

namespace braid {

// Inputs of the encoder, by the picture that they come from.
std::vector<std::span<const MediaPlan>> by_picture(std::span<const MediaPlan> media);
std::int64_t patches_of(std::span<const MediaPlan> inputs);

// One picture. The sample outlives it.
struct PictureJob {
  const ReadSample* sample;
  std::span<const MediaPlan> inputs;
  std::int64_t first_patch, patches;  // among those of all jobs
};

// The patches of a sample follow those of the jobs before it.
void add_picture_jobs(const ReadSample& sample, std::vector<PictureJob>& jobs);
std::int64_t patches_of(const std::vector<PictureJob>& jobs);

// Writes the picture's patches into `rows`, [patches of all jobs, 3 * patch * patch]. A picture whose header is fine
// may still be damaged: then its rows become zeros and the sample is reported. Returns whether it is fine.
bool decode_into(std::span<std::uint8_t> rows, const PictureJob& job, SampleReader& reader, const PictureConfig& config,
                 int patch, BadSamples& bad);

}  // namespace braid
