// One table of all that Braid computes on one GPU: training steps of the language model's 20-layer slice, RADIO-H, and
// each operator, compared with transformers, with ATen and with the GPU's limits. Results: docs/benchmarks/gpu.md
//
//   build/bench_gpu [PART OF A NAME] [--peer python3]
#include <CLI/CLI.hpp>
#include <torch/cuda.h>

#include <functional>

#include "dist/blas_quirk.h"
#include "kernels/measure.h"
#include "language_step.h"
#include "models/flops.h"
#include "peer.h"
#include "radio_step.h"

namespace {

using namespace braid;

struct Command {
  std::string part, python;
  bool wants(const std::string& work) const { return work.find(part) != std::string::npos; }
};

nlohmann::json peer_of(const Command& command, const std::string& script_and_options) {
  if (command.python.empty()) return {};
  at::accelerator::emptyCache();
  const auto result = run_peer(fmt::format("{} {}", shell_quoted(command.python), script_and_options));
  if (!result) throw std::runtime_error("the peer failed: " + script_and_options);
  return *result;
}

std::optional<double> number_in(const nlohmann::json& peer, const char* name) {
  return peer.is_null() ? std::nullopt : std::optional(peer.at(name).get<double>());
}

HybridLmConfig slice(const std::string& fp8) {
  auto config = std::get<HybridLmConfig>(provider("nemotron-vlm-20l").language);
  config.experts = 16;
  config.fp8 = fp8;
  return config;
}

void add_language(const Command& command, std::vector<Measurement>& table) {
  if (!command.wants("slice")) return;
  constexpr int kTokens = 8192;
  const nlohmann::json peer = peer_of(command, shell_quoted(BRAID_SLICE_PEER_SCRIPT) + " --optimizer");
  const double flops = count_flops(slice("off"), kTokens, kTokens).total();
  const auto add = [&](const std::string& work, double ms, const char* of_peer) {
    table.push_back({.work = work, .ms = ms, .peer_ms = number_in(peer, of_peer), .flops = flops});
  };
  const LanguageStepReport plain = measure_language_step(slice("off"), {.optimizer = true});
  add("slice, forward + backward", plain.ms_forward_backward, "ms_forward_backward");
  add("slice with optimizer", plain.ms_with_optimizer.value(), "ms_with_optimizer");
  const LanguageStepReport ignored = measure_language_step(slice("off"), {.ignored_share = 0.6});
  add("slice, 60 % of labels ignored", ignored.ms_forward_backward, "ms_forward_backward");
  add("slice in fp8", measure_language_step(slice("rowwise"), {}).ms_forward_backward, "ms_forward_backward");
}

void add_radio(const Command& command, std::vector<Measurement>& table) {
  if (!command.wants("RADIO-H")) return;
  const nlohmann::json peer = peer_of(command, shell_quoted(BRAID_RADIO_PEER_SCRIPT));
  const RadioConfig config = radio_h();
  const RadioStep step(config);
  const auto add = [&](const std::string& work, const std::vector<PatchGrid>& images, std::optional<double> peer_ms) {
    const double ms = measure(step, config, images).ms;
    table.push_back({.work = work, .ms = ms, .peer_ms = peer_ms, .flops = radio_flops(config, images)});
  };
  add("RADIO-H, 8 images of 512 x 512", kEqualImages, number_in(peer, "ms_forward_backward"));
  add("RADIO-H, 8 images of mixed sizes", kMixedImages, std::nullopt);
  add("RADIO-H, the same padded", kPaddedImages, std::nullopt);
}

int run(const Command& command) {
  work_around_blas();
  std::vector<Measurement> table;
  add_language(command, table);
  add_radio(command, table);
  at::accelerator::emptyCache();
  for (Measurement& m : measure_kernels(command.part, command.python)) table.push_back(std::move(m));
  fmt::print("{}", format_measurements(table));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Command command;
  CLI::App app("Time training steps and operators on one GPU, and compare them");
  app.add_option("part", command.part, "only work whose name contains this");
  app.add_option("--peer", command.python, "python with torch and transformers");
  CLI11_PARSE(app, argc, argv);
  if (!torch::cuda::is_available()) {
    fmt::print(stderr, "bench_gpu: no GPU is visible\n");
    return 1;
  }
  try {
    return run(command);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_gpu: {}\n", e.what());
    return 1;
  }
}
