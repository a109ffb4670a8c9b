// Two ways to split the tokens of a Mamba2 layer over cp ranks, on the same layer and in the same run:
//   heads exchange   nn::Mamba2: all-to-all, so that each rank has all tokens of its heads, and back
//   state passing    each rank keeps its tokens and all heads; it gets the last rows before its own for the convolution
//                    and the scan's state from the previous ranks
// Both are compared with a single rank in float64, then timed; the bytes sent are computed from the tensors' sizes.
//
//   build/bench_mamba_context_parallel [--cp 4] [--real] [--device cuda] ...      (--help lists all)
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <CLI/CLI.hpp>
#include <torch/cuda.h>
#include "base/error.h"
#include "base/process.h"
#include "base/strings.h"
#include "cluster/local/local_launcher.h"
#include "comm/collectives.h"
#include "comm/run_as_rank.h"
#include "comm/world.h"
#include "models/providers.h"
#include "nn/linear.h"
#include "nn/mamba2.h"
#include "ops/mamba.h"
#include "ops/norm.h"
#include "tensor/autograd.h"

// T tokens, t = T / cp of them here; h = g * r heads of width p in g groups, state size n; K taps.
namespace {

using namespace braid;
using Clock = std::chrono::steady_clock;

constexpr double kTolerance = 1e-10;
constexpr double kNvlink = 450e9, kInfiniBand = 50e9;  // bytes per second and direction
constexpr double kProductRate = 800e12;                // what a large bf16 matrix product reaches on a Hopper GPU, 1/s
const std::string kPrefix = "decoder.layers.0.mixer.";

struct Options {
  HybridLmConfig layer{};
  std::int64_t tokens = 2048;
  int cp = 2, repeats = 20;
  std::string dtype = "float32", device = "cpu";

  at::ScalarType scalar_type() const { return dtype == "bfloat16" ? at::kBFloat16 : at::kFloat; }
};

HybridLmConfig only_mamba(HybridLmConfig config) {
  config.pattern = "M";
  return config;
}

HybridLmConfig small_layer() {
  HybridLmConfig config;
  config.hidden = 512;
  config.mamba_heads = 16;
  config.mamba_head_dim = 64;
  config.mamba_groups = 8;
  config.mamba_state = 128;
  return only_mamba(config);
}

struct Widths {
  explicit Widths(const HybridLmConfig& c)
      : heads(c.mamba_heads), inner(heads * c.mamba_head_dim), states(std::int64_t{c.mamba_groups} * c.mamba_state) {}
  std::int64_t conv() const { return inner + 2 * states; }
  std::int64_t projected() const { return inner + conv() + heads; }

  std::int64_t heads, inner, states;
};

// --- state passing ---------------------------------------------------------------------------------------------------

// One sequence, no tp. The scan operator neither takes nor returns a state, so it is computed again here: the outgoing
// state, and the contribution of the incoming state to y.
class StatePassingMamba2 : public Layer {
 public:
  StatePassingMamba2(const HybridLmConfig& config, const Parameters& parameters, const Parallel& parallel,
                     std::int64_t own_tokens)
      : config_(config), widths_(config), parameters_(parameters), parallel_(parallel),
        halo_rows_(config.mamba_conv - 1), own_(pack_sequences({0, own_tokens}, parallel.cp.device())),
        own_and_halo_(pack_sequences({0, own_tokens + rows_before()}, parallel.cp.device())) {}

  at::Tensor branch(const Residual& x, const SequenceBatch&) override {
    const at::Tensor normed = x.rms_norm(parameter("in_proj.layer_norm_weight"), config_.norm_eps).value;
    const std::vector<at::Tensor> z_xbc_dt =
        Linear({parameter("in_proj.weight")}, {}, Split::Columns, parallel_)(normed).split_with_sizes(
            {widths_.inner, widths_.conv(), widths_.heads}, 1);
    const std::vector<at::Tensor> x_b_c =
        convolve(z_xbc_dt[1]).split_with_sizes({widths_.inner, widths_.states, widths_.states}, 1);
    const at::Tensor y = scan({.x = x_b_c[0].unflatten(1, {-1, config_.mamba_head_dim}),
                               .dt = z_xbc_dt[2],
                               .A_log = parameter("A_log"),
                               .B = x_b_c[1].unflatten(1, {-1, config_.mamba_state}),
                               .C = x_b_c[2].unflatten(1, {-1, config_.mamba_state}),
                               .D = parameter("D"),
                               .dt_bias = parameter("dt_bias")});
    const at::Tensor gated =
        gated_rms_norm(y.flatten(1, 2), z_xbc_dt[0], parameter("norm.weight"), config_.mamba_groups, config_.norm_eps);
    return Linear({parameter("out_proj.weight")}, {}, Split::Rows, parallel_)(gated);
  }

  // Only its collectives, forward and backward, with tensors of the right sizes.
  void communicate(const at::TensorOptions& options) const {
    const at::Tensor xbc = at::zeros({own_.tokens(), widths_.conv()}, options).requires_grad_(true);
    const at::TensorOptions wide = options.dtype(at::toOpMathType(c10::typeMetaToScalarType(options.dtype())));
    const at::Tensor leaving = at::zeros({widths_.inner, config_.mamba_state}, wide).requires_grad_(true);
    const at::Tensor rows = halo(xbc), arriving = state_arriving(leaving, at::zeros({widths_.heads}, wide));
    (rows.sum() + arriving.sum()).backward();
  }

 private:
  const at::Tensor& parameter(const char* name) const { return parameters_.get(kPrefix + name); }
  const Group& cp() const { return parallel_.cp; }
  std::int64_t rows_before() const { return cp().rank() == 0 ? 0 : halo_rows_; }

  // The last rows of the previous rank; none on the first rank.   [t, conv] -> [K - 1 or 0, conv]
  at::Tensor halo(const at::Tensor& xbc) const {
    std::vector<std::int64_t> rows_to(static_cast<std::size_t>(cp().size()), 0), rows_from = rows_to;
    if (cp().rank() + 1 < cp().size()) rows_to[static_cast<std::size_t>(cp().rank() + 1)] = halo_rows_;
    if (cp().rank() > 0) rows_from[static_cast<std::size_t>(cp().rank() - 1)] = halo_rows_;
    const std::int64_t rows = cp().rank() + 1 < cp().size() ? halo_rows_ : 0;
    return all_to_all(xbc.narrow(0, xbc.size(0) - rows, rows), rows_to, rows_from, cp());
  }

  at::Tensor convolve(const at::Tensor& xbc) const {
    const at::Tensor out = causal_conv_silu(at::cat({halo(xbc), xbc}), parameter("conv1d.weight").squeeze(1),
                                            parameters_.get_if_declared(kPrefix + "conv1d.bias"), own_and_halo_);
    return out.slice(0, rows_before());
  }

  at::Tensor scan(const SsdInputs& in) const {
    const at::Tensor y = ssd_scan(in, {.chunk = config_.mamba_chunk}, own_);
    const at::Tensor steps = at::softplus(widen(in.dt) + widen(in.dt_bias));  // [t, h]
    const at::Tensor sums = (steps * widen(in.A_log).exp().neg()).cumsum(0);  // [t, h], decreasing
    const at::Tensor total = sums.select(0, -1);                              // [h]
    const at::Tensor leaving = state_added(widen(in.x) * ((total - sums).exp() * steps).unsqueeze(2), widen(in.B));
    const at::Tensor arriving = state_arriving(leaving, total);
    const at::Tensor seen = groups_first(widen(in.C)).matmul(arriving.transpose(1, 2));  // [g, t, r * p]
    const at::Tensor seen_by_head = seen.transpose(0, 1).reshape(in.x.sizes());
    return y + (seen_by_head * sums.exp().unsqueeze(2)).to(y.scalar_type());
  }

  static at::Tensor groups_first(const at::Tensor& x) { return x.transpose(0, 1); }  // [t, g, ...] -> [g, t, ...]

  // The state after these tokens if it was zero before.   weighted x: [t, h, p], B: [t, g, n] -> [g, r * p, n]
  at::Tensor state_added(const at::Tensor& x, const at::Tensor& B) const {
    const at::Tensor by_group = x.reshape({x.size(0), config_.mamba_groups, -1});
    return groups_first(by_group).transpose(1, 2).matmul(groups_first(B));
  }

  // From every rank's contribution to the state ([g, r * p, n]) and its decay of the incoming state (logarithms, [h]).
  // The first rank uses empty slices of the gathered values, so that it takes part in backward.
  at::Tensor state_arriving(const at::Tensor& leaving, const at::Tensor& total) const {
    const at::Tensor own = at::cat({leaving.reshape({widths_.heads, -1}), total.unsqueeze(1)}, 1);  // [h, p * n + 1]
    const at::Tensor before = all_gather(own.unsqueeze(0), cp()).narrow(0, 0, cp().rank());
    const at::Tensor states = before.slice(2, 0, -1), logs = before.slice(2, -1);
    const at::Tensor logs_after = logs.flip(0).cumsum(0).flip(0) - logs;
    return (states * logs_after.exp()).sum(0).reshape(leaving.sizes());
  }

  const HybridLmConfig& config_;
  const Widths widths_;
  const Parameters& parameters_;
  const Parallel& parallel_;
  const std::int64_t halo_rows_;
  const PackedSequences own_, own_and_halo_;
};

// --- what is sent ----------------------------------------------------------------------------------------------------

struct BytesSent {  // by the rank that sends the most, forward and backward, all messages sent directly
  double heads_exchange, state_passing;
};

BytesSent count_bytes(const HybridLmConfig& config, std::int64_t tokens, int cp, std::size_t element_size) {
  const Widths widths(config);
  const auto element = static_cast<double>(element_size), wide = std::max(4.0, element);
  const auto own_tokens = static_cast<double>(tokens / cp);
  // z stays; x, B, C and dt are sent, B and C once to each rank that shares a group, and y comes back.
  const std::int64_t states = std::int64_t{config.mamba_state} * std::max(config.mamba_groups, cp);
  const double exchanged = own_tokens * static_cast<double>(2 * widths.inner + 2 * states + widths.heads) * element;
  const double halo = (config.mamba_conv - 1) * static_cast<double>(widths.conv()) * element;
  const double state = static_cast<double>(widths.inner * config.mamba_state + widths.heads) * wide;
  // The first rank sends only a halo in forward, the last one only its gradient.
  return {.heads_exchange = 2 * exchanged * (cp - 1) / cp,
          .state_passing = (cp > 2 ? 2 : 1) * halo + 2 * (cp - 1) * state};
}

// in_proj and out_proj of one rank, forward and backward.
double projection_flops(const HybridLmConfig& config, std::int64_t own_tokens) {
  const Widths widths(config);
  return 6.0 * static_cast<double>(own_tokens) * config.hidden * static_cast<double>(widths.projected() + widths.inner);
}

// --- the layer on this rank ------------------------------------------------------------------------------------------

std::vector<ParamSpec> mamba_parameters(const HybridLmConfig& config) {
  std::vector<ParamSpec> specs = declare_parameters(config);
  std::erase_if(specs, [](const ParamSpec& spec) { return spec.name.rfind(kPrefix, 0) != 0; });
  return specs;
}

class Bench {
 public:
  Bench(const HybridLmConfig& config, std::int64_t tokens, at::ScalarType dtype, const Group& cp, const Group& alone)
      : widths_(config), split_{alone, cp, cp, alone, alone}, alone_{alone, alone, alone, alone, alone},
        parameters_(mamba_parameters(config), 0, {}, dtype, cp.device()), own_rows_(tokens / cp.size()),
        all_tokens_{pack_sequences({0, tokens}, cp.device())}, own_tokens_{pack_sequences({0, own_rows_}, cp.device())},
        heads_exchange_(shape_of(config), {.chunk = config.mamba_chunk}, config.norm_eps, parameters_, kPrefix, split_),
        state_passing_(config, parameters_, split_, own_rows_),
        one_rank_(shape_of(config), {.chunk = config.mamba_chunk}, config.norm_eps, parameters_, kPrefix, alone_),
        x_(random({tokens, config.hidden}, 1, dtype, cp.device())),
        grad_y_(random({tokens, config.hidden}, 2, dtype, cp.device())) {
    parameters_.initialize(3);
  }

  struct Result {
    at::Tensor y, x_grad;
    std::vector<at::Tensor> parameter_grads;
  };
  Result heads_exchange() { return run(heads_exchange_, all_tokens_, own(x_), own(grad_y_)); }
  Result state_passing() { return run(state_passing_, all_tokens_, own(x_), own(grad_y_)); }
  // The minimum computation for any split of the tokens: each slice as if nothing came before it.
  Result no_exchange() { return run(one_rank_, own_tokens_, own(x_), own(grad_y_)); }
  Result whole() { return run(one_rank_, all_tokens_, x_, grad_y_); }

  void heads_exchange_collectives() {
    const at::Tensor projected =
        at::zeros({own_rows_, widths_.conv() + widths_.heads}, x_.options()).requires_grad_(true);
    const at::Tensor features = sequence_to_heads(projected, split_.cp);
    heads_to_sequence(features.slice(1, 0, widths_.inner / split_.cp.size()), split_.cp).sum().backward();
  }
  void state_passing_collectives() { state_passing_.communicate(x_.options()); }

  // The largest difference from the one-rank result, relative to the largest value of the same tensor.
  double difference(const Result& parts, const Result& whole) const {
    at::NoGradGuard guard;
    at::Tensor worst = at::maximum(relative(parts.y, own(whole.y)), relative(parts.x_grad, own(whole.x_grad)));
    for (std::size_t i = 0; i < parts.parameter_grads.size(); ++i) {
      at::Tensor sum = parts.parameter_grads[i].clone();
      split_.cp.all_reduce(sum);
      worst = at::maximum(worst, relative(sum, whole.parameter_grads[i]));
    }
    split_.cp.all_reduce(worst, Reduce::Max);
    return worst.item<double>();
  }

 private:
  static Mamba2Shape shape_of(const HybridLmConfig& c) {
    return {.heads = c.mamba_heads, .head_dim = c.mamba_head_dim, .groups = c.mamba_groups, .state = c.mamba_state};
  }
  static at::Tensor random(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype, const at::Device& device) {
    return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble)).to(dtype).to(device);
  }
  static at::Tensor relative(const at::Tensor& got, const at::Tensor& expected) {
    return (got - expected).abs().max() / expected.abs().max();
  }
  at::Tensor own(const at::Tensor& whole) const { return whole.narrow(0, split_.cp.rank() * own_rows_, own_rows_); }

  Result run(Layer& layer, const SequenceBatch& batch, const at::Tensor& input, const at::Tensor& grad_y) {
    for (const Parameters::Entry& entry : parameters_.entries()) entry.value.mutable_grad().reset();
    const at::Tensor x = input.detach().requires_grad_(true);
    const at::Tensor y = layer.branch(x, batch);
    y.backward(grad_y);
    Result result{y.detach(), x.grad(), {}};
    for (const Parameters::Entry& entry : parameters_.entries()) result.parameter_grads.push_back(entry.value.grad());
    return result;
  }

  const Widths widths_;
  const Parallel split_, alone_;
  Parameters parameters_;
  const std::int64_t own_rows_;
  const SequenceBatch all_tokens_, own_tokens_;
  Mamba2 heads_exchange_;
  StatePassingMamba2 state_passing_;
  Mamba2 one_rank_;
  const at::Tensor x_, grad_y_;
};

// --- the run ---------------------------------------------------------------------------------------------------------

struct Timing {
  double p50_ms, p99_ms;
};

// The variants alternate, so that other load on the machine slows all of them equally. A repeat takes as long as its
// slowest rank.
std::vector<Timing> measure(int repeats, const Group& group, const std::vector<std::function<void()>>& acts) {
  const auto count = static_cast<std::int64_t>(acts.size());
  at::Tensor times_ms = at::zeros({count, repeats}, at::kDouble);
  for (int i = -1; i < repeats; ++i)
    for (std::int64_t k = 0; k < count; ++k) {
      group.barrier();
      const auto start = Clock::now();
      acts[static_cast<std::size_t>(k)]();
      if (group.device().is_cuda()) torch::cuda::synchronize();
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      if (i >= 0) times_ms[k][i] = ms;
    }
  at::Tensor slowest_rank = times_ms.to(group.device());
  group.all_reduce(slowest_rank, Reduce::Max);
  const at::Tensor sorted = std::get<0>(slowest_rank.cpu().sort(1));
  std::vector<Timing> timings;
  for (std::int64_t k = 0; k < count; ++k)
    timings.push_back({sorted[k][repeats / 2].item<double>(), sorted[k][repeats * 99 / 100].item<double>()});
  return timings;
}

void verify(const Options& options, const Group& cp, const Group& alone) {
  const std::int64_t tokens = std::min(options.tokens, 2 * std::int64_t{options.layer.mamba_chunk} * options.cp);
  Bench bench(options.layer, tokens, at::kDouble, cp, alone);
  const Bench::Result whole = bench.whole();
  const double heads_exchange = bench.difference(bench.heads_exchange(), whole);
  const double state_passing = bench.difference(bench.state_passing(), whole);
  const double no_exchange = bench.difference(bench.no_exchange(), whole);
  BRAID_CHECK(heads_exchange <= kTolerance, "heads exchange is off by {:.1e}", heads_exchange);
  BRAID_CHECK(state_passing <= kTolerance, "state passing is off by {:.1e}", state_passing);
  BRAID_CHECK(no_exchange > 1e-3, "these sizes would hide an error: without any exchange the result is the same");
  if (cp.rank() == 0)
    fmt::print(
        "verified in float64, {} tokens: largest relative difference from one rank, over y and all gradients\n"
        "  heads exchange {:.1e}, state passing {:.1e}, no exchange at all {:.1e}\n\n",
        tokens, heads_exchange, state_passing, no_exchange);
}

// Returns the median of a rank's computation without any exchange.
double measure_layer(const Options& options, const Group& cp, const Group& alone) {
  Bench bench(options.layer, options.tokens, options.scalar_type(), cp, alone);
  const std::vector<Timing> timings =
      measure(options.repeats, cp,
              {[&] { bench.heads_exchange(); }, [&] { bench.state_passing(); }, [&] { bench.no_exchange(); },
               [&] { bench.heads_exchange_collectives(); }, [&] { bench.state_passing_collectives(); }});
  const BytesSent bytes =
      count_bytes(options.layer, options.tokens, options.cp, at::elementSize(options.scalar_type()));
  const auto row = [&](const char* name, std::size_t act, double sent) {
    return std::vector<std::string>{name,
                                    fmt::format("{:.1f}", timings[act].p50_ms),
                                    fmt::format("{:.1f}", timings[act].p99_ms),
                                    fmt::format("{:.3f}", timings[act].p50_ms / timings[0].p50_ms),
                                    fmt::format("{:.0f}", sent),
                                    fmt::format("{:.4f}", sent / bytes.heads_exchange)};
  };
  const HybridLmConfig& c = options.layer;
  if (cp.rank() == 0)
    fmt::print(
        "forward + backward, hidden {}, {} heads x {}, {} groups x {}, {} tokens, {}, cp {} on {}, {} repeats\n{}\n",
        c.hidden, c.mamba_heads, c.mamba_head_dim, c.mamba_groups, c.mamba_state, options.tokens, options.dtype,
        options.cp, options.device, options.repeats,
        format_table({"variant", "p50 ms", "p99 ms", "ratio", "bytes sent per rank", "ratio"},
                     {row("heads exchange", 0, bytes.heads_exchange), row("state passing", 1, bytes.state_passing),
                      row("no exchange (wrong)", 2, 0), row("collectives of heads exchange", 3, bytes.heads_exchange),
                      row("collectives of state passing", 4, bytes.state_passing)}));
  return timings[2].p50_ms;
}

// The bytes of the layer of the 20-layer model over links of these rates, without latency and overlap.
void print_real_layer(const Options& options, double compute_ms) {
  const Provider model = provider("nemotron-vlm-20l");
  const auto& language = std::get<HybridLmConfig>(model.language);
  constexpr int kCp = 2;
  const std::int64_t tokens = model.sequence_length;
  const BytesSent bytes = count_bytes(language, tokens, kCp, at::elementSize(at::kBFloat16));
  const auto row = [](const char* name, double sent) {
    return std::vector<std::string>{name, fmt::format("{:.0f}", sent), fmt::format("{:.3f}", sent / kNvlink * 1e3),
                                    fmt::format("{:.3f}", sent / kInfiniBand * 1e3)};
  };
  const double flops = projection_flops(language, tokens / kCp);
  const double own_flops = projection_flops(options.layer, options.tokens / options.cp);
  fmt::print(
      "a Mamba2 layer of {}, {} tokens, bfloat16, cp {}: forward + backward, counted, not measured\n{}"
      "  projections of one rank: {:.3f} TFLOP, {:.2f} ms at {:.0f} TFLOP/s (assumed)\n"
      "  measured above without exchange: {:.0f} ms, of which the projections are {:.3f} TFLOP\n",
      model.name, tokens, kCp,
      format_table({"variant", "bytes sent per rank", fmt::format("ms at {:.0f} GB/s (NVLink)", kNvlink / 1e9),
                    fmt::format("ms at {:.0f} GB/s (InfiniBand)", kInfiniBand / 1e9)},
                   {row("heads exchange", bytes.heads_exchange), row("state passing", bytes.state_passing)}),
      flops / 1e12, flops / kProductRate * 1e3, kProductRate / 1e12, compute_ms, own_flops / 1e12);
}

void run_rank(const Options& options, World& world) {
  const Group cp = world.everyone(), alone = world.make_group("alone", {world.rank()});
  verify(options, cp, alone);
  const double compute_ms = measure_layer(options, cp, alone);
  if (cp.rank() == 0) print_real_layer(options, compute_ms);
}

void check(const Options& options) {
  std::vector<Problem> problems = validate(options.layer, {.cp = options.cp}, "options");
  if (options.tokens % options.cp != 0 || options.tokens / options.cp < options.layer.mamba_conv)
    problems.push_back(
        {fmt::format("{} tokens do not split into {} slices longer than the convolution", options.tokens, options.cp),
         "--tokens", "use a multiple of cp"});
  if (!problems.empty()) throw ConfigError(problems);
}

void add_options(CLI::App& app, Options& options) {
  HybridLmConfig& layer = options.layer = small_layer();
  CLI::Option* real = app.add_flag_callback(
      "--real", [&] { layer = only_mamba(std::get<HybridLmConfig>(provider("nemotron-vlm-20l").language)); },
      "sizes of the 20-layer model");
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, int*>>{{"--hidden", &layer.hidden},
                                                           {"--heads", &layer.mamba_heads},
                                                           {"--head-dim", &layer.mamba_head_dim},
                                                           {"--groups", &layer.mamba_groups},
                                                           {"--state", &layer.mamba_state},
                                                           {"--conv", &layer.mamba_conv},
                                                           {"--chunk", &layer.mamba_chunk}})
    app.add_option(name, *value)->capture_default_str()->excludes(real);
  app.add_option("--tokens", options.tokens, "of the one sequence")->capture_default_str();
  app.add_option("--cp", options.cp, "ranks, a process each")->capture_default_str()->check(CLI::Range(2, 64));
  app.add_option("--repeats", options.repeats)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--dtype", options.dtype)->capture_default_str()->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--device", options.device)->capture_default_str()->check(CLI::IsMember({"cpu", "cuda"}));
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  CLI::App app("Mamba2 with context parallelism: heads exchange against state passing");
  Options options;
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    check(options);
  } catch (const ConfigError& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 2;
  }
  if (const auto spec = world_spec_from(process_env())) {
    run_as_rank(*spec, {.device = choice_named<DeviceChoice>(options.device)}, {},
                [&](World& world) { run_rank(options, world); });
    return 0;
  }
  std::vector<std::string> command = {own_executable()};
  command.insert(command.end(), argv + 1, argv + argc);
  return launch_local({.ranks = options.cp, .command = command, .log_dir = "", .port = 0, .rank_coordinates = {}});
}
