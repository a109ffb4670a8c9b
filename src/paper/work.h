// The events of a walk over a stage on paper (paper/stage.h): the operators that its layers call, with their sizes, and
// what they communicate. No libtorch here.
#pragma once

#include "base/strings.h"
#include "plan/topology.h"

namespace braid {

// Whose speed is measured apart. The first ones are bound by arithmetic, those from Stream on by memory.
enum class Operator {
  Product,      // of matrices of 2-byte elements; its sizes are rows, columns and depth
  ProductSum,   // likewise, written to a sum in fp32: a weight's gradient
  ProductWide,  // of wider elements; of 8-byte ones with twice the operations
  ProductFp8,
  ProductFp8Sum,
  Experts,  // a product for each expert in one call: rows of an expert, columns, depth
  ExpertsSum,
  ExpertsFp8,
  ExpertsFp8Sum,
  Attention,  // tokens times heads, mean length of a sequence, width of a head
  AttentionBackward,
  Scan,  // tokens, heads, width of a head times state
  ScanBackward,
  Router,  // logits, choice and order of experts: tokens, hidden, experts
  RouterBackward,
  Stream,  // any other memory-bound operator
  Norm,
  NormBackward,
  GatedNorm,
  GatedNormBackward,
  Convolution,
  ConvolutionBackward,
  Activation,
  ActivationBackward,
  Rows,  // gathered or summed by index
  CrossEntropy,
  CrossEntropyBackward,
  Quantize,
  QuantizeRows,  // of experts, as they are gathered
  QuantizeActivation,
  QuantizeActivationBackward,
  Update,  // of the optimizer
};
inline constexpr int kOperators = static_cast<int>(Operator::Update) + 1;
// In the order of the enumerators.
inline const std::vector<std::string>& operator_names() {
  static const std::vector<std::string> names = split(
      "product product_sum product_wide product_fp8 product_fp8_sum experts experts_sum experts_fp8 experts_fp8_sum "
      "attention attention_backward scan scan_backward router router_backward stream norm norm_backward gated_norm "
      "gated_norm_backward convolution convolution_backward activation activation_backward rows cross_entropy "
      "cross_entropy_backward quantize quantize_rows quantize_activation quantize_activation_backward update",
      ' ');
  return names;
}
inline bool counts_bytes(Operator op) { return op >= Operator::Stream; }

// The first gradient of a step overwrites its sum; those of later microbatches read it and add to it.
enum class When { Always, FirstMicrobatch, LaterMicrobatches };

// One call of an operator, or several of the same sizes.
struct Work {
  Operator op = Operator::Stream;
  double amount = 0;                       // floating-point operations, or bytes read and written; of one call
  std::array<double, 3> size = {1, 1, 1};  // what its speed depends on, see Operator; of those that count bytes: bytes
  double count = 1;
  double launches = 1;          // kernels of one call
  bool beside_experts = false;  // it runs while rows travel to experts and back (nn/moe.cpp)
  When when = When::Always;

  bool operator==(const Work&) const = default;
};
using Works = std::vector<Work>;

inline Work product_work(Operator op, double rows, double columns, double depth) {
  return {.op = op, .amount = 2 * rows * columns * depth, .size = {rows, columns, depth}};
}

inline Work stream_work(Operator op, double bytes, double launches = 1) {
  return {.op = op, .amount = bytes, .size = {bytes, 1, 1}, .launches = launches};
}

// Without what is computed in other microbatches only.
inline Works in_microbatch(const Works& works, bool is_first) {
  Works kept;
  for (const Work& work : works)
    if (work.when == When::Always || (work.when == When::FirstMicrobatch) == is_first) kept.push_back(work);
  for (Work& work : kept) work.when = When::Always;
  return kept;
}

// --- what the operators of ops/ compute in a forward and in a backward. Bytes count what a fused kernel reads and
// writes, in elements of `e` bytes.

inline Works& operator+=(Works& a, const Works& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline Works operator+(Works a, const Works& b) { return a += b; }

// A call of an operator, or several calls, as those of a layer.
struct OperatorWork {
  Works forward{}, backward{};

  bool operator==(const OperatorWork&) const = default;
};

inline OperatorWork operator+(OperatorWork a, const OperatorWork& b) {
  a.forward += b.forward;
  a.backward = b.backward + a.backward;
  return a;
}

// The output is not kept: its only reader in backward computes it again.
inline OperatorWork repeated_if(bool recomputed, OperatorWork work) {
  if (recomputed) work.backward = work.forward + work.backward;
  return work;
}

inline double real(std::int64_t value) { return static_cast<double>(value); }

// The operators of ops/ for elements of one size, if their parameters train or not.
class Operators {
 public:
  Operators(std::int64_t element_bytes, bool trains) : e_(real(element_bytes)), trains_(trains) {}

  double e() const { return e_; }

  // ops/linear and ops/linear_fp8. An input without a gradient: the first layer of a model.
  OperatorWork linear(double rows, double out, double in, bool fp8 = false, bool x_grad = true) const {
    if (fp8) return linear_fp8(rows, out, in);
    OperatorWork pair = {{wide(Operator::Product, rows, out, in)}};
    if (x_grad) pair.backward.push_back(wide(Operator::Product, rows, in, out));
    if (trains_) pair.backward += weight_gradient(wide(Operator::ProductSum, out, in, rows), out * in);
    return pair;
  }

  // The bias is part of the product; its gradient is a sum over rows.
  OperatorWork bias(double rows, double out) const {
    return {{}, trains_ ? stream(Operator::Stream, rows * out) : Works()};
  }

  // ops/grouped_linear: `experts` experts of `rows` rows together. In fp8 without what quantizes rows.
  OperatorWork grouped(double rows, double experts, double out, double in, bool fp8) const {
    const double each = rows / experts;
    const Operator forward = fp8 ? Operator::ExpertsFp8 : Operator::Experts,
                   sum = fp8 ? Operator::ExpertsFp8Sum : Operator::ExpertsSum;
    const auto of_all = [&](Work work) {
      work.amount *= experts;
      return work;
    };
    OperatorWork pair = {{of_all(product_work(forward, each, out, in))},
                         {of_all(product_work(forward, each, in, out))}};
    if (trains_) pair.backward += weight_gradient(of_all(product_work(sum, out, in, each)), experts * out * in);
    return pair;
  }

  // Both forms of a matrix, or its rows alone. Its columns are read once more after their scales are known.
  Works quantize(double elements, bool columns) const {
    return {stream_work(Operator::Quantize, elements * (columns ? 2 * e_ + 2 : e_ + 1), columns ? 3 : 1)};
  }

  // ops/add_norm: of a sum of two, which it also writes; ops/norm
  OperatorWork add_norm(double rows, double width) const {
    return {stream(Operator::Norm, 4 * rows * width),
            small_gradients(1, width) + stream(Operator::NormBackward, 4 * rows * width, 2)};
  }
  OperatorWork norm(double rows, double width) const {
    return {stream(Operator::Norm, 2 * rows * width),
            small_gradients(1, width) + stream(Operator::NormBackward, 3 * rows * width, 2)};
  }

  // Parameters whose gradients go through autograd: each is copied to the sum by a kernel of its own.
  Works small_gradients(double parameters, double width) const {
    if (!trains_) return {};
    Work each = stream_work(Operator::Stream, width * (e_ + 4));
    each.count = parameters;
    return {each};
  }
  OperatorWork add(double rows, double width) const { return {stream(Operator::Stream, 3 * rows * width), {}}; }

  OperatorWork activation(double rows, double in, double out) const {
    return {stream(Operator::Activation, rows * (in + out)),
            stream(Operator::ActivationBackward, rows * (2 * in + out))};
  }

  Works stream(Operator op, double elements, double launches = 1) const {
    return {stream_work(op, elements * e_, launches)};
  }
  OperatorWork copied(Operator op, double elements) const { return {stream(op, elements), stream(op, elements)}; }

  // ops/moe.h: the logits of a router, and what a token's experts are
  OperatorWork router(double tokens, double hidden, double experts) const {
    const double amount = 2 * tokens * hidden * experts;
    const std::array<double, 3> size = {tokens, hidden, experts};
    return {{{.op = Operator::Router, .amount = amount, .size = size, .launches = 5}},
            {{.op = Operator::RouterBackward, .amount = 2 * amount, .size = size, .launches = 4}}};
  }

  // ops/attention. Causal masking leaves half of the products; backward is counted as two forwards.
  OperatorWork attention(double tokens, double heads, double width, double squares, bool causal) const {
    if (tokens <= 0) return {};
    const double amount = 2 * 2 * heads * width * squares * (causal ? 0.5 : 1);
    const std::array<double, 3> size = {tokens * heads, squares / tokens, width};
    return {{{.op = Operator::Attention, .amount = amount, .size = size}},
            {{.op = Operator::AttentionBackward, .amount = 2 * amount, .size = size, .launches = 3}}};
  }

 private:
  Work wide(Operator op, double rows, double columns, double depth) const {
    if (e_ <= 2) return product_work(op, rows, columns, depth);
    Work work = product_work(Operator::ProductWide, rows, columns, depth);
    work.amount *= e_ / 4;
    return work;
  }

  OperatorWork linear_fp8(double rows, double out, double in) const {
    OperatorWork pair = {quantize(rows * in, trains_) + Works{product_work(Operator::ProductFp8, rows, out, in)},
                         quantize(rows * out, trains_) + Works{product_work(Operator::ProductFp8, rows, in, out)}};
    if (trains_) pair.backward += weight_gradient(product_work(Operator::ProductFp8Sum, out, in, rows), out * in);
    return pair;
  }

  // A gradient that is added to the sum of others reads it, too, which the product does not hide.
  static Works weight_gradient(const Work& product, double elements) {
    Work added = stream_work(Operator::Stream, 2 * 4 * elements, 0);
    added.when = When::LaterMicrobatches;
    return {product, added};
  }

  const double e_;
  const bool trains_;
};

// --- layers

struct LayerCollectives {
  Collectives forward, backward;

  bool operator==(const LayerCollectives&) const = default;
};

// The events of one layer.
struct PaperLayer {
  OperatorWork work{};
  LayerCollectives collectives{};

  bool operator==(const PaperLayer&) const = default;
};

}  // namespace braid
