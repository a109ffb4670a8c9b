// The events of a walk over a stage on paper (paper/stage.h): the operators that its layers call, with their sizes, and
// what they communicate. No libtorch here.
#pragma once

#include <array>
#include <string>
#include <vector>

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
const std::vector<std::string>& operator_names();  // in the order of the enumerators: "product", "product_sum", ...
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

Work product_work(Operator op, double rows, double columns, double depth);
Work stream_work(Operator op, double bytes, double launches = 1);
Works in_microbatch(const Works& works, bool is_first);  // without what is computed in others only

struct LayerWork {
  Works forward, backward;

  bool operator==(const LayerWork&) const = default;
};

struct LayerCollectives {
  Collectives forward, backward;

  bool operator==(const LayerCollectives&) const = default;
};

// The events of one layer.
struct PaperLayer {
  LayerWork work{};
  LayerCollectives collectives{};

  bool operator==(const PaperLayer&) const = default;
};

}  // namespace braid
