// One pipeline stage of a model, as the multimodal step runs it without knowing which model it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "models/providers.h"
#include "nn/layer.h"
#include "nn/parallel.h"
#include "nn/parameters.h"

namespace braid {

class Moe;

// An image, a sound: something an encoder looks at.
struct MediaItem {
  at::Tensor values;                 // [patches or frames, features of one]
  std::vector<std::int64_t> extent;  // of an image, rows and columns in patches; of a sound, frames
};

class EncoderStage {
 public:
  virtual ~EncoderStage() = default;
  // `x` is what the stage before made of the items; on the first stage it is undefined. The last stage returns the rows
  // that the language model reads, item by item.
  virtual at::Tensor forward(const at::Tensor& x, const std::vector<MediaItem>& items) const = 0;
};

class LanguageStage {
 public:
  virtual ~LanguageStage() = default;
  virtual at::Tensor embed(const at::Tensor& ids) const = 0;                                 // [T / cp] -> [t, H]
  virtual at::Tensor run_layers(at::Tensor x, const SequenceBatch& batch) const = 0;         // [t, H] -> [t, H]
  virtual at::Tensor token_losses(const at::Tensor& x, const at::Tensor& labels) const = 0;  // [t, H] -> [T / cp]
  virtual std::vector<Moe*> moe_layers() const { return {}; }
};

struct StagePlace {
  int stage = 0, pp = 1;
  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == pp - 1; }
};

// Parameters and groups outlive the stage. `projector`: on the last stage. A stage whose encoder does not train runs
// that part without autograd.
std::unique_ptr<EncoderStage> make_encoder_stage(const EncoderConfig& config, const Parameters& encoder,
                                                 const Parameters* projector, const Parallel& parallel,
                                                 const StagePlace& place, bool recompute);
std::unique_ptr<LanguageStage> make_language_stage(const LanguageConfig& config, const Parameters& parameters,
                                                   const Parallel& parallel, const StagePlace& place, bool recompute);

}  // namespace braid
