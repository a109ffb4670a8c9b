// The operators of ops/ and comm/collectives.h on tensors without values (paper/tape.h): what each computes, makes,
// saves and passes on, forward and backward. Memory of less than some megabytes is left out: partial sums of kernels,
// tables of sequences, gradients of vectors. No libtorch here.
#pragma once

#include <optional>

#include "paper/tape.h"

namespace braid {

namespace paper {

inline constexpr std::int64_t kIndex = 8, kFloat = 4;  // bytes of an int64 and of an fp32 number

inline std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

// What a node keeps of its inputs is captured whole; of the others it knows only where their gradients go.
inline PaperTensor target(const PaperTensor& x) { return x.without_memory(); }

template <class... Memory>
void keep(const Memory&...) {}  // names what a closure has captured only to keep it

}  // namespace paper

struct PaperDevice {
  std::int64_t element_bytes = 2;  // of parameters and activations
  bool kernels = true;             // those of a GPU; else ATen's operators on a CPU
  bool deterministic = true;       // attention's backward on a GPU
};

// Of a linear map, or of the experts of a rank.
struct PaperWeight {
  std::int64_t in = 0, out = 0;
  bool trains = true, fp8 = false;
  std::int64_t matrices = 1;
  bool is_of_experts = false;
  bool has_bias = false;
  bool ends_layer =
      false;  // in the second run of a layer its result is unused, so it does not multiply (tensor/result.h)
};

// Sequences that are packed end to end, as far as the size of tables depends on them.
struct PaperSequences {
  std::int64_t tokens = 0, count = 1, longest = 0;
  double squares = 0;  // sum of the squares of their lengths
  std::int64_t chunks_of(std::int64_t length) const;
  bool have_one_length() const { return count * longest == tokens; }
};

class PaperOps {
 public:
  explicit PaperOps(const PaperDevice& device) : device_(device), tape_(device.kernels ? kBlock : 1) {}

  PaperTape& tape() { return tape_; }
  std::int64_t element() const { return device_.element_bytes; }
  std::int64_t wide() const { return std::max<std::int64_t>(device_.element_bytes, 4); }  // of arithmetic
  Operators works(bool trains) const { return {device_.element_bytes, trains}; }
  PaperTensor matrix(std::int64_t rows, std::int64_t columns) { return tape_.matrix(rows, columns, element()); }

  // --- ops/norm.h, ops/add_norm.h
  struct Norm {
    bool trains = true, has_mean = false;
    bool recomputed = false;  // its output is not kept
    bool counts_sum = false;  // it counts as add_norm(), although there is nothing to add
  };
  struct SumAndNormed {
    PaperTensor sum, normed;
  };
  PaperTensor norm(const PaperTensor& x, const Norm& norm);
  SumAndNormed add_norm(const PaperTensor& x, const PaperTensor& branch, const Norm& norm);
  PaperMemory norm_again(std::int64_t rows, std::int64_t columns);

  // --- ops/linear.h, ops/moe.h
  PaperTensor linear(const PaperRecomputable& x, const PaperWeight& weight);
  PaperTensor linear_of_gelu(const PaperTensor& inner, const PaperRecomputable& activated, const OperatorWork& gelu,
                             const PaperWeight& weight);

  // --- ops/activation.h
  // Of x alone, or of x and one scale per row. `columns`: of the result. `recomputed`: it is not kept.
  PaperTensor activation(const PaperTensor& x, std::int64_t columns, bool recomputed = false);
  PaperTensor scaled_activation(const PaperTensor& x, const PaperTensor& scales, bool recomputed);
  PaperTensor sum(const PaperTensor& a, const PaperTensor& b);       // ATen's a + b
  PaperTensor scaled_by_channel(const PaperTensor& x, bool trains);  // ATen's x * scale
  // Some of its rows, in another order, which `order` tells.
  PaperTensor copy(const PaperTensor& x, std::int64_t rows, std::int64_t columns, const OperatorWork& work = {},
                   const PaperMemory& order = {});

  // --- ops/attention.h, ops/packed_sequences.h, ops/mamba.h
  struct Heads {
    std::int64_t groups = 1, queries = 1, width = 0;  // queries: of each group
    bool causal = true;
    std::int64_t all() const { return groups * queries; }
  };
  PaperTensor attention(const PaperTensor& groups, const Heads& heads, const PaperSequences& sequences);
  struct Mixer {
    std::int64_t heads = 0, width = 0, groups = 0, state = 0, chunk = 128, taps = 4;
    bool trains = true;
    std::int64_t inner() const { return heads * width; }
    std::int64_t convolved() const { return heads * width + 2 * groups * state; }
    std::int64_t features() const { return inner() + convolved() + heads; }
  };
  PaperRecomputable mamba_mixer(const PaperTensor& features, const Mixer& mixer, const PaperSequences& sequences,
                                bool recompute_output, bool recompute_all);
  // Its parts. With context parallelism, a rank has all heads of its tokens, or all tokens of its share of the heads.
  struct MixerWork {
    OperatorWork convolution, scan, gated_norm;
  };
  MixerWork mixer_work(const Mixer& mixer, std::int64_t cp, const PaperSequences& sequences) const;
  PaperTensor convolution(const OperatorWork& work, const PaperTensor& x, const Mixer& share);  // ops/mamba.h
  PaperTensor scan(const OperatorWork& work, const PaperTensor& convolved, const PaperTensor& steps, const Mixer& share,
                   const PaperSequences& sequences);
  PaperTensor gated_norm(const OperatorWork& work, const PaperTensor& y, const PaperTensor& z, const Mixer& mixer);

  // --- ops/moe.h, ops/expert_mlp_fp8.h
  struct Routing {
    PaperTensor scores, weights;
    PaperMemory experts;
  };
  struct Routed {
    PaperTensor logits;
    std::vector<PaperTensor> tokens;
  };
  Routed router(const PaperRecomputable& x, std::int64_t experts, bool trains, std::size_t other_users);
  Routing route(const PaperTensor& logits, std::int64_t top_k);
  PaperMemory expert_order(std::int64_t rows, std::int64_t experts);
  PaperTensor permute(const PaperTensor& x, const PaperMemory& order, std::int64_t top_k);
  PaperTensor unpermute(const PaperTensor& rows, const PaperMemory& order, std::int64_t top_k,
                        const PaperTensor& added);
  struct ExpertMlp {
    PaperWeight fc1, fc2;
    std::int64_t top_k = 1;
  };
  PaperTensor expert_mlp_fp8(const PaperRecomputable& tokens, const PaperTensor& weights, const PaperTensor& added,
                             const ExpertMlp& mlp, const PaperMemory& order, bool recomputed);
  PaperTensor with_aux_loss(const PaperTensor& y, const PaperTensor& scores, std::int64_t samples);

  // --- ops/rows.h, cross_entropy.h
  // `vocab`: this rank's rows of the table.
  PaperTensor embedding(std::int64_t tokens, std::int64_t hidden, std::int64_t vocab, bool trains);
  PaperTensor put_rows(const PaperTensor& x, const PaperTensor& rows);
  PaperTensor cross_entropy(const PaperTensor& logits, std::int64_t ranks);

  // --- comm/collectives.h, whose result has this shape
  PaperTensor communicate(const PaperTensor& x, std::int64_t rows, std::int64_t columns, const PaperCall& call);
  // nn/linear.h. The call carries all rows of x, or those of the result, in pieces.
  PaperTensor gather_and_multiply(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks,
                                  PaperCall call);
  PaperTensor multiply_and_scatter(const PaperRecomputable& x, const PaperWeight& weight, std::int64_t ranks,
                                   const PaperCall& call);

  // --- nn/recompute.h, tensor/recomputable.h
  // Backward makes the value again, from memory that is kept instead.
  template <class... Kept>
  PaperRecomputable recomputable(const PaperTensor& value, bool recomputed, const Kept&... kept) {
    if (!recomputed) return value;
    return {value, [this, bytes = value.bytes(), ... kept = kept] {
              paper::keep(kept...);
              return tape_.make(bytes);
            }};
  }
  using Tensors = std::vector<PaperTensor>;
  Tensors recompute(const std::function<Tensors(const Tensors&)>& function,
                    const std::vector<PaperRecomputable>& inputs, bool trains);

  // Copies in the dtype of the arithmetic, which ATen's operators make where kernels do not.
  void wide_copies(std::int64_t elements, int count) {
    if (!device_.kernels) tape_.ledger().touch(count * elements * wide());
  }

  static constexpr std::int64_t kBlock = 512;  // what CUDA's caching allocator rounds to

 private:
  PaperMemory fp8(std::int64_t rows, std::int64_t columns);  // values, and a scale for each row
  PaperMemory fp8_columns(std::int64_t rows, std::int64_t columns, std::int64_t groups = 1);
  PaperMemory product(std::int64_t rows, std::int64_t columns);
  OperatorWork work_of(const PaperWeight& weight, std::int64_t rows, bool x_trains) const;
  OperatorWork work_of(const Norm& norm, const PaperTensor& x, bool adds) const;
  OperatorWork work_of(const ExpertMlp& mlp, std::int64_t own_tokens, bool recomputed) const;
  PaperTensor linear_fp8(const PaperTensor& x, const PaperWeight& weight);
  PaperMemory linear_backward(const PaperRecomputable::Function& saved, const PaperWeight& weight, std::int64_t rows,
                              bool x_trains);
  std::int64_t attention_workspace(const Heads& heads, const PaperSequences& sequences) const;
  bool has_scan_kernel(const Mixer& mixer) const;
  std::int64_t chunks(const PaperSequences& sequences, const Mixer& mixer) const;
  PaperMemory scan_states(const Mixer& mixer, const PaperSequences& sequences);
  void scan_scratch(const Mixer& mixer, const PaperSequences& sequences, bool backward);
  struct MixerSaved;
  PaperMemory mix(const PaperTensor& features, const Mixer& mixer, const PaperSequences& sequences, MixerSaved& saved);

  const PaperDevice device_;
  PaperTape tape_;
};

}  // namespace braid
