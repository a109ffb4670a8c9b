// One table of all that Braid computes on one GPU: training steps of the language model's 20-layer slice, RADIO-H, and
// each operator, compared with transformers, with ATen and with the GPU's limits. Results: docs/benchmarks/gpu.md
//
//   build/bench_gpu [PART OF A NAME] [--peer python3]
#include <CLI/CLI.hpp>
#include <torch/cuda.h>
#include "comm/cpu_share.h"
#include "kernels/measure.h"
#include "language_step.h"
#include "paper/stage.h"
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

HybridLmConfig slice(Fp8Mode fp8) {
  auto config = std::get<HybridLmConfig>(provider("nemotron-vlm-20l").language);
  config.experts = 16;
  config.fp8 = fp8;
  return config;
}

struct SliceCase {
  std::string work;
  Fp8Mode fp8;
  LanguageStepOptions options;
};

void add_language(const Command& command, std::vector<Measurement>& table) {
  std::vector<SliceCase> cases = {
      {"slice, forward + backward", Fp8Mode::Off, {}},
      {"slice with optimizer", Fp8Mode::Off, {.optimizer = true}},
      {"slice, 60 % of labels ignored", Fp8Mode::Off, {.ignored_share = 0.6}},
      {"slice in fp8", Fp8Mode::Rowwise, {}},
  };
  std::erase_if(cases, [&](const SliceCase& c) { return !command.wants(c.work); });
  if (cases.empty()) return;
  const nlohmann::json peer = peer_of(command, shell_quoted(BRAID_SLICE_PEER_SCRIPT) + " --optimizer");
  for (const auto& [work, fp8, options] : cases) {
    const LanguageStepReport report = measure_language_step(slice(fp8), options);
    table.push_back({.work = work,
                     .ms = options.optimizer ? report.ms_with_optimizer.value() : report.ms_forward_backward,
                     .peer_ms = number_in(peer, options.optimizer ? "ms_with_optimizer" : "ms_forward_backward"),
                     .flops = count_flops(slice(fp8), options.sequence, options.sequence).total()});
  }
}

struct RadioCase {
  std::string work;
  std::vector<PatchGrid> images;
  bool has_peer = false;
};

void add_radio(const Command& command, std::vector<Measurement>& table) {
  std::vector<RadioCase> cases = {{"RADIO-H, 8 images of 512 x 512", kEqualImages, true},
                                  {"RADIO-H, 8 images of mixed sizes", kMixedImages},
                                  {"RADIO-H, the same padded", kPaddedImages}};
  std::erase_if(cases, [&](const RadioCase& c) { return !command.wants(c.work); });
  if (cases.empty()) return;
  const RadioConfig config = radio_h();
  for (const auto& [work, images, has_peer] : cases) {
    const nlohmann::json peer = has_peer ? peer_of(command, shell_quoted(BRAID_RADIO_PEER_SCRIPT)) : nlohmann::json();
    table.push_back({.work = work,
                     .ms = measure(RadioStep(config), config, images).ms,
                     .peer_ms = number_in(peer, "ms_forward_backward"),
                     .flops = radio_flops(config, images)});
  }
}

int run(const Command& command) {
  if (!command.python.empty()) check_peer(command.python);
  work_around_blas();
  std::vector<Measurement> table;
  add_language(command, table);
  add_radio(command, table);
  at::accelerator::emptyCache();
  for (Measurement& m : measure_kernels(command.part, command.python)) table.push_back(std::move(m));
  if (table.empty())
    throw ConfigError({"no work has this in its name: " + command.part, "bench_gpu",
                       "use a part of a name that bench_gpu prints; without one it measures everything"});
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
