#include "predict/small_step.h"

#include <ATen/ATen.h>

#include "paper/stage.h"

namespace braid {
namespace {

// As narrow as a GPU's kernels permit; on a CPU, as narrow as the sizes that calibration measures.
HybridLmConfig small_model(const std::string& pattern, const at::Device& device) {
  const int width = device.is_cuda() ? 64 : 16;
  HybridLmConfig c;
  c.pattern = pattern;
  c.hidden = 128;
  c.vocab = 512;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = width;
  c.mamba_heads = 4;
  c.mamba_head_dim = width;
  c.mamba_groups = 2;
  c.mamba_state = width;
  c.mamba_chunk = 2 * width;
  c.expert_ffn = 64;
  return c;
}

}  // namespace

SmallStep::SmallStep(const std::string& pattern, std::int64_t tokens, const at::Device& device)
    : config_(small_model(pattern, device)),
      tokens_(tokens),
      device_(device),
      alone_("alone", device, progress_),
      parallel_{.tp = alone_, .cp = alone_, .tp_cp = alone_, .ep = alone_, .expt_tp = alone_},
      parameters_(declare_parameters(config_), 0, {}, device.is_cuda() ? at::kBFloat16 : at::kFloat, device),
      model_(config_, parameters_, parallel_, 0, 1, {}),
      batch_{.sequences = pack_sequences({0, tokens}, device)} {
  parameters_.initialize(1);
  const at::Tensor ids = at::randint(config_.vocab, {tokens}, at::kLong);
  ids_ = ids.to(device);
  labels_ = counted_labels(ids, device);
}

at::Tensor SmallStep::forward() const {
  for (const Parameters::Entry& entry : parameters_.entries()) entry.value.mutable_grad() = at::Tensor();
  const at::Tensor x = model_.run_layers(model_.embed(ids_), batch_);
  return model_.token_losses(model_.logits(x, labels_.rows), labels_.labels).sum();
}

Works small_step_work(const std::string& pattern, std::int64_t tokens, const at::Device& device) {
  const Topology topology({.modules = {{.name = "language", .kind = "language"}}}, {});
  const TextSizes text = {.tokens = tokens, .labels = tokens, .squares = static_cast<double>(tokens * tokens)};
  Works all;
  const LayerOptions options = {.element_bytes = device.is_cuda() ? 2 : 4};
  const StageOnPaper stage =
      walk_stage(small_model(pattern, device), topology.language(), 0, options, text, /*trains=*/true);
  for (const PaperLayer& layer : stage.layers)
    for (const Works* works : {&layer.work.forward, &layer.work.backward})
      all.insert(all.end(), works->begin(), works->end());
  return in_microbatch(all, /*is_first=*/true);
}

}  // namespace braid
