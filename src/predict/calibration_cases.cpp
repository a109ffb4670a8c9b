#include "predict/calibration_cases.h"
#include <ATen/ATen.h>
#include "comm/group.h"
#include "comm/progress.h"
#include "comm/store.h"
#include "models/decoder.h"
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

struct SmallModel {
  SmallModel(const HybridLmConfig& small, std::int64_t tokens, const at::Device& device)
      : config(small), alone("alone", device, progress), parallel{.tp = alone,
                                                                  .cp = alone,
                                                                  .tp_cp = alone,
                                                                  .ep = alone,
                                                                  .expt_tp = alone},
        parameters(declare_parameters(config), 0, {}, device.is_cuda() ? at::kBFloat16 : at::kFloat, device),
        decoder(config, parameters, parallel, 0, 1, {}), batch{.sequences = pack_sequences({0, tokens}, device)} {
    parameters.initialize(1);
    const at::Tensor on_host = at::randint(config.vocab, {tokens}, at::kLong);
    ids = on_host.to(device);
    labels = counted_labels(on_host, device);
  }

  at::Tensor forward() const {
    for (const Parameters::Entry& entry : parameters.entries()) entry.value.mutable_grad() = at::Tensor();
    const at::Tensor x = decoder.run_layers(decoder.embed(ids), batch);
    return decoder.token_losses(decoder.logits(x, labels.rows), labels.labels).sum();
  }

  const HybridLmConfig config;
  Progress progress;
  const Group alone;
  const Parallel parallel;
  Parameters parameters;
  const Decoder decoder;
  const SequenceBatch batch;
  at::Tensor ids;
  CountedLabels labels;
};

using Lengths = std::vector<std::int64_t>;
using Row = std::vector<std::int64_t>;

// The sizes to measure. Between them, speeds are interpolated (predict/op_time.cpp).
struct Sizes {
  const char* rows;       // of maps, each with all of these
  const char* maps;       // inputs and outputs
  const char* more_rows;  // of more_maps, which take long
  const char* more_maps;
  const char* attention;   // groups of heads, queries of each, width of a head, 1 if causal, then lengths of sequences
  const char* mixers;      // tokens, heads, width, groups, state, chunk
  const char* experts;     // experts, rows of one expert, inputs, outputs
  const char* routers;     // tokens, hidden, experts, top_k
  const char* matrices;    // of memory-bound operators: rows, columns
  const char* logits;      // rows, columns
  const char* parameters;  // that the optimizer updates
  std::int64_t pool;       // elements of the memory that inputs share
};

constexpr Sizes kGpuSizes = {
    .rows = "256, 2048, 8192",
    .maps =
        "2688 10304, 4096 2688, 2688 6144, 2688 3712, 3712 2688, 1280 3840, 1280 5120, 5120 1280, 1280 1280, "
        "2048 2048, 5120 2688",
    .more_rows = "1024, 4096, 16384",
    .more_maps = "2688 131072, 2688 10304, 8192 8192",
    .attention =
        "8 4 128 1 8192, 8 4 128 1 4096 4096, 8 4 128 1 1024 1024 1024 1024 1024 1024 1024 1024, "
        "8 4 128 1 1024, 8 4 128 1 32768, 8 4 128 1 3000 500 2200 1492 1000, "
        "16 1 80 0 1034 1034 1034 1034 1034 1034 1034 1034, 16 1 80 0 266 1034 640 2314 410 1500, "
        "16 1 80 0 266",
    .mixers =
        "8192 64 64 8 128 128, 32768 64 64 8 128 128, 2048 64 64 8 128 128, 512 64 64 8 128 128, "
        "8192 32 64 4 128 128",
    .experts =
        "16 3072 2688 1856, 16 1536 2688 1856, 16 384 2688 1856, 16 96 2688 1856, 16 6144 2688 1856, "
        "128 384 2688 1856, 8 6144 2688 1856, 16 1024 1024 1024",
    .routers = "8192 2688 16 6, 8192 2688 128 6, 1024 2688 128 6, 1024 2688 16 6, 32768 2688 16 6",
    .matrices = "64 2688, 1024 2688, 8192 2688, 8192 1280, 32768 2688, 49152 1856",
    .logits = "8192 131072, 1024 131072, 128 131072",
    .parameters = "1048576, 67108864, 536870912",
    .pool = std::int64_t{2200} << 20};

constexpr Sizes kCpuSizes = {.rows = "16, 128, 512",
                             .maps = "32 32, 64 64, 64 256, 256 64, 256 256, 64 1024, 512 512, 1024 1024",
                             .more_rows = "",
                             .more_maps = "",
                             .attention = "8 2 8 1 128 128, 4 1 8 0 19 19, 2 2 16 1 128, 4 2 32 1 512, 4 1 16 0 64 64",
                             .mixers = "256 16 8 8 16 16, 128 8 16 4 16 32, 128 4 16 2 16 32, 512 16 16 4 32 64",
                             .experts = "8 64 64 32, 8 8 64 48, 4 32 64 48, 4 256 256 256",
                             .routers = "256 64 8 2, 64 64 8 2, 512 256 16 4",
                             .matrices = "16 64, 128 64, 256 128, 512 512, 2048 1024",
                             .logits = "128 512, 64 1024, 512 4096",
                             .parameters = "65536, 1048576, 4194304",
                             .pool = std::int64_t{16} << 20};

std::vector<Row> rows_of(const char* table) {
  std::vector<Row> rows;
  for (const std::string& line : split(table, ',')) {
    std::istringstream numbers(line);
    Row row(std::istream_iterator<std::int64_t>(numbers), {});
    if (!row.empty()) rows.push_back(std::move(row));
  }
  return rows;
}

// Every map with every number of rows: rows, inputs, outputs.
std::vector<Row> maps_of(const char* rows, const char* maps) {
  std::vector<Row> all;
  for (const Row& count : rows_of(rows))
    for (const Row& map : rows_of(maps)) all.push_back({count[0], map[0], map[1]});
  return all;
}

class Cases {
 public:
  Cases(const at::Device& device, at::ScalarType dtype, const Sizes& sizes)
      : options_(at::TensorOptions(dtype).device(device)), pool_(at::randn({sizes.pool}, options_)),
        is_wide_(dtype != at::kBFloat16), e_(pool_.element_size()), works_(pool_.element_size(), /*trains=*/true),
        sizes_(sizes), alone_("alone", device, *progress_) {}

  std::vector<CalibrationCase> take(const std::function<void(const std::string&)>& report) {
    const auto add_all = [&](const char* what, const std::vector<Row>& all, void (Cases::*add)(const Row&)) {
      for (const Row& sizes : all) {
        const std::size_t before = cases_.size();
        try {
          (this->*add)(sizes);
        } catch (const std::exception& e) {
          cases_.resize(before);
          report(fmt::format("left out, {}: {}", what, words_of(e)));
        }
      }
    };
    add_all("a product", maps_of(sizes_.rows, sizes_.maps), &Cases::add_map);
    add_all("a product", maps_of(sizes_.more_rows, sizes_.more_maps), &Cases::add_map);
    if (!is_wide_) {
      add_all("a product in fp8", maps_of(sizes_.rows, sizes_.maps), &Cases::add_fp8_map);
      add_all("experts in fp8", rows_of(sizes_.experts), &Cases::add_fp8_experts);
    }
    add_all("attention", rows_of(sizes_.attention), &Cases::add_attention);
    add_all("a scan", rows_of(sizes_.mixers), &Cases::add_mixer);
    add_all("experts", rows_of(sizes_.experts), &Cases::add_experts);
    add_all("a router", rows_of(sizes_.routers), &Cases::add_router);
    add_all("streams", rows_of(sizes_.matrices), &Cases::add_streams);
    add_all("a cross entropy", rows_of(sizes_.logits), &Cases::add_cross_entropy);
    add_all("an update", rows_of(sizes_.parameters), &Cases::add_update);
    return std::move(cases_);
  }

 private:
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
  void add_map(const Row& s) {
    const std::int64_t rows = s[0], in = s[1], out = s[2];
    const at::Tensor x = random({rows, in}), weight = random({out, in}), grad = random({rows, out});
    const at::Tensor sum = zeros({out, in});
    const OperatorWork work = works_.linear(rows, out, in);
    add(work.forward[0], [=] { product(x, weight.t()); });
    add(work.backward[0], [=] { product(grad, weight); });
    add(work.backward[1], [=] { add_product(sum, grad.t(), x, true); });
  }

  // ops/linear
  void add_fp8_map(const Row& s) {
    const std::int64_t rows = s[0], in = s[1], out = s[2];
    const at::Tensor x = random({rows, in}), sum = zeros({out, in});
    const Fp8Pair x8 = quantize(x, {true, true}), grad8 = quantize(random({rows, out}), {true, true}),
                  weight8 = quantize(random({out, in}), {true, true});
    const at::ScalarType dtype = x.scalar_type();
    const OperatorWork work = works_.linear(rows, out, in, /*fp8=*/true);
    add(work.forward[1], [=] { fp8_product(x8.rows, weight8.rows, dtype, kOutputSum); });
    add(work.backward[1], [=] { fp8_product(grad8.rows, weight8.columns, dtype, kInputGradientSum); });
    add(work.backward[2], [=] { write_fp8_product(sum, grad8.columns, x8.columns, kWeightGradientSum); });
    add(work.forward[0], [=] { quantize(x, {true, true}); });
  }

  void add_attention(const Row& s) {
    const std::int64_t group_count = s[0], queries = s[1], width = s[2], all = group_count * queries;
    const bool causal = s[3] != 0;
    Lengths offsets = {0};
    double squares = 0;
    for (std::size_t i = 4; i < s.size(); ++i) {
      offsets.push_back(offsets.back() + s[i]);
      squares += real(s[i]) * real(s[i]);
    }
    const std::int64_t tokens = offsets.back();
    const at::Tensor groups = random({tokens, group_count, queries + 2, width}), grad = random({tokens, all, width});
    const PackedSequences sequences = pack_sequences(offsets, options_.device());
    const double scale = 1 / std::sqrt(real(width));
    const AttentionSaved saved = attention_forward(groups, sequences, causal, scale).saved;
    const OperatorWork work = works_.attention(tokens, all, width, squares, causal);
    add(work.forward[0], [=] { attention_forward(groups, sequences, causal, scale); });
    add(work.backward[0], [=] { attention_backward(grad, groups, saved, sequences, causal, scale); });
  }

  // ops/mamba. Inputs are columns of wider tensors, as there.
  void add_mixer(const Row& s) {
    const struct { std::int64_t tokens, heads, width, groups, state, chunk; } m = {s[0], s[1], s[2], s[3], s[4], s[5]};
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
  struct ExpertSizes {
    explicit ExpertSizes(const Row& s) : experts(s[0]), rows(s[1]), in(s[2]), out(s[3]) {}
    std::int64_t experts, rows, in, out;
  };
  // Routing gives experts unequal numbers of rows: here every second one has an eighth more than its neighbour.
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
  void add_experts(const Row& row) {
    const ExpertSizes s(row);
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
  void add_fp8_experts(const Row& row) {
    const ExpertSizes s(row);
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
  void add_router(const Row& row) {
    const struct { std::int64_t tokens, hidden, experts, top_k; } s = {row[0], row[1], row[2], row[3]};
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

  void add_streams(const Row& s) {
    const at::Tensor x = random(s), branch = random(s), grad = random(s), weight = random({s[1]});
    const double size = real(s[0] * s[1]);
    add_stream(Operator::Stream, 3 * size, [=] { at::add(x, branch); });
    add_stream(Operator::Norm, 4 * size, [=] { norm_forward(x, branch, weight, {}, kEps); });
    const NormStatistics saved = norm_forward(x, branch, weight, {}, kEps).saved;
    add_stream(Operator::NormBackward, 4 * size, [=] { norm_backward(grad, branch, x, weight, {}, saved); });
    add_stream(Operator::Activation, 2 * size, [=] { activation_forward(x, braid::Activation::SquaredRelu); });
    add_stream(Operator::ActivationBackward, 3 * size,
               [=] { activation_backward(grad, x, braid::Activation::SquaredRelu); });
  }

  void add_cross_entropy(const Row& s) {
    const at::Tensor logits = random(s), overwritten = logits.clone();
    const at::Tensor labels = at::randint(s[1], {s[0]}, options_.dtype(at::kLong));
    const auto [losses, sums] = vocab_parallel_cross_entropy_forward(logits, labels, {});
    const at::Tensor grad = at::ones_like(losses);
    add_stream(Operator::CrossEntropy, real(logits.numel()),
               [=] { vocab_parallel_cross_entropy_forward(logits, labels, {}); });
    add_stream(Operator::CrossEntropyBackward, 2 * real(logits.numel()),
               [=, sums = sums] { vocab_parallel_cross_entropy_backward(grad, overwritten, labels, sums, {}); });
  }

  void add_update(const Row& s) {
    const std::int64_t parameters = s[0], columns = 1024;
    const Lengths shape = {parameters / columns, columns};
    const at::Tensor value = at::zeros(shape, options_).requires_grad_();
    const auto adam =
        std::make_shared<ShardedAdam>(std::vector<Parameters::Entry>{{{.name = "parameter", .shape = shape}, value}},
                                      alone_, alone_, OptimizerConfig{}, 0);
    add(stream_work(Operator::Update, real(parameters) * (8 * 4 + e_)), [adam, progress = progress_] {
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
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();  // of groups, which outlive this object
  const Group alone_;
  std::int64_t begin_ = 0;
  std::vector<CalibrationCase> cases_;
};

}  // namespace

SmallStep small_step(const std::string& pattern, std::int64_t tokens, const at::Device& device) {
  return
      [model = std::make_shared<SmallModel>(small_model(pattern, device), tokens, device)] { return model->forward(); };
}

Works small_step_work(const std::string& pattern, std::int64_t tokens, const at::Device& device) {
  const Topology topology({.modules = {{.name = "language", .kind = ModuleKind::Language}}}, {});
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

std::vector<CalibrationCase> calibration_cases(const at::Device& device,
                                               const std::function<void(const std::string&)>& report) {
  const at::NoGradGuard guard;
  return device.is_cuda() ? Cases(device, at::kBFloat16, kGpuSizes).take(report)
                          : Cases(device, at::kFloat, kCpuSizes).take(report);
}

}  // namespace braid
