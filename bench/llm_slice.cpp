// The 20-layer language model with the experts of one rank at ep=8, forward and backward of one sequence of 8192
// tokens: how long it takes, where the time goes, and how that compares with transformers in the same job.
// Results: docs/benchmarks/llm_slice.md
//
//   build/bench_llm_slice --peer python3        on a GPU
//   build/bench_llm_slice --tiny                a toy model, on a CPU too
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "language_step.h"
#include "models/providers.h"
#include "paper/stage.h"
#include "peer.h"

namespace {

using namespace braid;

constexpr double kPeakTflops = 790;  // what a large bf16 matrix product reaches on an H200

struct Command {
  LanguageStepOptions step{};
  std::vector<std::string> recompute{};
  bool tiny = false, graph = false;
  std::optional<std::string> layers{};
  std::optional<int> experts{};
  bool fp8 = false;
  std::string peer{};
  bool peer_eager = false;
};

HybridLmConfig model_of(const Command& command) {
  HybridLmConfig config = std::get<HybridLmConfig>(provider(command.tiny ? "tiny-vlm" : "nemotron-vlm-20l").language);
  if (!command.tiny) config.experts = 16;
  if (command.experts) config.experts = *command.experts;
  if (command.layers) config.pattern = *command.layers;
  if (command.fp8) config.fp8 = Fp8Mode::Rowwise;
  if (const std::vector<Problem> problems = validate(config, {}, "model"); !problems.empty())
    throw ConfigError(problems);
  return config;
}

std::int64_t trainable_elements(const HybridLmConfig& config) {
  std::int64_t sum = 0;
  for (const ParamSpec& spec : declare_parameters(config))
    if (spec.trainable) sum += num_elements(spec);
  return sum;
}

std::string peer_command(const Command& command) {
  std::string line = fmt::format("{} {} --sequence {} --repeats {}", shell_quoted(command.peer),
                                 shell_quoted(BRAID_PEER_SCRIPT), command.step.sequence, command.step.repeats);
  if (command.tiny) line += " --tiny";
  if (command.peer_eager) line += " --eager";
  if (command.step.optimizer) line += " --optimizer";
  if (command.experts) line += fmt::format(" --experts {}", *command.experts);
  if (command.layers) line += " --layers " + shell_quoted(*command.layers);
  return line;
}

std::string recompute_words(const Command& command) {
  return command.recompute.empty() ? "" : fmt::format(", recompute {}", fmt::join(command.recompute, ","));
}

void print_model(const HybridLmConfig& config, const Command& command) {
  fmt::print("{}: hidden {}, {} experts, top {}, {:.2f} M parameters; sequence {}, {}{}, {}\n", config.pattern,
             config.hidden, config.experts, config.top_k, static_cast<double>(trainable_elements(config)) / 1e6,
             command.step.sequence, command.fp8 ? "fp8" : "bf16", recompute_words(command),
             gpu_is_visible() ? "GPU" : "CPU");
}

std::string gigabytes(const std::optional<double>& value) { return value ? fmt::format("{:.2f}", *value) : "-"; }

void print_step(const LanguageStepReport& report, const Flops& flops, int sequence) {
  fmt::print("checked: loss {:.3f} (random weights: {:.3f}), {} gradients finite and not zero\n\n", report.loss,
             report.expected_loss, report.gradients);
  const double ms = report.ms_forward_backward, tflops = flops.total() / ms / 1e9;
  const std::vector<std::vector<std::string>> rows = {
      {"forward, ms", fmt::format("{:.2f}", report.ms_forward)},
      {"forward + backward, ms", fmt::format("{:.2f}", ms)},
      {"with optimizer, ms", report.ms_with_optimizer ? fmt::format("{:.2f}", *report.ms_with_optimizer) : "-"},
      {"tokens/s", fmt::format("{:.0f}", sequence / ms * 1e3)},
      {"peak GB", gigabytes(report.peak_gb)},
      {"model TFLOP", fmt::format("{:.4g} = linear {:.4g} + attention {:.4g} + scan {:.4g}", flops.total() / 1e12,
                                  flops.linear / 1e12, flops.attention / 1e12, flops.scan / 1e12)},
      {"model TFLOP/s", fmt::format("{:.4g}", tflops)},
      {fmt::format("share of {} TFLOP/s", kPeakTflops), fmt::format("{:.1f} %", 100 * tflops / kPeakTflops)},
  };
  fmt::print("{}\none step: {}\n", format_table({"measured", "value"}, rows), report.kernels);
}

void print_comparison(const LanguageStepReport& report, const nlohmann::json& peer, const Flops& flops, int sequence) {
  const double peer_ms = peer.at("ms_forward_backward");
  const auto row = [&](const std::string& program, double ms, const std::string& peak_gb, const std::string& loss) {
    return std::vector<std::string>{
        program, fmt::format("{:.2f}", ms),           fmt::format("{:.0f}", sequence / ms * 1e3),
        peak_gb, fmt::format("{:.3f}", peer_ms / ms), loss};
  };
  const auto& peer_peak = peer.at("peak_gb");
  const std::string peer_name =
      fmt::format("transformers, {}, scan: {}", peer.at("compiled").get<bool>() ? "compiled" : "eager",
                  peer.at("scan").get<std::string>());
  std::vector<std::vector<std::string>> rows = {
      row("braid", report.ms_forward_backward, gigabytes(report.peak_gb), fmt::format("{:.3f}", report.loss)),
      row(peer_name, peer_ms, gigabytes(peer_peak.is_null() ? std::nullopt : std::optional(peer_peak.get<double>())),
          fmt::format("{:.3f}", peer.at("loss").get<double>())),
  };
  if (gpu_is_visible())
    rows.push_back(
        row(fmt::format("linear layers alone at {} TFLOP/s", kPeakTflops), flops.linear / kPeakTflops / 1e9, "", ""));
  fmt::print("{}", format_table({"program", "ms", "tokens/s", "peak GB", "peer's ms / ms", "loss"}, rows));
}

void check_options(const Command& command, const HybridLmConfig& config) {
  if (labels_with_loss(command.step) < 1)
    throw ConfigError({"no label is left that has a loss", "--ignored", "ignore less, or use a longer --sequence"});
  const std::vector<std::string> parts = recompute_parts(config, /*has_encoders=*/false);
  for (const std::string& name : command.recompute)
    if (!contains(parts, name))
      throw ConfigError({"the model has nothing to recompute that is called " + name, "--recompute",
                         fmt::format("use some of {}", fmt::join(parts, ", "))});
}

int run(const Command& command) {
  if (!command.tiny && !gpu_is_visible())
    throw ConfigError({"no GPU is visible; on a CPU this model takes hours", "bench_llm_slice",
                       "use --tiny, or a build and a machine with CUDA"});
  if (command.graph && !gpu_is_visible())
    throw ConfigError({"there are no CUDA graphs without a GPU", "--graph", "use a build and a machine with CUDA"});
  if (!command.peer.empty()) check_peer(command.peer);
  const HybridLmConfig config = model_of(command);
  check_options(command, config);
  const int sequence = command.step.sequence;
  const Flops flops = count_flops(config, sequence, sequence);
  print_model(config, command);
  LanguageStepOptions options = command.step;
  options.recompute = recompute_config(command.recompute);
  const LanguageStepReport report = measure_language_step(config, options);
  print_step(report, flops, sequence);
  if (command.graph) fmt::print("one step: {}\n", measure_language_graph(config, options));
  if (command.peer.empty()) return 0;

  std::fflush(stdout);
  const auto peer = run_peer(peer_command(command));
  if (!peer) {
    fmt::print(stderr, "bench_llm_slice: the peer failed; it printed its error above\n");
    return 1;
  }
  BRAID_CHECK_EQ(peer->at("parameters").get<std::int64_t>(), trainable_elements(config), "the peer is another model");
  print_comparison(report, *peer, flops, sequence);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Command command;
  std::optional<int> sequence;
  CLI::App app("Time the language model's 20-layer slice and compare it with transformers");
  app.add_option("--sequence", sequence, "tokens (default 8192; 128 with --tiny)")->check(CLI::Range(2, 1 << 24));
  app.add_option("--experts", command.experts, "experts per MoE layer (default 16; 8 with --tiny)")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--layers", command.layers, "pattern of M * E -");
  app.add_option("--repeats", command.step.repeats, "timed steps")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--ignored", command.step.ignored_share, "share of the labels that have no loss")
      ->check(CLI::Range(0.0, 0.9));
  app.add_option("--recompute", command.recompute, "what backward computes again, as model.recompute: norms,experts")
      ->delimiter(',');
  app.add_flag("--optimizer", command.step.optimizer, "also time the step with its optimizer, and the peer's likewise");
  CLI::Option* fp8 = app.add_flag("--fp8", command.fp8, "multiply in fp8, as model.fp8: rowwise");
  app.add_flag("--keep-weights", command.step.keep_weights,
               "time a microbatch that is not the first of its step: weights in fp8 are not converted again")
      ->needs(fp8);
  app.add_flag("--tiny", command.tiny, "toy sizes");
  app.add_flag("--graph", command.graph, "also replay the step as a CUDA graph");
  CLI::Option* peer = app.add_option("--peer", command.peer,
                                     "python with torch and transformers, to run bench/llm_slice_peer.py afterwards");
  app.add_flag("--peer-eager", command.peer_eager, "run the peer without torch.compile and with its default attention")
      ->needs(peer);
  CLI11_PARSE(app, argc, argv);
  command.step.sequence = sequence.value_or(command.tiny ? 128 : 8192);
  try {
    return run(command);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_llm_slice: {}\n", e.what());
    return 1;
  }
}
