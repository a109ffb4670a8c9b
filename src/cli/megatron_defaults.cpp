#include "cli/megatron_defaults.h"

#include "base/strings.h"

namespace braid {
namespace {

struct Default {
  const char *flags, *what;  // it holds unless one of the flags is given
  ModelFamily family = ModelFamily::Any;
  bool of_experts = false;
};

constexpr Default kDefaults[] = {
    {"hidden-dropout", "Megatron drops out 10 % without --hidden-dropout 0; there is no dropout here"},
    {"attention-dropout", "Megatron drops out 10 % without --attention-dropout 0; there is no dropout here"},
    {"normalization", "Megatron has LayerNorm without --normalization; the language models here have RMSNorm"},
    {"disable-bias-linear", "Megatron has biases without --disable-bias-linear; the language models here have none"},
    {"position-embedding-type",
     "Megatron learns positions without --position-embedding-type; here Llama has rotary "
     "ones, a hybrid none"},
    {"swiglu squared-relu quick-geglu openai-gelu",
     "Megatron's MLPs have GELU without --swiglu or --squared-relu; here Llama's have SwiGLU, a hybrid's squared ReLU"},
    {"untie-embeddings-and-output-weights",
     "Megatron ties the output layer to the embeddings without --untie-embeddings-and-output-weights; a hybrid's has "
     "weights of its own",
     ModelFamily::Hybrid},
    {"moe-router-score-function",
     "Megatron's routers score by softmax without --moe-router-score-function; here by sigmoid", ModelFamily::Any,
     true},
    {"moe-router-load-balancing-type",
     "Megatron balances experts over a microbatch without --moe-router-load-balancing-type; here over a sequence",
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
