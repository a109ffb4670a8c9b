#include "models/stages.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/tensor.h>

#include <optional>
#include <type_traits>

#include "base/error.h"
#include "models/audio_encoder.h"
#include "models/clip.h"
#include "models/encoder_layers.h"
#include "models/hybrid_lm.h"
#include "models/llama.h"
#include "models/providers.h"
#include "models/radio.h"
#include "ops/cross_entropy.h"

namespace braid {
namespace {

// The items' extents in the form that their encoder expects.
template <class ImageEncoder>
std::vector<PatchGrid> shapes_for(const ImageEncoder&, const EncoderStage::Extents& extents) {
  std::vector<PatchGrid> grids;
  for (const auto& extent : extents) grids.push_back({extent.at(0), extent.at(1)});
  return grids;
}
AudioEncoder::Lengths shapes_for(const AudioEncoder&, const EncoderStage::Extents& extents) {
  AudioEncoder::Lengths lengths;
  for (const auto& extent : extents) lengths.push_back(extent.at(0));
  return lengths;
}

struct Normalizer {
  at::Tensor mean, std;  // [channels, 1], fp32 or wider
};

Normalizer normalizer_of(const EncoderConfig& encoder, const at::TensorOptions& options) {
  const auto dtype = at::promote_types(at::kFloat, at::typeMetaToScalarType(options.dtype()));
  const auto column = [&](const std::array<double, 3>& values) {
    return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(options.dtype(dtype)).unsqueeze(1);
  };
  const auto* radio = std::get_if<RadioConfig>(&encoder.model);
  const std::string name = radio && radio->normalize_pixels ? "none" : encoder.pixel_stats;
  for (const PixelStats& stats : all_pixel_stats())
    if (stats.name == name) return {column(stats.mean), column(stats.std)};
  throw_check_failed(__FILE__, __LINE__, "no pixel statistics are called " + name);
}

template <class Model, class Config>
class AnyEncoderStage : public EncoderStage {
 public:
  AnyEncoderStage(const EncoderConfig& encoder, const Config& config, const Parameters& parameters,
                  const Parameters* projector, const Parallel& parallel, const StagePosition& position,
                  const RecomputeConfig& recompute)
      : features_(features_of(config)),
        pixel_shuffle_(encoder.pixel_shuffle),
        parameters_(parameters),
        normalizer_(normalizer_of(encoder, options())),
        model_(config, parameters, parallel, position.stage, position.stages, recompute) {
    BRAID_CHECK_EQ(projector != nullptr, position.is_last(), "the projector is on the last stage");
    if (projector) projector_.emplace(encoder.projector, *projector, parallel);
  }

  at::Tensor forward(const at::Tensor& x, const Extents& extents) const override {
    const at::Tensor encoded = encode(x, extents);
    return projector_ ? projector_->forward(encoded) : encoded;
  }

 private:
  at::Tensor encode(at::Tensor x, const Extents& extents) const {
    const auto shapes = shapes_for(model_, extents);
    at::AutoGradMode grad_mode(at::GradMode::is_enabled() && parameters_.trains());
    if (model_.is_first_stage())
      x = model_.embed(x.defined() ? input_values(x) : at::empty({0, features_}, options()), shapes);
    x = model_.run_layers(x, shapes);
    if (!model_.is_last_stage()) return x;
    x = model_.features(x, shapes);
    if constexpr (std::is_same_v<decltype(shapes), const std::vector<PatchGrid>>)
      return pixel_shuffle_ ? pixel_shuffle(x, shapes) : x;
    else
      return x;
  }

  // Bytes are pixels from 0 to 255; other values are taken as they are.
  at::Tensor input_values(const at::Tensor& x) const {
    if (x.scalar_type() != at::kByte) return x.to(options());
    const at::Tensor pixels =
        x.to(normalizer_.mean.scalar_type()).div_(255).unflatten(1, {normalizer_.mean.size(0), -1});
    return pixels.sub_(normalizer_.mean).div_(normalizer_.std).flatten(1).to(options());
  }

  at::TensorOptions options() const { return parameters_.entries().front().value.options().requires_grad(false); }

  const int features_;
  const bool pixel_shuffle_;
  const Parameters& parameters_;
  const Normalizer normalizer_;
  const Model model_;
  std::optional<Projector> projector_;
};

template <class Model>
class AnyLanguageStage : public LanguageStage {
 public:
  template <class Config>
  AnyLanguageStage(const Config& config, const Parameters& parameters, const Parallel& parallel,
                   const StagePosition& position, const RecomputeConfig& recompute)
      : tp_(parallel.tp), model_(config, parameters, parallel, position.stage, position.stages, recompute) {}

  at::Tensor embed(const at::Tensor& ids) const override { return model_.embed(ids); }
  at::Tensor run_layers(at::Tensor x, const SequenceBatch& batch) const override {
    return model_.run_layers(std::move(x), batch);
  }
  at::Tensor token_losses(const at::Tensor& x, const CountedLabels& labels) const override {
    return model_.token_losses(model_.logits(x, labels.rows), labels.labels);
  }
  Judged judge(const at::Tensor& x, const CountedLabels& labels) const override {
    const at::Tensor logits = model_.logits(x, labels.rows);
    return {model_.token_losses(logits, labels.labels), first_choices(logits, vocabulary_of(tp_))};
  }
  std::vector<Moe*> moe_layers() const override {
    if constexpr (requires { model_.moe_layers(); })
      return model_.moe_layers();
    else
      return {};
  }

 private:
  const Group tp_;
  const Model model_;
};

struct MakeEncoder {
  const EncoderConfig& encoder;
  const Parameters& parameters;
  const Parameters* projector;
  const Parallel& parallel;
  const StagePosition& position;
  const RecomputeConfig& recompute;

  std::unique_ptr<EncoderStage> operator()(const RadioConfig& config) const { return make<Radio>(config); }
  std::unique_ptr<EncoderStage> operator()(const ClipConfig& config) const { return make<Clip>(config); }
  std::unique_ptr<EncoderStage> operator()(const AudioConfig& config) const { return make<AudioEncoder>(config); }

  template <class Model, class Config>
  std::unique_ptr<EncoderStage> make(const Config& config) const {
    return std::make_unique<AnyEncoderStage<Model, Config>>(encoder, config, parameters, projector, parallel, position,
                                                            recompute);
  }
};

struct MakeLanguage {
  const Parameters& parameters;
  const Parallel& parallel;
  const StagePosition& position;
  const RecomputeConfig& recompute;

  std::unique_ptr<LanguageStage> operator()(const HybridLmConfig& config) const { return make<HybridLm>(config); }
  std::unique_ptr<LanguageStage> operator()(const LlamaConfig& config) const { return make<Llama>(config); }

  template <class Model, class Config>
  std::unique_ptr<LanguageStage> make(const Config& config) const {
    return std::make_unique<AnyLanguageStage<Model>>(config, parameters, parallel, position, recompute);
  }
};

}  // namespace

std::unique_ptr<EncoderStage> make_encoder_stage(const EncoderConfig& config, const Parameters& encoder,
                                                 const Parameters* projector, const Parallel& parallel,
                                                 const StagePosition& position, const RecomputeConfig& recompute) {
  return std::visit(MakeEncoder{config, encoder, projector, parallel, position, recompute}, config.model);
}

std::unique_ptr<LanguageStage> make_language_stage(const LanguageConfig& config, const Parameters& parameters,
                                                   const Parallel& parallel, const StagePosition& position,
                                                   const RecomputeConfig& recompute) {
  return std::visit(MakeLanguage{parameters, parallel, position, recompute}, config);
}

}  // namespace braid
