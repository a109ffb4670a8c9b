// Times each operator of the 20L slice by Braid's kernel and by ATen, and shows how much of the GPU's limit it reaches.
//
//   build/bench_kernels [PART OF A NAME] [--peer python3]
#include <CLI/CLI.hpp>
#include <torch/cuda.h>

#include "measure.h"

int main(int argc, char** argv) {
  std::string part, python;
  CLI::App app("Time each operator of the language model and of RADIO-H");
  app.add_option("part", part, "only operators whose name contains this");
  app.add_option("--peer", python, "python with torch and transformers, for the peer's operators");
  CLI11_PARSE(app, argc, argv);
  if (!torch::cuda::is_available()) {
    fmt::print(stderr, "bench_kernels: no GPU is visible\n");
    return 1;
  }
  try {
    fmt::print("{}", braid::format_measurements(braid::measure_kernels(part, python)));
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_kernels: {}\n", e.what());
    return 1;
  }
}
