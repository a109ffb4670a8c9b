#pragma once

#include <string>
#include <vector>

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

}  // namespace braid
