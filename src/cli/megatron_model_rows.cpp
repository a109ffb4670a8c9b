// Flags of Megatron-LM about the model.
#include "cli/megatron_table.h"

namespace braid {
namespace {

using namespace megatron_rows;

// Reasons that several flags share.
constexpr const char* kNoMla = "multi-latent attention is not supported";
constexpr const char* kEveryToken = "experts process every token: there is no capacity limit and no token dropping";
constexpr const char* kPositions = "Llama has rotary embeddings; a hybrid's attention has no position embeddings";
constexpr const char* kNoNormChoice = "the language models use RMSNorm, and the encoders use LayerNorm";

void add_model(std::vector<Row>& rows) {
  rows.insert(
      rows.end(),
      {
          rewritten("hidden-size", "model.language.hidden"),
          rewritten("ffn-hidden-size", "model.language.ffn",
                    "Megatron's default: 4 x hidden, or 8/3 x hidden with --swiglu"),
          in_family(kLlama, rewritten("num-layers", "model.language.layers"),
                    "a hybrid has one letter per layer in model.language.pattern", FlagVerdict::AlreadySo),
          rewritten("num-attention-heads", "model.language.heads"),
          rewritten("num-query-groups", "model.language.kv_heads",
                    "without --group-query-attention: equal to the number of heads"),
          already("group-query-attention", kNone, "model.language.kv_heads sets the number of groups"),
          rewritten("kv-channels", "model.language.head_dim", "Megatron's default: hidden / heads"),
          rewritten("vocab-size", "model.language.vocab", "padded to a multiple of 128 x tp, as Megatron does"),
          rewritten("padded-vocab-size", "model.language.vocab"),
          already("make-vocab-size-divisible-by", kOne, "model.language.vocab is the padded size, a multiple of tp"),
          rewritten("init-method-std", "model.language.init_std"),
          rewritten("norm-epsilon", "model.language.norm_eps"),
          in_family(kLlama, rewritten("rotary-base", "model.language.rope_theta"),
                    "a hybrid's attention has no position embeddings"),
          in_family(kLlama,
                    rewritten_switch("untie-embeddings-and-output-weights", "model.language.tie_embeddings", "false"),
                    "a hybrid's output layer always has its own weights", FlagVerdict::AlreadySo),
          in_family(kLlama, already("swiglu", kNone, "Llama's MLP uses SwiGLU"), "a hybrid's MLPs use squared ReLU"),
          in_family(kHybrid, already("squared-relu", kNone, "a hybrid's MLPs and experts use squared ReLU"),
                    "Llama's MLP uses SwiGLU"),
          in_family(kHybrid, already("use-fused-weighted-squared-relu", kNone, kOneKernel), "Llama's MLP uses SwiGLU"),
          no("quick-geglu", kNone, "Llama's MLP uses SwiGLU; a hybrid's MLPs use squared ReLU"),
          no("openai-gelu", kNone, "Llama's MLP uses SwiGLU; a hybrid's MLPs use squared ReLU"),
          already_for("RMSNorm", "normalization", kNoNormChoice),
          no("apply-layernorm-1p", kNone, "norm weights are stored without subtracting 1"),
          already("disable-bias-linear", kNone, "the language models' linear layers have no biases"),
          no("add-qkv-bias", kNone, "query, key and value have no biases in the language models"),
          no("qk-layernorm", kNone, "queries and keys are not normalized"),
          already_for("0", "hidden-dropout", "there is no dropout"),
          already_for("0", "attention-dropout", "there is no dropout"),
          {.name = "position-embedding-type",
           .verdict = FlagVerdict::AlreadySo,
           .values = kOne,
           .why = kPositions,
           .only_for = "rope",
           .only_for_hybrid = "none",
           .otherwise = kPositions},
          in_family(kLlama, already("use-rotary-position-embeddings", kNone, "Llama has rotary embeddings"),
                    "a hybrid's attention has no position embeddings"),
          already("no-position-embedding", kNone, "there are no learned position embeddings"),
          already("max-position-embeddings", kOne, "no position table limits the length; data.sequence_length sets it"),
          already_for("1", "rotary-percent", "rotary embeddings apply to all channels of a head"),
          no("rotary-seq-len-interpolation-factor", kOne,
             "rotary embeddings are not scaled; change model.language.rope_theta"),
          no("rotary-interleaved", kNone, "rotary embeddings rotate the two halves of a head"),
          no("use-rope-scaling", kNone, "rotary embeddings are not scaled; change model.language.rope_theta"),
          no("rope-scaling-factor", kOne, "rotary embeddings are not scaled; change model.language.rope_theta"),
          no("no-rope-freq", kOne, "every layer of Llama has rotary embeddings; a hybrid's attention has none"),
          no("window-size", kOne, "attention sees the whole sequence"),
          no("multi-latent-attention", kNone, kNoMla),
          no("q-lora-rank", kOne, kNoMla),
          no("kv-lora-rank", kOne, kNoMla),
          no("qk-head-dim", kOne, kNoMla),
          no("qk-pos-emb-head-dim", kOne, kNoMla),
          no("v-head-dim", kOne, kNoMla),
          no("mtp-num-layers", kOne, "multi-token prediction is not supported"),
          no("mtp-loss-scaling-factor", kOne, "multi-token prediction is not supported"),
          in_family(
              kHybrid,
              rewritten("hybrid-layer-pattern", "model.language.pattern", "quote the pattern: the shell expands *"),
              "for Llama, set model.language.layers"),
          in_family(
              kHybrid,
              rewritten("hybrid-override-pattern", "model.language.pattern", "quote the pattern: the shell expands *"),
              "for Llama, set model.language.layers"),
          no("hybrid-attention-ratio", kOne, "write out every layer in model.language.pattern"),
          no("hybrid-mlp-ratio", kOne, "write out every layer in model.language.pattern"),
          already("is-hybrid-model", kNone, "model.provider determines this"),
          already("spec", kMany, "model.provider determines this"),
          rewritten("mamba-num-heads", "model.language.mamba_heads", "Megatron's default: 2 x hidden / head dim"),
          rewritten("mamba-head-dim", "model.language.mamba_head_dim"),
          rewritten("mamba-num-groups", "model.language.mamba_groups"),
          rewritten("mamba-state-dim", "model.language.mamba_state"),
          no("linear-conv-kernel-dim", kOne,
             "linear attention is not supported; model.language.mamba_conv sets the kernel size of Mamba's "
             "convolution"),
      });
}

void add_experts(std::vector<Row>& rows) {
  rows.insert(
      rows.end(),
      {
          rewritten("num-experts", "model.language.experts"),
          rewritten("num-moe-experts", "model.language.experts"),
          rewritten("moe-router-topk", "model.language.top_k"),
          rewritten("moe-ffn-hidden-size", "model.language.expert_ffn", "Megatron's default: --ffn-hidden-size"),
          rewritten("moe-shared-expert-intermediate-size", "model.language.shared_ffn"),
          rewritten("moe-router-topk-scaling-factor", "model.language.router_scaling"),
          rewritten("moe-aux-loss-coeff", "model.language.aux_loss_coeff"),
          rewritten("moe-router-bias-update-rate", "model.language.expert_bias_rate"),
          already("moe-router-enable-expert-bias", kNone,
                  "model.language.expert_bias_rate sets the bias update rate; 0 means no bias"),
          already_for("sigmoid", "moe-router-score-function", "routers use sigmoid scores"),
          already_for("seq_aux_loss none", "moe-router-load-balancing-type",
                      "the loss is per sequence; model.language.aux_loss_coeff=0 turns it off",
                      "the only balancing loss is per sequence, seq_aux_loss"),
          already_for("fp32", "moe-router-dtype", "routers compute in fp32"),
          already_for("alltoall", "moe-token-dispatcher-type", "tokens are exchanged by all-to-all"),
          no("moe-flex-dispatcher-backend", kOne, "tokens are exchanged by all-to-all"),
          already("moe-grouped-gemm", kNone, kOneKernel),
          already("moe-permute-fusion", kNone, kOneKernel),
          already("moe-router-fusion", kNone, kOneKernel),
          no("moe-router-pre-softmax", kNone, "routers use sigmoid scores"),
          no("moe-router-num-groups", kOne, "a token chooses among all experts"),
          no("moe-router-group-topk", kOne, "a token chooses among all experts"),
          no("moe-z-loss-coeff", kOne, "the only balancing loss is per sequence, seq_aux_loss"),
          no("moe-input-jitter-eps", kOne, "router inputs get no noise"),
          no("moe-expert-capacity-factor", kOne, kEveryToken),
          no("moe-pad-expert-input-to-capacity", kNone, kEveryToken),
          no("moe-token-drop-policy", kOne, kEveryToken),
          no("moe-layer-freq", kOne, "in a hybrid's model.language.pattern, E is a layer with experts"),
          already("moe-shared-expert-overlap", kNone, "the shared expert runs while rows travel to their experts"),
          no("moe-shared-expert-gate", kNone, "the shared expert has no gate"),
          no("moe-latent-size", kOne, "experts use the model's hidden size"),
          no("moe-use-upcycling", kNone, "convert the checkpoint first"),
          no("moe-per-layer-logging", kNone, "the log shows the mean over layers"),
          no("moe-extended-tp", kNone, "use --expert-tensor-parallel-size"),
          rewritten_switch("moe-layer-recompute", "model.recompute", "experts",
                           "keeps only the normed input and the routing"),
      });
}

void add_vision(std::vector<Row>& rows) {
  rows.insert(rows.end(),
              {
                  already("disable-vision-class-token", kNone, "class tokens are removed after the encoder"),
                  already_for("radio clip", "vision-model-type", "model.provider determines this",
                              "encoders are RADIO, CLIP and audio"),
                  no("language-model-type", kOne, "set model.provider and change its sizes"),
                  rewritten("image-token-id", "model.images.token_id"),
                  rewritten("class-token-len", "model.images.encoder.class_tokens"),
                  rewritten("patch-dim", "model.images.encoder.patch"),
                  rewritten_switch("pixel-shuffle", "model.images.pixel_shuffle", "true"),
                  rewritten("vision-projection-type", "model.images.projector.kind"),
                  no("llm-only", kNone, "leave the module images out of the recipe's topology"),
                  rewritten_switch("mimo-encoder-prefetch", "train.prefetch", "2"),
                  no("encoder-ddp-overlap", kNone,
                     "--overlap-grad-reduce overlaps the reductions of all modules, encoders included"),
                  no("language-model-checkpoint", kOne,
                     "braid ckpt convert --recipe makes a checkpoint from Hugging Face folders; load it with --load "
                     "--finetune"),
                  no("allow-missing-vision-projection-checkpoint", kNone,
                     "loading is strict: the run fails with a list of missing tensors"),
              });
}

}  // namespace

void add_model_rows(std::vector<MegatronFlag>& rows) {
  add_model(rows);
  add_experts(rows);
  add_vision(rows);
}

}  // namespace braid
