// RADIO-H, forward and backward: 8 images of 512 x 512 pixels compared with transformers in the same job, and a batch
// of mixed sizes compared with the same images padded to the largest. Results: docs/benchmarks/radio.md
//
//   build/bench_radio [PYTHON] [--graph] [--equal-only]      python with torch and transformers, for the peer
#include "models/radio.h"

#include <ATen/ATen.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/table.h"
#include "cuda_graph.h"
#include "dist/blas_quirk.h"
#include "dist/world.h"
#include "kernel_table.h"
#include "models/providers.h"
#include "peer.h"
#include "timing.h"

namespace {

using namespace braid;

constexpr int kRepeats = 10;

class RadioStep {
 public:
  explicit RadioStep(const RadioConfig& config)
      : world_(0, 1, device_, nullptr, progress_),
        parallel_(make_parallel()),
        parameters_(declare_parameters(config), 0, {}, at::kBFloat16, device_),
        model_(config, parameters_, parallel_, 0, 1) {
    parameters_.initialize(1);
  }

  at::Tensor forward_backward(const std::vector<PatchGrid>& images, const at::Tensor& patches) const {
    for (const Parameters::Entry& entry : parameters_.entries()) entry.value.mutable_grad() = at::Tensor();
    const at::Tensor features = model_.features(model_.run_layers(model_.embed(patches, images), images), images);
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
  const Radio model_;
};

struct Measured {
  double ms = 0, peak_gb = 0;
};

at::Tensor random_patches(const RadioStep& step, const RadioConfig& config, const std::vector<PatchGrid>& images) {
  return at::randn({total_patches(images), config.channels * config.patch * config.patch},
                   at::TensorOptions(at::kBFloat16).device(step.device()));
}

Measured measure(const RadioStep& step, const RadioConfig& config, const std::vector<PatchGrid>& images) {
  const at::Tensor patches = random_patches(step, config, images);
  at::accelerator::resetPeakStats(step.device().index());
  const double ms = median_ms(kRepeats, step.device(), [&] { step.forward_backward(images, patches); });
  return {ms, peak_gb(step.device()).value()};
}

std::string kernels_of(const RadioStep& step, const RadioConfig& config, const std::vector<PatchGrid>& images) {
  const at::Tensor patches = random_patches(step, config, images);
  return kernel_table(true, kRepeats, [&] {
    step.forward_backward(images, patches);
    synchronize(step.device());
  });
}

std::string time_graph(const RadioStep& step, const RadioConfig& config, const std::vector<PatchGrid>& images) {
  const at::Tensor patches = random_patches(step, config, images);
  return braid::time_graph(kRepeats, step.device(), [&] { return step.forward_backward(images, patches); });
}

int run(const std::string& python, bool graph, bool equal_only) {
  const auto config = std::get<RadioConfig>(provider("nemotron-vlm-20l").encoders[0].model);
  const std::vector<PatchGrid> equal(8, {32, 32});
  const std::vector<PatchGrid> mixed = {{16, 48}, {24, 24}, {32, 32}, {48, 16}, {12, 20}, {40, 26}, {8, 60}, {30, 34}};
  const std::vector<PatchGrid> padded(8, {48, 60});
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& what, const Measured& measured, std::int64_t patches) {
    rows.push_back({what, fmt::format("{:.2f}", measured.ms), fmt::format("{:.2f}", measured.peak_gb),
                    fmt::format("{:.0f}", static_cast<double>(patches) / measured.ms * 1e3)});
  };
  {
    const RadioStep step(config);
    fmt::print("RADIO-H, {:.0f} M parameters, bf16, forward + backward\n", step.parameters() / 1e6);
    add("8 images of 512 x 512", measure(step, config, equal), total_patches(equal));
    if (!equal_only) {
      add("8 images of mixed sizes", measure(step, config, mixed), total_patches(mixed));
      add("the same, padded to the largest sides", measure(step, config, padded), total_patches(mixed));
    }
    fmt::print("8 images of 512 x 512: {}\n", kernels_of(step, config, equal));
  }
  at::accelerator::emptyCache();
  std::fflush(stdout);
  if (!python.empty())
    if (const auto peer = run_peer(
            fmt::format("{} {} --repeats {}", shell_quoted(python), shell_quoted(BRAID_PEER_SCRIPT), kRepeats)))
      add("transformers, compiled: 8 images of 512 x 512",
          {peer->at("ms_forward_backward").get<double>(), peer->at("peak_gb").get<double>()}, total_patches(equal));
  fmt::print("{}", format_table({"work", "ms", "peak GB", "patches/s"}, rows));
  if (graph) fmt::print("8 images of 512 x 512: {}\n", time_graph(RadioStep(config), config, equal));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string python;
  bool graph = false, equal_only = false;
  CLI::App app("Time RADIO-H and compare it with transformers");
  app.add_option("python", python, "python with torch and transformers, for the peer");
  app.add_flag("--graph", graph, "also replay a step as a CUDA graph");
  app.add_flag("--equal-only", equal_only, "leave out the batches of mixed sizes");
  CLI11_PARSE(app, argc, argv);
  if (!torch::cuda::is_available()) {
    fmt::print(stderr, "bench_radio: no GPU is visible\n");
    return 1;
  }
  work_around_blas();
  try {
    return run(python, graph, equal_only);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_radio: {}\n", e.what());
    return 1;
  }
}
