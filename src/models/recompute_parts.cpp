#include "models/recompute_parts.h"

#include "nn/config.h"

namespace braid {
namespace {

// An encoder's layers and Llama's have MLPs; of a hybrid's, the letters tell.
RecomputeConfig parts_of(const LanguageConfig& language, bool has_encoders) {
  RecomputeConfig parts = {.full = true, .norms = true, .activations = true, .vision = has_encoders};
  const auto* hybrid = std::get_if<HybridLmConfig>(&language);
  if (!hybrid) return parts;
  const auto has_layer = [&](char letter) { return hybrid->pattern.find(letter) != std::string::npos; };
  parts.experts = has_layer('E');
  parts.mamba = has_layer('M');
  parts.activations = has_encoders || has_layer('E') || has_layer('-');
  return parts;
}

}  // namespace

std::vector<std::string> recompute_parts(const LanguageConfig& language, bool has_encoders) {
  return names_of(parts_of(language, has_encoders));
}

}  // namespace braid
