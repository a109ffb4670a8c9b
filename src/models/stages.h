// One pipeline stage of a model, behind an interface that hides which model it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "models/providers.h"
#include "nn/config.h"
#include "nn/layer.h"
#include "nn/parallel.h"
#include "nn/parameters.h"
#include "ops/cross_entropy.h"

namespace braid {

class Moe;

class EncoderStage {
 public:
  virtual ~EncoderStage() = default;
  using Extents = std::vector<std::vector<std::int64_t>>;
  // Items lie end to end. `x`: on the first stage their values ([patches or frames, features], of any dtype), else the
  // output of the previous stage. The last stage returns embeddings for the language model. `extents`: by item; of an
  // image, rows and columns in patches; of an audio clip, frames.
  virtual at::Tensor forward(const at::Tensor& x, const Extents& extents) const = 0;
};

class LanguageStage {
 public:
  virtual ~LanguageStage() = default;
  virtual at::Tensor embed(const at::Tensor& ids) const = 0;                          // [T / cp] -> [t, H]
  virtual at::Tensor run_layers(at::Tensor x, const SequenceBatch& batch) const = 0;  // [t, H] -> [t, H]
  // Of the tokens that have a loss; others cost nothing.   [t, H], n labels -> [n]
  virtual at::Tensor token_losses(const at::Tensor& x, const CountedLabels& labels) const = 0;
  // The losses, and the ids that the model would choose in place of the labels.   [t, H], n labels -> [n] each
  struct Judged {
    at::Tensor losses, choices;
  };
  virtual Judged judge(const at::Tensor& x, const CountedLabels& labels) const = 0;
  virtual std::vector<Moe*> moe_layers() const { return {}; }
};

struct StagePosition {
  int stage = 0, stages = 1;
  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stages - 1; }
};

// Parameters and groups must outlive the stage. `projector`: on the last stage only. A frozen encoder runs without
// autograd.
std::unique_ptr<EncoderStage> make_encoder_stage(const EncoderConfig& config, const Parameters& encoder,
                                                 const Parameters* projector, const Parallel& parallel,
                                                 const StagePosition& position, const RecomputeConfig& recompute);
std::unique_ptr<LanguageStage> make_language_stage(const LanguageConfig& config, const Parameters& parameters,
                                                   const Parallel& parallel, const StagePosition& position,
                                                   const RecomputeConfig& recompute);

}  // namespace braid
