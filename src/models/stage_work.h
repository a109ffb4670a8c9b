// What a pipeline stage computes in one forward and one backward of a microbatch, on paper: the operators that its
// layers call, with their sizes. The source file has one list for each kind of layer, whose lines name the operators of
// the layer's code. No libtorch here.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "models/stage_collectives.h"

namespace braid {

// Whose speed is measured apart. The first ones are bound by arithmetic, those from Stream on by memory.
enum class Operator {
  Product,      // of matrices of 2-byte elements; rows x columns x depth
  ProductSum,   // likewise, added to a sum in fp32: a weight's gradient
  ProductWide,  // of 4-byte elements; of 8-byte ones with twice the operations
  ProductFp8,
  ProductFp8Sum,
  Experts,  // a product for each expert in one call: rows of one expert x columns x depth
  ExpertsSum,
  ExpertsFp8,
  ExpertsFp8Sum,
  Attention,  // tokens x length of a sequence x width of a head
  AttentionBackward,
  Scan,  // tokens x heads x width of a head
  ScanBackward,
  Stream,  // any other memory-bound operator
  Norm,
  NormBackward,
  GatedNorm,
  GatedNormBackward,
  Convolution,
  ConvolutionBackward,
  Activation,  // element-wise, fused
  Rows,        // rows gathered by index
  Router,      // logits, scores, choice and order of experts
  CrossEntropy,
  Embedding,
  Quantize,
  Update,  // of the optimizer
};
inline constexpr int kOperators = static_cast<int>(Operator::Update) + 1;
const std::vector<std::string>& operator_names();  // in the order of the enumerators: "product", "product_sum", ...
inline bool counts_bytes(Operator op) { return op >= Operator::Stream; }

// One call of an operator, or several of the same sizes.
struct Work {
  Operator op = Operator::Stream;
  double amount = 0;                       // floating-point operations, or bytes read and written; of one call
  std::array<double, 3> size = {1, 1, 1};  // what its speed depends on, see Operator; of those that count bytes: bytes
  double count = 1;
  double launches = 1;          // kernels of one call
  bool beside_experts = false;  // it runs while rows travel to experts and back (nn/moe.cpp)
};

Work product_work(Operator op, double rows, double columns, double depth);
Work stream_work(Operator op, double bytes, double launches = 1);

struct LayerWork {
  std::vector<Work> forward, backward;
};

// By layer; what comes before the first layer and after the last one is like a layer. Arguments as collectives_of().
std::vector<LayerWork> work_of(const LanguageConfig& config, const Module& module, int stage,
                               const LayerOptions& options, const TextSizes& text, bool trains);
std::vector<LayerWork> work_of(const EncoderConfig& config, const Module& module, int stage,
                               const LayerOptions& options, const std::vector<std::vector<std::int64_t>>& extents,
                               const EncoderTraining& trains);

// The optimizer's step of a rank that updates so many parameters: the norm of their gradients, then the update.
std::vector<Work> update_work(double parameters, const LayerOptions& options);

}  // namespace braid
