// RADIO-H, forward and backward: 8 images of 512 x 512 pixels compared with transformers in the same job, and a batch
// of mixed sizes compared with the same images padded to the largest. Results: docs/benchmarks/radio.md
//
//   build/bench_radio [PYTHON] [--graph] [--equal-only]      python with torch and transformers, for the peer
#include <CLI/CLI.hpp>
#include "base/strings.h"
#include "comm/cpu_share.h"
#include "cuda_graph.h"
#include "peer.h"
#include "radio_step.h"

namespace {

using namespace braid;

std::string time_graph(const RadioStep& step, const RadioConfig& config, const std::vector<PatchGrid>& images) {
  const at::Tensor patches = random_patches(step, config, images);
  return braid::time_graph(kRadioRepeats, step.device(), [&] { return step.forward_backward(images, patches); });
}

int run(const std::string& python, bool graph, bool equal_only) {
  if (!python.empty()) check_peer(python);
  const RadioConfig config = radio_h();
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& what, const Measured& measured, std::int64_t patches) {
    rows.push_back({what, fmt::format("{:.2f}", measured.ms), fmt::format("{:.2f}", measured.peak_gb),
                    fmt::format("{:.0f}", static_cast<double>(patches) / measured.ms * 1e3)});
  };
  {
    const RadioStep step(config);
    fmt::print("RADIO-H, {:.0f} M parameters, bf16, forward + backward\n", step.parameters() / 1e6);
    add("8 images of 512 x 512", measure(step, config, kEqualImages), total_patches(kEqualImages));
    if (!equal_only) {
      add("8 images of mixed sizes", measure(step, config, kMixedImages), total_patches(kMixedImages));
      add("the same, padded to the largest sides", measure(step, config, kPaddedImages), total_patches(kMixedImages));
    }
    fmt::print("8 images of 512 x 512: {}\n", kernels_of(step, config, kEqualImages));
  }
  at::accelerator::emptyCache();
  std::fflush(stdout);
  if (!python.empty()) {
    const auto peer = run_peer(
        fmt::format("{} {} --repeats {}", shell_quoted(python), shell_quoted(BRAID_PEER_SCRIPT), kRadioRepeats));
    if (!peer) throw std::runtime_error("the peer failed; it printed its error above");
    add("transformers, compiled: 8 images of 512 x 512",
        {peer->at("ms_forward_backward").get<double>(), peer->at("peak_gb").get<double>()},
        total_patches(kEqualImages));
  }
  fmt::print("{}", format_table({"work", "ms", "peak GB", "patches/s"}, rows));
  if (graph) fmt::print("8 images of 512 x 512: {}\n", time_graph(RadioStep(config), config, kEqualImages));
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
