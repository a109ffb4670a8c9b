#include "language_step.h"
#include <ATen/ATen.h>
#include "base/error.h"
#include "comm/cpu_share.h"
#include "comm/world.h"
#include "cuda_graph.h"
#include "kernel_table.h"
#include "models/decoder.h"
#include "ops/cross_entropy.h"
#include "optim/module_optimizer.h"
#include "optim/sharded_adam.h"
#include "timing.h"

namespace braid {
namespace {

constexpr int kWarmUpSteps = 8;

Parallel make_single_rank(World& world) {
  const Group alone = world.make_group("alone", {0});
  return {.tp = alone, .cp = alone, .tp_cp = alone, .ep = alone, .expt_tp = alone};
}

std::int64_t ignored_labels(const LanguageStepOptions& options) {
  return std::llround(options.ignored_share * options.sequence);
}

class LanguageStep {
 public:
  LanguageStep(const HybridLmConfig& config, const LanguageStepOptions& options, const at::Device& device)
      : device_(device), keep_weights_(options.keep_weights), world_(0, 1, device, nullptr, progress_),
        parallel_(make_single_rank(world_)), parameters_(declare_parameters(config), 0, {}, at::kBFloat16, device),
        model_(config, parameters_, parallel_, 0, 1, options.recompute),
        batch_({.sequences = pack_sequences({0, options.sequence}, device)}) {
    parameters_.initialize(1);
    const at::Tensor ids = at::randint(config.vocab, {options.sequence}, at::kLong), labels = ids.roll(-1);
    labels.slice(0, -1).fill_(kIgnoredLabel);
    labels.slice(0, 0, ignored_labels(options)).fill_(kIgnoredLabel);
    ids_ = ids.to(device);
    labels_ = counted_labels(labels, device);
  }

  // The sum of the token losses.
  at::Tensor forward() const {
    if (!keep_weights_)
      for (const Parameters::Entry& entry : parameters_.entries()) entry.value.unsafeGetTensorImpl()->bump_version();
    const at::Tensor x = model_.run_layers(model_.embed(ids_), batch_);
    return model_.token_losses(model_.logits(x, labels_.rows), labels_.labels).sum();
  }

  std::int64_t counted() const { return labels_.rows.size(0); }

  at::Tensor forward_backward() const {
    for (const Parameters::Entry& entry : parameters_.entries()) entry.value.mutable_grad() = at::Tensor();
    const at::Tensor loss = forward();
    loss.backward();
    return loss.detach();
  }

  const Group& alone() const { return parallel_.tp; }
  std::vector<Parameters::Entry> trained() const {
    std::vector<Parameters::Entry> entries;
    for (const Parameters::Entry& entry : parameters_.entries())
      if (entry.spec.trainable) entries.push_back(entry);
    return entries;
  }

  // The number of parameters with a gradient; checks that all are finite and not zero.
  std::size_t check_gradients() const {
    std::vector<std::string> names;
    std::vector<at::Tensor> norms;
    for (const Parameters::Entry& entry : parameters_.entries()) {
      if (!entry.spec.trainable) continue;
      BRAID_CHECK(entry.value.grad().defined(), "{} has no gradient", entry.spec.name);
      names.push_back(entry.spec.name);
      norms.push_back(at::linalg_vector_norm(entry.value.grad(), 2, {}, false, at::kFloat));
    }
    const at::Tensor host = at::stack(norms).cpu();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const float norm = host.data_ptr<float>()[i];
      BRAID_CHECK(std::isfinite(norm) && norm > 0, "the gradient of {} has norm {}", names[i], norm);
    }
    return names.size();
  }

 private:
  const at::Device device_;
  const bool keep_weights_;
  Progress progress_;
  World world_;
  const Parallel parallel_;
  Parameters parameters_;
  const Decoder model_;
  const SequenceBatch batch_;
  at::Tensor ids_;
  CountedLabels labels_;
};

// A training step with its optimizer: gradients are summed in fp32, and the parameters are bf16 copies of fp32 ones.
class TrainingStep {
 public:
  explicit TrainingStep(const LanguageStep& step)
      : step_(step), adam_(step.trained(), step.alone(), step.alone(), {}, /*module_parameters=*/0) {}

  void run() {
    adam_.gradients().begin_step();
    step_.forward_backward();
    adam_.gradients().start_reduction(kStage);
    adam_.finish_gradients(kStage);
    const double norm = std::sqrt(adam_.norm_terms().cpu().data_ptr<double>()[0]);
    adam_.update(++steps_, /*lr=*/1e-5, /*weight_decay=*/0.1, clip_coefficient(norm, /*clip_grad=*/1));
    adam_.finish_publishing();
  }

 private:
  static constexpr int kStage = 0;
  const LanguageStep& step_;
  ShardedAdam adam_;
  std::int64_t steps_ = 0;
};

// The final norm gives rows of length sqrt(hidden), so each logit is normally distributed with this variance, and the
// mean loss is log(vocab) plus half the variance.
double logit_variance(const HybridLmConfig& config) { return config.hidden * config.init_std * config.init_std; }

void check_loss(const LanguageStepReport& report, const HybridLmConfig& config, std::int64_t labels) {
  // The standard error of the mean over the labels' logits is their standard deviation over the square root of the
  // number of different labels. The tolerance is six times that, plus the rounding of the logits to bf16 (8 bits).
  const double strays =
      std::sqrt(logit_variance(config) / static_cast<double>(std::min<std::int64_t>(labels, config.vocab)));
  const double tolerance = 6 * strays + 1.0 / 128;
  BRAID_CHECK(std::abs(report.loss - report.expected_loss) <= tolerance, "loss {}, where random weights give {} +- {}",
              report.loss, report.expected_loss, tolerance);
}

LanguageStepReport measure(const HybridLmConfig& config, const LanguageStepOptions& options, const at::Device& device) {
  const LanguageStep step(config, options, device);
  LanguageStepReport report;
  report.expected_loss = std::log(config.vocab) + logit_variance(config) / 2;
  report.loss = step.forward_backward().item<double>() / static_cast<double>(step.counted());
  check_loss(report, config, step.counted());
  report.gradients = step.check_gradients();

  // Meanwhile the clock falls to that of steps in a row.
  for (int i = 0; i < kWarmUpSteps; ++i) step.forward_backward();
  report.ms_forward = median_ms(options.repeats, device, [&] { step.forward(); });
  if (device.is_cuda()) at::accelerator::resetPeakStats(device.index());
  report.ms_forward_backward = median_ms(options.repeats, device, [&] { step.forward_backward(); });
  report.peak_gb = peak_gb(device);
  report.kernels = kernel_table(device.is_cuda(), options.repeats, [&] {
    step.forward_backward();
    synchronize(device);
  });
  if (options.optimizer) {
    TrainingStep training(step);
    report.ms_with_optimizer = median_ms(options.repeats, device, [&] { training.run(); });
  }
  return report;
}

}  // namespace

// The last token predicts nothing.
std::int64_t labels_with_loss(const LanguageStepOptions& options) {
  return options.sequence - 1 - ignored_labels(options);
}

bool gpu_is_visible() { return torch::cuda::is_available(); }

LanguageStepReport measure_language_step(const HybridLmConfig& config, const LanguageStepOptions& options) {
  work_around_blas();
  at::manual_seed(1);
  const at::Device device = gpu_is_visible() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  const LanguageStepReport report = measure(config, options, device);
  if (device.is_cuda()) at::accelerator::emptyCache();
  return report;
}

std::string measure_language_graph(const HybridLmConfig& config, const LanguageStepOptions& options) {
  const at::Device device(at::kCUDA, 0);
  const LanguageStep step(config, options, device);
  return time_graph(options.repeats, device, [&] { return step.forward_backward(); });
}

}  // namespace braid
