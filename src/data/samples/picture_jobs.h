// The pixels of an encoder's inputs: pictures are decoded, resized and cut into patches. Several
// threads share this work; each picture has its own rows of patches, so they do not conflict.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/samples/bad_samples.h"
#include "data/samples/conversation.h"
#include "data/samples/data_config.h"
#include "data/samples/packing.h"
#include "data/samples/picture_plan.h"

namespace braid {

// The picture at the size at which its inputs are made from it. DataError if it is damaged.
Image decode_for(const Picture& picture, std::span<const MediaPlan> inputs, const PictureConfig& config);

// Writes the patches of all inputs that one picture becomes, one input after the other, into `rows`, [patches,
// 3 * patch * patch].
void write_patches(const Image& decoded, std::span<const MediaPlan> inputs, const PictureConfig& config, int patch,
                   std::span<std::uint8_t> rows);

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
