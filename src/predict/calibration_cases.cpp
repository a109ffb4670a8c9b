#include "predict/calibration_cases.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "comm/group.h"
#include "comm/progress.h"
#include "comm/store.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/experts_fp8.h"
#include "ops/linear.h"
#include "ops/mamba.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "ops/ssd_scan.h"
#include "optim/sharded_adam.h"
#include "paper/operators.h"

namespace braid {
namespace {

using Lengths = std::vector<std::int64_t>;

struct Map {
  std::int64_t in, out;
};
struct Heads {
  std::int64_t groups, queries, width;
  bool causal;
  Lengths lengths;  // of the sequences
};
struct Mixer {
  std::int64_t tokens, heads, width, groups, state, chunk;
};
struct ExpertSizes {
  std::int64_t experts, rows, in, out;  // rows of one expert
};
struct RouterSizes {
  std::int64_t tokens, hidden, experts, top_k;
};
struct Matrix {
  std::int64_t rows, columns;
};

// The sizes to measure. Between them, speeds are interpolated (predict/op_time.cpp).
struct Sizes {
  std::vector<Map> maps;
  Lengths rows;                  // of maps
  std::vector<Map> more_maps{};  // measured with more_rows only, because they take long
  Lengths more_rows{};
  std::vector<Heads> attention;
  std::vector<Mixer> mixers;
  std::vector<ExpertSizes> experts;
  std::vector<RouterSizes> routers;
  std::vector<Matrix> matrices;  // of memory-bound operators
  std::vector<Matrix> logits;
  Lengths parameters;  // parameters that the optimizer updates
  std::int64_t pool;   // elements of the memory that inputs share
};

Lengths equal_lengths(std::int64_t count, std::int64_t length) {
  return Lengths(static_cast<std::size_t>(count), length);
}

Sizes gpu_sizes() {
  return {.maps = {{2688, 10304},
                   {4096, 2688},
                   {2688, 6144},
                   {2688, 3712},
                   {3712, 2688},
                   {1280, 3840},
                   {1280, 5120},
                   {5120, 1280},
                   {1280, 1280},
                   {2048, 2048},
                   {5120, 2688}},
          .rows = {256, 2048, 8192},
          .more_maps = {{2688, 131072}, {2688, 10304}, {8192, 8192}},
          .more_rows = {1024, 4096, 16384},
          .attention = {{8, 4, 128, true, {8192}},
                        {8, 4, 128, true, {4096, 4096}},
                        {8, 4, 128, true, equal_lengths(8, 1024)},
                        {8, 4, 128, true, {1024}},
                        {8, 4, 128, true, {32768}},
                        {8, 4, 128, true, {3000, 500, 2200, 1492, 1000}},
                        {16, 1, 80, false, equal_lengths(8, 1034)},
                        {16, 1, 80, false, {266, 1034, 640, 2314, 410, 1500}},
                        {16, 1, 80, false, {266}}},
          .mixers = {{8192, 64, 64, 8, 128, 128},
                     {32768, 64, 64, 8, 128, 128},
                     {2048, 64, 64, 8, 128, 128},
                     {512, 64, 64, 8, 128, 128},
                     {8192, 32, 64, 4, 128, 128}},
          .experts = {{16, 3072, 2688, 1856},
                      {16, 1536, 2688, 1856},
                      {16, 384, 2688, 1856},
                      {16, 96, 2688, 1856},
                      {16, 6144, 2688, 1856},
                      {128, 384, 2688, 1856},
                      {8, 6144, 2688, 1856},
                      {16, 1024, 1024, 1024}},
          .routers = {{8192, 2688, 16, 6},
                      {8192, 2688, 128, 6},
                      {1024, 2688, 128, 6},
                      {1024, 2688, 16, 6},
                      {32768, 2688, 16, 6}},
          .matrices = {{64, 2688}, {1024, 2688}, {8192, 2688}, {8192, 1280}, {32768, 2688}, {49152, 1856}},
          .logits = {{8192, 131072}, {1024, 131072}, {128, 131072}},
          .parameters = {1 << 20, 1 << 26, 1 << 29},
          .pool = std::int64_t{2200} << 20};
}

Sizes cpu_sizes() {
  return {
      .maps = {{32, 32}, {64, 64}, {64, 256}, {256, 64}, {256, 256}, {64, 1024}, {512, 512}, {1024, 1024}},
      .rows = {16, 128, 512},
      .attention = {{8, 2, 8, true, {128, 128}},
                    {4, 1, 8, false, {19, 19}},
                    {2, 2, 16, true, {128}},
                    {4, 2, 32, true, {512}},
                    {4, 1, 16, false, {64, 64}}},
      .mixers = {{256, 16, 8, 8, 16, 16}, {128, 8, 16, 4, 16, 32}, {128, 4, 16, 2, 16, 32}, {512, 16, 16, 4, 32, 64}},
      .experts = {{8, 64, 64, 32}, {8, 8, 64, 48}, {4, 32, 64, 48}, {4, 256, 256, 256}},
      .routers = {{256, 64, 8, 2}, {64, 64, 8, 2}, {512, 256, 16, 4}},
      .matrices = {{16, 64}, {128, 64}, {256, 128}, {512, 512}, {2048, 1024}},
      .logits = {{128, 512}, {64, 1024}, {512, 4096}},
      .parameters = {1 << 16, 1 << 20, 1 << 22},
      .pool = std::int64_t{16} << 20};
}

class Cases {
 public:
  Cases(const at::Device& device, at::ScalarType dtype, const Sizes& sizes)
      : options_(at::TensorOptions(dtype).device(device)),
        pool_(at::randn({sizes.pool}, options_)),
        is_wide_(dtype != at::kBFloat16),
        e_(pool_.element_size()),
        works_(pool_.element_size(), /*trains=*/true),
        sizes_(sizes),
        alone_("alone", device, progress()) {}

  std::vector<CalibrationCase> take(const std::function<void(const std::string&)>& report) {
    const auto add_all = [&](const char* what, const auto& all, const auto& add) {
      for (const auto& sizes : all) {
        const std::size_t before = cases_.size();
        try {
          add(sizes);
        } catch (const std::exception& e) {
          cases_.resize(before);
          report(fmt::format("left out, {}: {}", what, words_of(e)));
        }
      }
    };
    for (const std::int64_t rows : sizes_.rows)
      add_all("a product", sizes_.maps, [&](const Map& map) { add_map(map, rows); });
    for (const std::int64_t rows : sizes_.more_rows)
      add_all("a product", sizes_.more_maps, [&](const Map& map) { add_map(map, rows); });
    if (!is_wide_) {
      for (const std::int64_t rows : sizes_.rows)
        add_all("a product in fp8", sizes_.maps, [&](const Map& map) { add_fp8_map(map, rows); });
      add_all("experts in fp8", sizes_.experts, [&](const ExpertSizes& experts) { add_fp8_experts(experts); });
    }
    add_all("attention", sizes_.attention, [&](const Heads& heads) { add_attention(heads); });
    add_all("a scan", sizes_.mixers, [&](const Mixer& mixer) { add_mixer(mixer); });
    add_all("experts", sizes_.experts, [&](const ExpertSizes& experts) { add_experts(experts); });
    add_all("a router", sizes_.routers, [&](const RouterSizes& router) { add_router(router); });
    add_all("streams", sizes_.matrices, [&](const Matrix& matrix) { add_streams(matrix); });
    add_all("a cross entropy", sizes_.logits, [&](const Matrix& matrix) { add_cross_entropy(matrix); });
    add_all("an update", sizes_.parameters, [&](std::int64_t parameters) { add_update(parameters); });
    return std::move(cases_);
  }

 private:
  // Groups need one, but there is no progress to report here.
  static Progress& progress() {
    static Progress progress;
    return progress;
  }

  void add(const Work& work, std::function<void()> run) { cases_.push_back({work, std::move(run)}); }
  void add_stream(Operator op, double elements, std::function<void()> run) {
    add(stream_work(op, elements * e_), std::move(run));
  }

  // Random values, in memory that other cases use too.
  at::Tensor random(const Lengths& shape) {
    const std::int64_t size = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    if (begin_ + size > pool_.numel()) begin_ = 0;
    const at::Tensor view = pool_.narrow(0, begin_, size).view(shape);
    begin_ += (size + 255) / 256 * 256;
    return view;
  }
  at::Tensor zeros(const Lengths& shape) const { return at::zeros(shape, options_.dtype(at::kFloat)); }

  // ops/linear: the products of forward and backward
  void add_map(const Map& map, std::int64_t rows) {
    const at::Tensor x = random({rows, map.in}), weight = random({map.out, map.in}), grad = random({rows, map.out});
    const at::Tensor sum = zeros({map.out, map.in});
    const OperatorWork work = works_.linear(rows, map.out, map.in);
    add(work.forward[0], [=] { product(x, weight.t()); });
    add(work.backward[0], [=] { product(grad, weight); });
    add(work.backward[1], [=] { add_product(sum, grad.t(), x, true); });
  }

  // ops/linear
  void add_fp8_map(const Map& map, std::int64_t rows) {
    const at::Tensor x = random({rows, map.in}), sum = zeros({map.out, map.in});
    const Fp8Pair x8 = quantize(x, {true, true}), grad8 = quantize(random({rows, map.out}), {true, true}),
                  weight8 = quantize(random({map.out, map.in}), {true, true});
    const at::ScalarType dtype = x.scalar_type();
    const OperatorWork work = works_.linear(rows, map.out, map.in, /*fp8=*/true);
    add(work.forward[1], [=] { fp8_product(x8.rows, weight8.rows, dtype, kOutputSum); });
    add(work.backward[1], [=] { fp8_product(grad8.rows, weight8.columns, dtype, kInputGradientSum); });
    add(work.backward[2], [=] { write_fp8_product(sum, grad8.columns, x8.columns, kWeightGradientSum); });
    add(work.forward[0], [=] { quantize(x, {true, true}); });
  }

  void add_attention(const Heads& heads) {
    Lengths offsets = {0};
    double squares = 0;
    for (const std::int64_t length : heads.lengths) {
      offsets.push_back(offsets.back() + length);
      squares += real(length) * real(length);
    }
    const std::int64_t tokens = offsets.back(), all = heads.groups * heads.queries;
    const at::Tensor groups = random({tokens, heads.groups, heads.queries + 2, heads.width});
    const at::Tensor grad = random({tokens, all, heads.width});
    const PackedSequences sequences = pack_sequences(offsets, options_.device());
    const double scale = 1 / std::sqrt(real(heads.width));
    const bool causal = heads.causal;
    const AttentionSaved saved = attention_forward(groups, sequences, causal, scale).saved;
    const OperatorWork work = works_.attention(tokens, all, heads.width, squares, causal);
    add(work.forward[0], [=] { attention_forward(groups, sequences, causal, scale); });
    add(work.backward[0], [=] { attention_backward(grad, groups, saved, sequences, causal, scale); });
  }

  // ops/mamba. Inputs are columns of wider tensors, as there.
  void add_mixer(const Mixer& m) {
    const std::int64_t inner = m.heads * m.width, states = m.groups * m.state, conv = inner + 2 * states;
    const at::Tensor features = random({m.tokens, inner + conv + m.heads}), convolved = random({m.tokens, conv});
    const at::Tensor features_grad = at::empty_like(features), convolved_grad = at::empty_like(convolved);
    const at::Tensor weight = random({conv, 4}), bias = random({conv}), heads = random({3, m.heads});
    const at::Tensor norm = random({inner}), y = random({m.tokens, inner}), grad = random({m.tokens, inner});
    const PackedSequences sequences = pack_sequences({0, m.tokens}, options_.device());
    const at::Tensor xbc = features.narrow(1, inner, conv), z = features.narrow(1, 0, inner);
    const at::Tensor xbc_grad = features_grad.narrow(1, inner, conv), z_grad = features_grad.narrow(1, 0, inner);
    add_stream(Operator::Convolution, 2 * real(m.tokens * conv),
               [=] { causal_conv_silu_forward(xbc, weight, bias, sequences); });
    add_stream(Operator::ConvolutionBackward, 3 * real(m.tokens * conv),
               [=] { causal_conv_silu_backward_into(convolved, xbc, weight, bias, sequences, xbc_grad); });

    const auto inputs = [&](const at::Tensor& of_conv, const at::Tensor& all) {
      return SsdInputs{.x = of_conv.narrow(1, 0, inner).unflatten(1, {m.heads, m.width}),
                       .dt = all.narrow(1, inner + conv, m.heads),
                       .A_log = heads[0],
                       .B = of_conv.narrow(1, inner, states).unflatten(1, {m.groups, m.state}),
                       .C = of_conv.narrow(1, inner + states, states).unflatten(1, {m.groups, m.state}),
                       .D = heads[1],
                       .dt_bias = heads[2]};
    };
    const SsdInputs in = inputs(convolved, features);
    SsdInputs gradients = inputs(convolved_grad, features_grad);
    gradients.A_log = at::empty_like(heads[0]);
    gradients.D = at::empty_like(heads[0]);
    gradients.dt_bias = at::empty_like(heads[0]);
    const SsdOptions options = {.chunk = m.chunk};
    const SsdSaved saved = ssd_scan_forward(in, options, sequences).saved;
    const at::Tensor y_grad = grad.view({m.tokens, m.heads, m.width});
    Work scan = {.op = Operator::Scan,
                 .amount = 2 * real(m.tokens) * (real(states + inner) * real(m.chunk) / 2 + 2 * real(inner * m.state)),
                 .size = {real(m.tokens), real(m.heads), real(m.width * m.state)}};
    add(scan, [=] { ssd_scan_forward(in, options, sequences); });
    scan.op = Operator::ScanBackward;
    scan.amount *= 2;
    add(scan, [=] { ssd_scan_backward_into(y_grad, in, saved, options, sequences, gradients); });

    const std::int64_t groups = m.groups;
    const at::Tensor inverse_root = gated_rms_norm_forward(y, z, norm, groups, kEps).saved;
    const at::Tensor into = at::empty_like(y);
    add_stream(Operator::GatedNorm, 3 * real(m.tokens * inner),
               [=] { gated_rms_norm_forward(y, z, norm, groups, kEps); });
    add_stream(Operator::GatedNormBackward, 5 * real(m.tokens * inner),
               [=] { gated_rms_norm_backward_into(grad, y, z, norm, inverse_root, into, z_grad); });
  }

  struct ExpertTensors {
    ExpertRows experts;
    at::Tensor rows, grad;
    Weight weight;
  };
  // Routing gives experts different numbers of rows, which are not multiples of a kernel's tile. Here every second
  // expert has an eighth more rows than its neighbour.
  ExpertTensors expert_tensors(const ExpertSizes& s) {
    Lengths counts;
    std::vector<int> ends;
    for (std::int64_t expert = 0; expert < s.experts; ++expert) {
      const std::int64_t more = s.rows / 16 + 1;
      counts.push_back(s.rows + (expert % 2 == 0 ? more : -more));
      ends.push_back(static_cast<int>(counts.back()) + (ends.empty() ? 0 : ends.back()));
    }
    const at::Tensor on_device = at::tensor(ends, at::kInt).to(options_.device());
    ExpertTensors tensors = {ExpertRows(counts, on_device),
                             random({s.experts * s.rows, s.in}),
                             random({s.experts * s.rows, s.out}),
                             {.value = random({s.experts, s.out, s.in})}};
    tensors.weight.sum->value = zeros({s.experts, s.out, s.in});
    return tensors;
  }

  // ops/grouped_linear
  void add_experts(const ExpertSizes& s) {
    const ExpertTensors t = expert_tensors(s);
    const OperatorWork work = works_.grouped(s.experts * s.rows, s.experts, s.out, s.in, /*fp8=*/false);
    add(work.forward[0], [=] { grouped_linear_forward(t.rows, t.weight.value, t.experts); });
    add(work.backward[0], [=] { grouped_linear_backward(t.grad, {}, t.weight, t.experts, true); });
    add(work.backward[1], [=] {
      t.weight.sum->is_unset = true;
      grouped_linear_backward(t.grad, t.rows, t.weight, t.experts, false);
    });
  }

  // ops/experts_fp8
  void add_fp8_experts(const ExpertSizes& s) {
    ExpertTensors t = expert_tensors(s);
    t.weight.fp8 = std::make_shared<Fp8Copies>();
    const Fp8Groups groups = fp8_groups(t.experts.ends(), {t.rows, t.grad});
    const Fp8Pair rows8 = quantize_groups(t.rows, {true, true}, groups);
    const Fp8Pair grad8 = quantize_groups(t.grad, {true, true}, groups);
    const OperatorWork work = works_.grouped(s.experts * s.rows, s.experts, s.out, s.in, /*fp8=*/true);
    add(work.forward[0], [=] { grouped_linear_fp8_forward(rows8.rows, t.weight, t.experts, true); });
    add(work.backward[0],
        [=] { grouped_linear_fp8_backward({.rows = grad8.rows, .columns = {}}, {}, t.weight, t.experts); });
    add(work.backward[1], [=] {
      t.weight.sum->is_unset = true;
      grouped_linear_fp8_backward({.rows = {}, .columns = grad8.columns}, {rows8.columns, groups.padded_ends}, t.weight,
                                  t.experts);
    });
    const at::Tensor scales = at::ones({s.experts * s.rows}, options_.dtype(at::kFloat));
    const at::Tensor other = random(t.grad.sizes().vec());
    const double elements = real(t.grad.numel());
    add(stream_work(Operator::QuantizeActivation, elements * (2 * e_ + 2)), [=] {
      quantize_scaled_squared_relu(t.grad, scales, {true, true}, groups);
    });
    add(stream_work(Operator::QuantizeActivationBackward, elements * (4 * e_ + 2)), [=] {
      quantize_scaled_squared_relu_backward(other, t.grad, scales, {true, true}, true, groups);
    });
  }

  // nn/moe.cpp: from tokens to the order of their rows, then the rows themselves
  void add_router(const RouterSizes& s) {
    const at::Tensor x = random({s.tokens, s.hidden}), bias = zeros({s.experts});
    const at::Tensor other = random({s.tokens, s.hidden}), more = random({s.tokens, s.hidden});
    Weight weight = {.value = random({s.experts, s.hidden}).clone().requires_grad_()};
    weight.sum->value = zeros({s.experts, s.hidden});
    const RouterOptions options = {.top_k = s.top_k};
    const auto order_of = [=](const Routing& routing) { return sort_by_expert(routing.experts, s.experts); };
    const OperatorWork work = works_.router(s.tokens, s.hidden, s.experts);
    add(work.forward[0], [=] { order_of(route_forward(router_logits_forward(x, weight.value), bias, options)); });
    const Routing routing = route_forward(router_logits_forward(x, weight.value), bias, options);
    const at::Tensor scores_grad = at::randn_like(routing.scores), weights_grad = at::randn_like(routing.weights);
    add(work.backward[0], [=] {
      weight.sum->is_unset = true;
      router_logits_backward(route_backward(scores_grad, weights_grad, routing.scores, routing.experts, options), x,
                             weight, true, {other, more});
    });

    const ExpertOrder order = order_of(routing);
    const std::int64_t top_k = s.top_k;
    const at::Tensor rows = random({s.tokens * s.top_k, s.hidden});
    add_stream(Operator::Rows, real((s.tokens + s.tokens * s.top_k) * s.hidden),
               [=] { permute_to_experts_forward(x, order, top_k); });
    add_stream(Operator::Rows, real((2 * s.tokens + s.tokens * s.top_k) * s.hidden),
               [=] { permute_to_experts_backward(rows, order, top_k, other); });
    if (is_wide_) return;
    const Fp8Groups groups = fp8_groups(order.ends, {x});
    const double bytes = real(x.numel()) * e_ + real(rows.numel()) * (e_ + 2);
    add(stream_work(Operator::QuantizeRows, bytes), [=] { quantize_permuted(x, order, top_k, {true, true}, groups); });
  }

  void add_streams(const Matrix& s) {
    const at::Tensor x = random({s.rows, s.columns}), branch = random({s.rows, s.columns});
    const at::Tensor grad = random({s.rows, s.columns}), weight = random({s.columns});
    const double size = real(s.rows * s.columns);
    add_stream(Operator::Stream, 3 * size, [=] { at::add(x, branch); });
    add_stream(Operator::Norm, 4 * size, [=] { norm_forward(x, branch, weight, {}, kEps); });
    const NormStatistics saved = norm_forward(x, branch, weight, {}, kEps).saved;
    add_stream(Operator::NormBackward, 4 * size, [=] { norm_backward(grad, branch, x, weight, {}, saved); });
    add_stream(Operator::Activation, 2 * size, [=] { activation_forward(x, braid::Activation::SquaredRelu); });
    add_stream(Operator::ActivationBackward, 3 * size,
               [=] { activation_backward(grad, x, braid::Activation::SquaredRelu); });
  }

  void add_cross_entropy(const Matrix& s) {
    const at::Tensor logits = random({s.rows, s.columns}), overwritten = logits.clone();
    const at::Tensor labels = at::randint(s.columns, {s.rows}, options_.dtype(at::kLong));
    const auto [losses, sums] = vocab_parallel_cross_entropy_forward(logits, labels, {});
    const at::Tensor grad = at::ones_like(losses);
    add_stream(Operator::CrossEntropy, real(logits.numel()),
               [=] { vocab_parallel_cross_entropy_forward(logits, labels, {}); });
    add_stream(Operator::CrossEntropyBackward, 2 * real(logits.numel()),
               [=, sums = sums] { vocab_parallel_cross_entropy_backward(grad, overwritten, labels, sums, {}); });
  }

  void add_update(std::int64_t parameters) {
    const std::int64_t columns = 1024;
    const Lengths shape = {parameters / columns, columns};
    const at::Tensor value = at::zeros(shape, options_).requires_grad_();
    const auto adam =
        std::make_shared<ShardedAdam>(std::vector<Parameters::Entry>{{{.name = "parameter", .shape = shape}, value}},
                                      alone_, alone_, OptimizerConfig{}, 0);
    add(stream_work(Operator::Update, real(parameters) * (8 * 4 + e_)), [=] {
      adam->norm_terms();
      adam->update(1, 1e-4, 0.1, 0.5);
      adam->finish_publishing();
    });
  }

  static constexpr double kEps = 1e-5;

  const at::TensorOptions options_;
  const at::Tensor pool_;
  const bool is_wide_;
  const double e_;
  const Operators works_;
  const Sizes sizes_;
  const Group alone_;
  std::int64_t begin_ = 0;
  std::vector<CalibrationCase> cases_;
};

}  // namespace

std::vector<CalibrationCase> calibration_cases(const at::Device& device,
                                               const std::function<void(const std::string&)>& report) {
  const at::NoGradGuard guard;
  return device.is_cuda() ? Cases(device, at::kBFloat16, gpu_sizes()).take(report)
                          : Cases(device, at::kFloat, cpu_sizes()).take(report);
}

}  // namespace braid
