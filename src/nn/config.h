// Choices of how layers compute, which recipes make.
#pragma once

namespace braid {

// Which activations backward computes again instead of keeping them.
struct RecomputeConfig {
  bool full = false;         // everything of a layer but its input
  bool norms = false;        // normed inputs of linear maps
  bool activations = false;  // outputs of squared ReLU, GELU and SwiGLU
  bool experts = false;      // everything of the routed experts but the layer's normed input and the routing
  bool mamba = false;        // everything of a Mamba2 mixer but the output of in_proj
  bool vision = false;       // as full, in encoders only

  bool operator==(const RecomputeConfig&) const = default;
};

const std::vector<std::string>& recompute_names();  // of the fields above
RecomputeConfig recompute_config(const std::vector<std::string>& names);
std::vector<std::string> names_of(const RecomputeConfig& config);  // of the fields that are true

// What applies to the layers of a language model, and to those of an encoder.
RecomputeConfig in_language(const RecomputeConfig& config);
RecomputeConfig in_encoder(const RecomputeConfig& config);

// Into how many pieces of tokens a layer cuts its work, so that one piece travels between ranks while another is
// computed. 1: the work stays whole.
struct OverlapConfig {
  int tp_pieces = 1;      // of linear maps with sequence parallelism, see nn/linear.h
  int expert_pieces = 1;  // of rows that travel to experts, see nn/moe.h
};

// The precision in which the linear maps of layers multiply.
enum class Fp8Mode {
  Off,      // that of the model
  Rowwise,  // fp8, with a scale for each row of a factor (ops/quantize.h)
};
constexpr auto choice_names(Fp8Mode) { return std::array{"off", "rowwise"}; }

// Exact GELU, its tanh form, or CLIP's x * sigmoid(1.702 x).
enum class GeluForm { Erf, Tanh, Quick };
constexpr auto choice_names(GeluForm) { return std::array{"erf", "tanh", "quick"}; }

}  // namespace braid
