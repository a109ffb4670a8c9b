#include "models/flops.h"

#include <algorithm>

namespace braid {
namespace {

// A weight of a matrix product costs 2 per token, an expert's weight only for the tokens routed to it; embedding
// lookups cost nothing.
double linear_flops(const std::vector<ParamSpec>& specs, double active_experts, double tokens) {
  double flops = 0;
  for (const ParamSpec& spec : specs) {
    const bool is_product = spec.shape.size() >= 2 && spec.name != "embedding.word_embeddings.weight" &&
                            spec.name.find("conv1d") == spec.name.npos;
    if (is_product) flops += 2 * tokens * (spec.expert ? active_experts : 1) * static_cast<double>(num_elements(spec));
  }
  return flops;
}

// Two matrix products, of which causal masking keeps half.
double attention_flops(double heads, double head_dim, double tokens, double sequence_length) {
  return 2 * 2 * tokens * heads * head_dim * sequence_length / 2;
}

Flops forward_flops(const LlamaConfig& c, double tokens, double sequence_length) {
  // If embeddings are tied, the embedding is also the output layer and counts as such.
  const double tied = c.tie_embeddings ? 2 * tokens * static_cast<double>(c.vocab) * c.hidden : 0;
  return {.linear = linear_flops(declare_parameters(c), 0, tokens) + tied,
          .attention = c.layers * attention_flops(c.heads, c.head_dim, tokens, sequence_length)};
}

Flops forward_flops(const HybridLmConfig& c, double tokens, double sequence_length) {
  const int stages = 1 + static_cast<int>(std::ranges::count(c.pattern, '|'));
  Flops flops = {.linear =
                     linear_flops(declare_parameters(c, stages), static_cast<double>(c.top_k) / c.experts, tokens)};
  const double inner = static_cast<double>(c.mamba_heads) * c.mamba_head_dim,
               group_states = static_cast<double>(c.mamba_groups) * c.mamba_state;
  for (const char letter : layer_letters(c)) {
    if (letter == '*') flops.attention += attention_flops(c.heads, c.head_dim, tokens, sequence_length);
    // Inside a chunk as attention with B and C; then into the chunk's state and out of it.
    if (letter == 'M')
      flops.scan += 2 * tokens * ((group_states + inner) * c.mamba_chunk / 2 + 2 * inner * c.mamba_state);
  }
  return flops;
}

}  // namespace

Flops count_flops(const LanguageConfig& config, double tokens, double sequence_length) {
  const Flops forward = std::visit([&](const auto& c) { return forward_flops(c, tokens, sequence_length); }, config);
  return {3 * forward.linear, 3 * forward.attention, 3 * forward.scan};  // backward costs twice as much as forward
}

}  // namespace braid
