// RADIO-H on one GPU, bf16, random weights and patches, forward and backward.
#pragma once

#include <ATen/ATen.h>
#include "comm/world.h"
#include "kernel_table.h"
#include "models/encoder.h"
#include "models/providers.h"
#include "timing.h"

namespace braid {

inline constexpr int kRadioRepeats = 10;

// Height and width in patches: images of 512 x 512 pixels, others of mixed sizes, and these padded to the largest
// sides.
inline const std::vector<PatchGrid> kEqualImages(8, {32, 32});
inline const std::vector<PatchGrid> kMixedImages = {{16, 48}, {24, 24}, {32, 32}, {48, 16},
                                                    {12, 20}, {40, 26}, {8, 60},  {30, 34}};
inline const std::vector<PatchGrid> kPaddedImages(8, {48, 60});

inline RadioConfig radio_h() { return std::get<RadioConfig>(provider("nemotron-vlm-20l").encoders[0].model); }

class RadioStep {
 public:
  explicit RadioStep(const RadioConfig& config)
      : world_(0, 1, device_, nullptr, progress_), parallel_(make_parallel()),
        parameters_(declare_parameters(config), 0, {}, at::kBFloat16, device_),
        model_(config, parameters_, parallel_, 0, 1) {
    parameters_.initialize(1);
  }

  at::Tensor forward_backward(const std::vector<PatchGrid>& images, const at::Tensor& patches) const {
    for (const Parameters::Entry& entry : parameters_.entries()) entry.value.mutable_grad() = at::Tensor();
    const Extents extents = extents_of(images);
    const at::Tensor features = model_.features(model_.run_layers(model_.embed(patches, extents), extents), extents);
    features.backward(at::ones_like(features));
    return features.detach();
  }

  at::Device device() const { return device_; }
  double parameters() const { return static_cast<double>(parameters_.elements()); }

 private:
  Parallel make_parallel() {
    const Group alone = world_.make_group("alone", {0});
    return {.tp = alone, .cp = alone, .tp_cp = alone, .ep = alone, .expt_tp = alone};
  }

  const at::Device device_{at::kCUDA, 0};
  Progress progress_;
  World world_;
  const Parallel parallel_;
  Parameters parameters_;
  const Encoder model_;
};

struct Measured {
  double ms = 0, peak_gb = 0;
};

inline at::Tensor random_patches(const RadioStep& step, const RadioConfig& config,
                                 const std::vector<PatchGrid>& images) {
  return at::randn({total_patches(images), config.channels * config.patch * config.patch},
                   at::TensorOptions(at::kBFloat16).device(step.device()));
}

inline Measured measure(const RadioStep& step, const RadioConfig& config, const std::vector<PatchGrid>& images) {
  const at::Tensor patches = random_patches(step, config, images);
  at::accelerator::resetPeakStats(step.device().index());
  const double ms = median_ms(kRadioRepeats, step.device(), [&] { step.forward_backward(images, patches); });
  return {ms, peak_gb(step.device()).value()};
}

inline std::string kernels_of(const RadioStep& step, const RadioConfig& config, const std::vector<PatchGrid>& images) {
  const at::Tensor patches = random_patches(step, config, images);
  return kernel_table(true, kRadioRepeats, [&] {
    step.forward_backward(images, patches);
    synchronize(step.device());
  });
}

// Of forward and backward of all products.
inline double radio_flops(const RadioConfig& config, const std::vector<PatchGrid>& images) {
  double tokens = 0, pairs = 0;
  for (const PatchGrid& grid : images) {
    const auto length = static_cast<double>(grid.patches() + config.class_tokens);
    tokens += length;
    pairs += length * length;
  }
  const double hidden = config.hidden, weights = 4 * hidden * hidden + 2 * hidden * config.ffn;
  return 3 * config.layers * (2 * tokens * weights + 4 * pairs * hidden);
}

}  // namespace braid
