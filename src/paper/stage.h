// A pipeline stage on paper: what it computes, communicates and keeps in memory in one forward and one backward of a
// microbatch. No libtorch here.
//
// One walk over the stage's layers describes all of this. It runs the code of the layers again, with tensors that have
// sizes and lifetimes but no values (paper/ops.h); paper/language.cpp and paper/encoder.cpp have one function for each
// kind of layer. Whatever happens during the walk is an event:
//
//   - an operator (Work), in the order of the calls. Backward runs the recorded nodes from the newest to the oldest, as
//     autograd does. What a layer that is recomputed repeats belongs to its backward.
//   - a collective (PaperCall), in the order in which the forward calls them; in the backward stand their transposes,
//     in the same order. Calls on groups of one rank and on empty tensors may be among them.
//   - memory that a tensor takes, from its making until nothing refers to it any more.
//
// Operators and collectives are listed by layer: what comes before the first layer and after the last one is like a
// layer. Memory is summed up over the stage.
//
// Of a mixture of experts, only the sum over the ranks that share the experts (ep x expt_tp) is exact: how many rows a
// rank receives, and therefore sends back, depends on the routing. A rank is counted as if it received as many rows as
// it sends. Everything else is exact on each rank.
#pragma once

#include "models/providers.h"
#include "nn/config.h"
#include "paper/work.h"

namespace braid {

struct LayerOptions {
  std::int64_t element_bytes = 2;  // of parameters and activations
  bool sequence_parallel = false;  // of the language model
  RecomputeConfig recompute{};
  OverlapConfig overlap{};
  bool on_gpu = true;         // whose kernels keep other tensors than operators on a CPU do
  bool deterministic = true;  // attention's backward on a GPU
};

// A replica's microbatch of text.
struct TextSizes {
  std::int64_t tokens = 0;
  std::int64_t samples = 1;
  std::int64_t labels = 0;      // with a loss, among the T / cp tokens of one rank
  double squares = 0;           // sum of the squares of the sequences' lengths
  std::int64_t embeddings = 0;  // rows that encoders produce
};

// Bytes of a microbatch. All but the sizes in the last line include the stage's input and output, which exist from the
// forward until the backward.
struct StageMemory {
  std::int64_t saved = 0;     // from the end of its forward until its backward
  std::int64_t forward = 0;   // the most at once within the forward, with what it has saved by then
  std::int64_t backward = 0;  // likewise within the backward, with what is still saved, and the output's gradient
  std::int64_t input = 0, output = 0, logits = 0;  // parts of the above; input: that of a stage before this one
};

struct StageOnPaper {
  std::vector<PaperLayer> layers{};
  StageMemory memory{};
};

// The stage of a module that trains or only passes gradients on to the encoders, without what modules exchange.
StageOnPaper walk_stage(const LanguageConfig& config, const Module& module, int stage, const LayerOptions& options,
                        const TextSizes& text, bool trains);

// The stage of an encoder and, on its last stage, its projector, which has a backward if either of the two trains.
struct EncoderTraining {
  bool encoder = true, projector = true;
};
StageOnPaper walk_stage(const EncoderConfig& config, const Module& module, int stage, const LayerOptions& options,
                        const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains);

// What a rank computes after the backwards of a step. `updated`: parameters of its shards, whose gradients' norm comes
// first; `quantized`: its parameters whose products are in fp8, once per step.
Works update_work(double updated, double quantized, const LayerOptions& options);

// What the stages of a language model that are on one rank communicate after the optimizer's step, if they train.
Collectives update_collectives(const LanguageConfig& config, const Module& module, const std::vector<int>& stages,
                               const LayerOptions& options);

// Floating point operations of a language model, forward and backward, without recomputation, if all of it trains.
struct Flops {
  double linear = 0, attention = 0, scan = 0;
  double total() const { return linear + attention + scan; }
};

// For `tokens` tokens in sequences of `sequence_length`.
Flops count_flops(const LanguageConfig& config, double tokens, double sequence_length);

}  // namespace braid
