#include "cli/megatron_defaults.h"

#include "base/strings.h"

namespace braid {
namespace {

struct Default {
  const char *flags, *what;  // applies unless one of the flags is given
  ModelFamily family = ModelFamily::Any;
  bool of_experts = false;
};

constexpr Default kDefaults[] = {
    {"hidden-dropout", "Megatron uses 10 % dropout without --hidden-dropout 0; Braid has no dropout"},
    {"attention-dropout", "Megatron uses 10 % dropout without --attention-dropout 0; Braid has no dropout"},
    {"normalization", "Megatron uses LayerNorm without --normalization; Braid's language models use RMSNorm"},
    {"disable-bias-linear", "Megatron has biases without --disable-bias-linear; Braid's language models have none"},
    {"position-embedding-type",
     "Megatron learns position embeddings without --position-embedding-type; in Braid, Llama has rotary embeddings, "
     "and a hybrid has none"},
    {"swiglu squared-relu quick-geglu openai-gelu",
     "Megatron's MLPs use GELU without --swiglu or --squared-relu; in Braid, Llama's MLPs use SwiGLU, and a hybrid's "
     "MLPs use squared ReLU"},
    {"untie-embeddings-and-output-weights",
     "Megatron ties the output layer to the embeddings without --untie-embeddings-and-output-weights; a hybrid's "
     "output layer has its own weights",
     ModelFamily::Hybrid},
    {"moe-router-score-function",
     "Megatron's routers use softmax without --moe-router-score-function; Braid's use sigmoid", ModelFamily::Any, true},
    {"moe-router-load-balancing-type",
     "Megatron balances experts over a microbatch without --moe-router-load-balancing-type; Braid balances them over a "
     "sequence",
     ModelFamily::Any, true},
};

}  // namespace

bool has_experts(const MegatronCommand& command) { return command.has_any({"num-experts", "num-moe-experts"}); }

std::vector<std::string> megatron_defaults(const MegatronCommand& command, ModelFamily family) {
  std::vector<std::string> told;
  for (const Default& setting : kDefaults) {
    const bool is_said = command.has_any(split(setting.flags, ' '));
    const bool holds = (setting.family == ModelFamily::Any || setting.family == family) &&
                       (!setting.of_experts || has_experts(command));
    if (holds && !is_said) told.push_back(setting.what);
  }
  return told;
}

}  // namespace braid
