#include "paper/flops.h"

#include "paper/stage.h"
#include "plan/topology.h"

namespace braid {
namespace {

// Of one sequence: longer than the chunks of a scan, and a power of two, so that shares of it are exact.
constexpr std::int64_t kTokens = 1 << 20;

LanguageConfig in_one_stage(LanguageConfig config) {
  if (auto* hybrid = std::get_if<HybridLmConfig>(&config)) hybrid->pattern = layer_letters(*hybrid);
  return config;
}

Flops forward_of_sequence(const LanguageConfig& config) {
  const Topology alone({.modules = {{.name = "language", .kind = "language"}}}, {});
  const TextSizes text = {.tokens = kTokens, .labels = kTokens, .squares = double{kTokens} * kTokens};
  Flops flops;
  for (const PaperLayer& layer : walk_stage(in_one_stage(config), alone.language(), 0, {}, text, true).layers)
    for (const Work& work : layer.work.forward) {
      if (counts_bytes(work.op)) continue;
      double& sum = work.op == Operator::Attention ? flops.attention
                    : work.op == Operator::Scan    ? flops.scan
                                                   : flops.linear;
      sum += work.amount * work.count;
    }
  return flops;
}

}  // namespace

Flops count_flops(const LanguageConfig& config, double tokens, double sequence_length) {
  const Flops forward = forward_of_sequence(config);
  const double share = 3 * tokens / kTokens;  // backward costs twice as much as forward
  return {forward.linear * share, forward.attention * share * (sequence_length / kTokens), forward.scan * share};
}

}  // namespace braid
