// Recipes from the flags of Megatron-LM; megatron_script_test.cpp has the scripts around them.
#include "cli/from_megatron.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cli/from_megatron_support.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::converted;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::refusal;
using testing::squeezed;
using testing::TemporaryFolder;

// Flags whose variables only the shell of a job expands.
std::string in_a_job(const std::string& flags) { return "srun bash -c 'torchrun x.py " + flags + "'"; }

TEST(FromMegatron, ALlama) {
  const std::string recipe =
      squeezed(converted(R"(torchrun --nproc_per_node 8 --nnodes 2 --node_rank 0 pretrain_gpt.py \
    --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192 \
    --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 \
    --hidden-dropout 0.0 --swiglu --normalization RMSNorm --init-method-std 0.0134 --attention-backend fused \
    --apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 \
    --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748 --lr-warmup-samples 3906252 \
    --lr 0.00015 --min-lr 0.00001 --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 \
    --adam-beta2 0.95 --bf16 --grad-reduce-in-bf16 --fp8-format hybrid --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \
    --mock-data --tokenizer-type NullTokenizer --vocab-size 128000 --data-cache-path "/tmp/a b" --split '99,1,0' \
    --log-interval 1 --eval-iters 32 --save-interval 1000 --ckpt-format torch_dist --save "/ckpt/my run" \
    --distributed-timeout-minutes 60 --wandb-project p --recompute-activations --initial-loss-scale 65536)"));
  for (const char* line : {"layers: 32 # --num-layers",
                           "hidden: 4096 ",
                           "ffn: 14336 ",
                           "heads: 32 ",
                           "kv_heads: 8 ",
                           "head_dim: 128 ",
                           "vocab: 128000 # --vocab-size, padded",
                           "rope_theta: 1000000 ",
                           "tie_embeddings: false ",
                           "init_std: 0.0134 ",
                           "provider: tiny-llava ",
                           "dtype: bfloat16 ",
                           "tp: 2 ",
                           "pp: 2 ",
                           " dp: 4\n",
                           "samples: 1953125000 ",
                           "decay_style: cosine ",
                           "sequence_length: 8192 ",
                           "hang_limit_s: 3600 ",
                           "save: \"/ckpt/my run\" ",
                           "zero: true "})
    EXPECT_THAT(recipe, HasSubstr(line));
  EXPECT_THAT(recipe,
              AllOf(HasSubstr("# --fp8-format hybrid: for a hybrid, set model.fp8"), HasSubstr("--wandb-project p"),
                    HasSubstr("# --swiglu: Llama's MLP uses SwiGLU\n"), Not(HasSubstr("images"))));
  EXPECT_THAT(recipe,
              AllOf(HasSubstr("--recompute-activations: attention never keeps"), HasSubstr("# --initial-loss-scale"),
                    Not(HasSubstr("recompute: true")), Not(HasSubstr("loss_scale:"))));
  EXPECT_THAT(recipe, Not(HasSubstr("--group-query-attention:")));
}

// Megatron ignores these modules, too.
TEST(FromMegatron, ModulesToRecomputeThatTheModelDoesNotHaveAreLeftOut) {
  const std::string dense =
      "--num-layers 2 --hidden-size 128 --num-attention-heads 4 --bf16 --llm-dp 1 --vocab-size 512 --seq-length 128 ";
  EXPECT_THAT(squeezed(converted(dense + "--recompute-modules layernorm moe layernorm")),
              AllOf(HasSubstr("recompute: norms # --recompute-modules"),
                    HasSubstr("# --recompute-modules: this model has no experts\n")));
  EXPECT_THAT(squeezed(converted(dense + "--moe-layer-recompute")),
              AllOf(HasSubstr("recompute: false "), HasSubstr("# --moe-layer-recompute: this model has no experts\n")));
  EXPECT_THAT(squeezed(converted(dense + "--num-experts 4 --recompute-modules layernorm moe")),
              AllOf(HasSubstr("recompute: \"norms,experts\" "), Not(HasSubstr("this model has no"))));
  EXPECT_THAT(squeezed(converted(dense + "--recompute-granularity full")), HasSubstr("recompute: full "));
}

TEST(FromMegatron, RecomputesAllThatTheFlagsAskForTogether) {
  const std::string moe =
      "--num-layers 2 --hidden-size 128 --num-attention-heads 4 --bf16 --llm-dp 1 --num-experts 4 --vocab-size 512 "
      "--seq-length 128 ";
  for (const char* modules : {"--recompute-modules core_attn", "--recompute-modules layernorm"})
    for (const std::string& flags : {std::string("--recompute-granularity full ") + modules,
                                     modules + std::string(" --recompute-granularity full")})
      EXPECT_THAT(squeezed(converted(moe + flags)), HasSubstr("recompute: full ")) << flags;
  EXPECT_THAT(squeezed(converted(moe + "--moe-layer-recompute --recompute-modules layernorm")),
              HasSubstr("recompute: \"experts,norms\" "));
}

TEST(FromMegatron, AMambaHybrid) {
  const std::string recipe = squeezed(converted(
      "--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer --position-embedding-type none "
      "--untie-embeddings-and-output-weights --hybrid-layer-pattern M-M-M--M-M*-M-M- --hidden-size 4096 "
      "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 --train-samples "
      "73242188 "
      "--lr-warmup-samples 50000 --lr-decay-samples 73192188 --micro-batch-size 4 --global-batch-size 8 --lr 2.5e-4 "
      "--min-lr 2.5e-5 --lr-decay-style cosine --bf16 --disable-bias-linear --normalization RMSNorm --squared-relu "
      "--hidden-dropout 0 --attention-dropout 0 --use-mcore-models "
      "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --padded-vocab-size 256000",
      {"--llm-dp=2"}));
  for (const char* line : {"pattern: \"M-M-M--M-M*-M-M-\" ", "mamba_heads: 128 ", "mamba_head_dim: 64 ",
                           "mamba_groups: 8 ", "mamba_state: 128 ", "ffn: 16384 # Megatron's default",
                           "head_dim: 128 # hidden / heads", "vocab: 256000 ", "dp: 2 # command line", "tp: 4 "})
    EXPECT_THAT(recipe, HasSubstr(line));
  EXPECT_THAT(recipe, AllOf(Not(HasSubstr("Chosen")), Not(HasSubstr("does not support it"))));
}

TEST(FromMegatron, PureMambaHasNoPattern) {
  const std::string model =
      "torchrun pretrain_mamba.py --num-layers 3 --hidden-size 256 --num-attention-heads 2 "
      "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --vocab-size 512 --seq-length 128 ";
  EXPECT_THAT(squeezed(converted(model)), AllOf(HasSubstr("provider: tiny-vlm"), HasSubstr("pattern: MMM ")));
  EXPECT_THAT(refusal(model + "--hybrid-attention-ratio 0.08"), HasSubstr("--hybrid-override-pattern"));
}

// Braid has no such model: the recipe has the nearest one, and lists the differences.
TEST(FromMegatron, AMixtureOfExperts) {
  const std::string recipe = squeezed(converted(
      "--num-layers 4 --hidden-size 1024 --ffn-hidden-size 2048 --num-attention-heads 16 --group-query-attention "
      "--num-query-groups 8 --position-embedding-type rope --swiglu --num-experts 8 --moe-router-topk 2 "
      "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm "
      "--moe-token-dispatcher-type alltoall --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500 "
      "--lr-decay-iters 320 --lr-warmup-fraction .1 --tensor-model-parallel-size 2 --expert-model-parallel-size 8 "
      "--vocab-size 32000 --seq-length 4096 --bf16 --rotary-base 1000000"));
  for (const char* line : {"pattern: \"*E*E*E*E\" ", "experts: 8 ", "top_k: 2 ", "expert_ffn: 2048 ", "shared_ffn: 0 ",
                           "expert_bias_rate: 0 ", "ep: 8 ", " dp: 4\n", "warmup_iterations: 32 ",
                           "decay_style: linear ", "vocab: 32000 ", "zero: false "})
    EXPECT_THAT(recipe, HasSubstr(line));
  for (const char* line :
       {"# --swiglu: a hybrid's MLPs use squared ReLU",
        "# --position-embedding-type rope: Llama has rotary embeddings; a hybrid's attention has no position "
        "embeddings",
        "# --rotary-base 1000000: a hybrid's attention has no position embeddings",
        "--moe-router-load-balancing-type aux_loss: the only balancing loss",
        "Megatron uses 10 % dropout without --hidden-dropout 0", "language.dp 4: the number of ranks"})
    EXPECT_THAT(recipe, HasSubstr(line));
  EXPECT_THAT(recipe, Not(HasSubstr("# --num-layers 4")));  // the pattern comes from it
}

TEST(FromMegatron, TwoGrids) {
  const std::string recipe = squeezed(converted(
      "python -m torch.distributed.run --standalone --nproc-per-node 72 train_hetero.py --model-provider "
      "nemotron-moe-vlm-54l --dataset-provider mock --encoder-tp 1 --encoder-dp 8 --llm-offset 8 --llm-tp 2 --llm-dp "
      "32 "
      "--llm-ep 16 --class-token-len 10 --image-token-id 511 --pixel-shuffle --vision-model-type radio "
      "--micro-batch-size 1 --num-microbatches 6 --train-iters 5000 --lr 1.2e-3 --min-lr 1.2e-5 --lr-decay-style WSD "
      "--lr-decay-samples 121046313 --lr-wsd-decay-samples 1 --lr-wsd-decay-style minus_sqrt --weight-decay 0.1 "
      "--training-stage stage2 --no-overlap-grad-reduce --overlap-grad-reduce --bf16 --packing-buffer-size 4 "
      "--mimo-encoder-prefetch --max-num-tiles 12 --use-distributed-optimizer"));
  for (const char* line :
       {"provider: nemotron-vlm-54l ", "images:\n kind: encoder\n dp: 8 ", "rank_offset: 8 ", "dp: 32 ", "ep: 16 ",
        "global_batch: 192 # micro batch x replicas x microbatches", "class_tokens: 10 ", "token_id: 511 ",
        "stage: stage2 ", "prefetch: 2 ", "packing_buffer: 4 "})
    EXPECT_THAT(recipe, HasSubstr(line));
  EXPECT_THAT(recipe,
              AllOf(Not(HasSubstr("hidden:")), HasSubstr("max_tiles: 12 # --max-num-tiles"), HasSubstr("mock: true ")));
}

TEST(FromMegatron, ADataSet) {
  const std::string model =
      "--hidden-size 128 --num-layers 2 --num-attention-heads 4 --bf16 --llm-dp 2 --vocab-size 512 --seq-length 128 ";
  const std::string recipe =
      squeezed(converted(model + "--data-path /data/blend.yaml --tokenizer-type MultimodalTokenizer --tokenizer-model "
                                 "/tok --tokenizer-prompt-format chatml --decoder-seq-length 512"));
  for (const char* line : {"path: /data/blend.yaml ", "tokenizer: /tok ", "prompt_format: chatml ",
                           "sequence_length: 512 ", "eval_interval: 1000 # Megatron's default"})
    EXPECT_THAT(recipe, HasSubstr(line));
  // A run of these would not notice that the data set is missing.
  for (const char* data : {"--data-path $DATA", "--data-path /text_document"})
    EXPECT_THAT(squeezed(converted(in_a_job(model + data))),
                AllOf(HasSubstr("mock: false # --data-path is left out"), Not(HasSubstr(" path:"))));
  EXPECT_THAT(squeezed(converted(in_a_job(model + "--data-path $DATA --mock-data"))), HasSubstr("mock: true"));
  // Text with weights needs no tokenizer.
  EXPECT_THAT(squeezed(converted(in_a_job(model + "--data-path 0.5 /a 0.5 /b --split 99,1,0"))),
              AllOf(HasSubstr("path: \"0.5 /a 0.5 /b\" "), HasSubstr("document_split: \"99,1,0\" ")));
}

// Megatron's own vision-language scripts put the encoder on the ranks of the language model.
TEST(FromMegatron, AnEncoderOnTheSameRanks) {
  const std::string recipe = squeezed(converted(
      "torchrun --nproc_per_node 8 examples/multimodal/train.py --swiglu --normalization RMSNorm --num-layers 32 "
      "--hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size "
      "14336 "
      "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 --seq-length 576 --decoder-seq-length 1024 "
      "--train-iters 20000 --micro-batch-size 1 --global-batch-size 256 --lr-decay-iters 20000 --lr-warmup-fraction "
      ".01 "
      "--lr 0.00015 --min-lr 1.0e-5 --lr-decay-style cosine --bf16 --freeze-LM --freeze-ViT --patch-dim 14 --img-h 336 "
      "--img-w 336 --disable-bias-linear --language-model-type=mistral_7b --disable-vision-class-token "
      "--untie-embeddings-and-output-weights --class-token-len 1 --vocab-size 32000",
      {"--model.images.encoder.hidden=1024", "--model.images.encoder.layers=24", "--model.images.encoder.heads=16",
       "--model.images.encoder.ffn=4096", "--model.images.encoder.image_side=336",
       "--model.images.projector.input=1024", "--model.images.projector.hidden=4096"}));
  for (const char* line :
       {"colocated: true ", "images:\n kind: encoder\n dp: 2\n", "output: 4096 ", "sequence_length: 1024 ",
        "warmup_iterations: 200 ", "freeze_encoders: true ", "freeze_language: true ", "patch: 14 ",
        "# --class-token-len: tiny-llava has no model.images.encoder.class_tokens"})
    EXPECT_THAT(recipe, HasSubstr(line));
}

TEST(FromMegatron, TheEncoderOfTheProviderIsTold) {
  EXPECT_THAT(squeezed(converted("--micro-batch-size 1 --vision-model-type radio")),
              HasSubstr("--vision-model-type radio: the encoder is that of tiny-llava; set its sizes below "
                        "model.images.encoder"));
}

// A toy's sizes would give a model that nobody asked for.
TEST(FromMegatron, SizesThatNoFlagGivesAreMissing) {
  const std::string llama =
      "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --micro-batch-size 1 ";
  EXPECT_THAT(refusal(llama),
              AllOf(HasSubstr("2 sizes are missing"), HasSubstr("where: --from-megatron, --hidden-size"),
                    HasSubstr("set model.language.vocab, data.sequence_length; the flags are --seq-length, "
                              "--vocab-size")));
  EXPECT_THAT(refusal(llama + "--vocab-size 32000 --seq-length 512 --img-h 336"),
              AllOf(HasSubstr("set model.images.encoder.hidden, model.images.encoder.layers"),
                    HasSubstr("the flag is --patch-dim")));
  // A size that only a shell knows is not Megatron's default.
  EXPECT_THAT(refusal(in_a_job("--num-layers 2 --hidden-size 64 --num-attention-heads 2 --vocab-size 99 --seq-length 8 "
                               "--ffn-hidden-size $FFN")),
              HasSubstr("set model.language.ffn; the flag is --ffn-hidden-size"));
}

TEST(FromMegatron, TheVocabularyIsThatOfTheTokenizer) {
  const std::string model =
      "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --tensor-model-parallel-size 2 ";
  const TemporaryFolder folder;
  const std::string tokenizer = folder.write("tokenizer.json", R"({"model": {"type": "BPE", "merges": [],
    "vocab": {"a": 0, "b": 1, "c": 2}}, "added_tokens": [], "pre_tokenizer": null, "normalizer": null})");
  EXPECT_THAT(squeezed(converted(model + "--tokenizer-type HuggingFaceTokenizer --tokenizer-model " + tokenizer)),
              HasSubstr("vocab: 256 # the size of --tokenizer-model, padded"));
  EXPECT_THAT(refusal(model + "--tokenizer-model meta-llama/Meta-Llama-3-8B"), HasSubstr("set model.language.vocab;"));
}

TEST(FromMegatron, UnsupportedMegatronDefaultsAreListed) {
  const std::string sizes =
      "--num-layers 2 --hidden-size 128 --num-attention-heads 4 --micro-batch-size 1 --vocab-size 512 --seq-length "
      "128 ";
  const std::string gpt = squeezed(converted(sizes + "--num-query-groups 2"));
  EXPECT_THAT(gpt, AllOf(HasSubstr("kv_heads: 4 # no --group-query-attention"), HasSubstr("ffn: 512 "),
                         HasSubstr("Megatron's MLPs use GELU"), Not(HasSubstr("softmax")), Not(HasSubstr("ties"))));
  const std::string experts = squeezed(converted(sizes + "--num-experts 4 --swiglu"));
  EXPECT_THAT(experts, AllOf(HasSubstr("routers use softmax"), HasSubstr("balances experts over a microbatch"),
                             HasSubstr("ties the output layer"), Not(HasSubstr("GELU without"))));
}

TEST(FromMegatron, OfFlagsWithOneKeyTheMoreSpecificCounts) {
  const std::string recipe = squeezed(converted(
      "--decoder-seq-length 128 --encoder-seq-length 64 --seq-length 64 --log-interval 7 --tensorboard-log-interval 1 "
      "--tensor-model-parallel-size 1 --llm-tp 2 --padded-vocab-size 1024 --vocab-size 1000 --micro-batch-size 1"));
  for (const char* line : {"sequence_length: 128 # --decoder-seq-length", "interval: 7 # --log-interval",
                           " tp: 2 # --llm-tp", "vocab: 1024 # --padded-vocab-size"})
    EXPECT_THAT(recipe, HasSubstr(line));
}

TEST(FromMegatron, BraidsOwnFlagsAffectDerivedValues) {
  const std::string recipe = squeezed(converted(
      "torchrun --nproc-per-node 8 x.py --tensor-model-parallel-size 2 --micro-batch-size 1", {"--llm-tp=4"}));
  EXPECT_THAT(recipe, AllOf(HasSubstr("tp: 4 # command line"), HasSubstr(" dp: 2\n"), Not(HasSubstr("which follow"))));
}

// Only a shell can expand the folder; flags that need it are left out with it.
TEST(FromMegatron, WithoutItsFolderAFlagIsLeftOut) {
  const std::string recipe = squeezed(
      converted(in_a_job("--exit-on-missing-checkpoint --load $CKPT --save $CKPT --save-interval 5 --lr 1e-3")));
  EXPECT_THAT(recipe, AllOf(HasSubstr("--exit-on-missing-checkpoint: --load is left out"),
                            HasSubstr("--save-interval: --save is left out"), HasSubstr("--load $CKPT"),
                            Not(HasSubstr("must_exist"))));
  EXPECT_THAT(converted("--save-interval 5 --lr 1e-3"), HasSubstr("--save-interval: it needs --save FOLDER"));
  EXPECT_THAT(converted(in_a_job("--exit-on-missing-checkpoint --load $CKPT"), {"--load=ckpt"}),
              HasSubstr("must_exist: true"));
  EXPECT_THAT(squeezed(converted("--exit-on-missing-checkpoint --load ckpt")),
              AllOf(HasSubstr("load: ckpt "), HasSubstr("must_exist: true ")));
}

TEST(FromMegatron, ValuesStayInTheirCommentsAndQuotes) {
  const std::string recipe = converted("--wandb-project 'a\ntrain: {lr: 7}' --save 'x\"\ny' --lr 1e-3 --train-iters 3");
  EXPECT_THAT(recipe, AllOf(HasSubstr("#   --wandb-project a train: {lr: 7}: use"), HasSubstr("save: \"x\\\" y\"")));
}

TEST(FromMegatron, InvalidCommandLinesAreRefused) {
  EXPECT_THAT(refusal("--save 'x"), HasSubstr("quote"));
  EXPECT_THAT(refusal("python train.py"), HasSubstr("no command with flags"));
  const std::string sizes =
      "--hidden-size 64 --num-attention-heads 2 --untie-embeddings-and-output-weights --vocab-size 512 --seq-length "
      "128 ";
  for (const std::string model : {"", "--num-experts 2 "})
    EXPECT_THAT(refusal(sizes + model + "--num-layers 3 --pipeline-model-parallel-size 2"),
                AllOf(HasSubstr("--num-layers 3 is not divisible by --pipeline-model-parallel-size 2"),
                      HasSubstr("use 2 or 4")));
  converted(sizes + "--num-layers 3 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1");
  converted(sizes + "--hybrid-layer-pattern *-* --num-layers 3 --pipeline-model-parallel-size 2");
  EXPECT_THAT(
      refusal(sizes + "--num-layers 8 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3"),
      HasSubstr("the 4 layers of a pipeline rank are not divisible by 3"));
  EXPECT_THAT(refusal("torchrun --nproc-per-node 6 x.py --tensor-model-parallel-size 4 --lr 1"),
              AllOf(HasSubstr("6 ranks are not divisible by tp x cp x pp = 4"),
                    HasSubstr("where: --from-megatron, 'torchrun --nproc-per-node 6'")));
  EXPECT_THAT(refusal("torchrun --nproc-per-node 1 x.py --tensor-model-parallel-size 4 --lr 1"),
              HasSubstr("1 rank is not divisible by tp x cp x pp = 4"));
  EXPECT_THAT(refusal("torchrun --nproc-per-node 2 x.py --encoder-dp 2 --lr 1"),
              HasSubstr("2 ranks are too few for the encoder and the language model"));
  EXPECT_THAT(
      refusal("--hidden-size big --num-microbatches -1 --lr abc"),
      AllOf(HasSubstr("3 problems"), HasSubstr("--hidden-size should be an integer"),
            HasSubstr("--num-microbatches should be an integer"), HasSubstr("--from-megatron, --lr (train.lr)")));
  EXPECT_THAT(refusal("--hidden-size 100 --num-attention-heads 8 --hybrid-override-pattern M*M- --num-layers 5"),
              AllOf(HasSubstr("--hidden-size 100 is not divisible by --num-attention-heads 8"),
                    HasSubstr("2 x --hidden-size = 200 is not divisible by --mamba-head-dim 64"),
                    HasSubstr("--num-layers 5 contradicts the pattern, which has 4")));
  EXPECT_THAT(refusal("--hidden-size 64 --num-attention-heads 2 --num-layers 2 --pipeline-model-parallel-size 2"),
              HasSubstr("the flag is --untie-embeddings-and-output-weights"));
  EXPECT_THAT(
      refusal("--hidden-size 2147483647 --num-attention-heads 2147483647 --tensor-model-parallel-size 2147483647 "
              "--expert-model-parallel-size 65521 --micro-batch-size 2147483647 --num-experts 2"),
      HasSubstr("the recipe from --from-megatron"));
  EXPECT_THAT(refusal("--bf16 --fp16 --lr 1"), HasSubstr("--bf16 and --fp16"));
  EXPECT_THAT(refusal("--micro-batch-size 3 --global-batch-size 8"),
              AllOf(HasSubstr("global_batch=8 is not a multiple of"),
                    HasSubstr("where: --from-megatron, --global-batch-size (train.global_batch)")));
}

TEST(FromMegatron, LeftOutFlagsAreAlsoListedOnStandardError) {
  const Finished run = braid({"train", "--from-megatron",
                              in_a_job("--lr $LR --wandb-project p --wandb-exp-name q --own 3 --use-mcore-models "
                                       "--micro-batch-size 1"),
                              "--print-recipe"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err,
            "braid: left out (the first lines of the recipe say why):\n"
            "  --lr, --wandb-exp-name q, --wandb-project p, --own 3\n");
}

TEST(FromMegatron, VirtualStagesAreThoseOfTheRecipe) {
  const std::string model =
      "--hidden-size 64 --num-attention-heads 2 --untie-embeddings-and-output-weights --num-layers 12 "
      "--pipeline-model-parallel-size 2 --global-batch-size 8 --vocab-size 512 --seq-length 128 ";
  EXPECT_THAT(converted(model + "--num-layers-per-virtual-pipeline-stage 2"), HasSubstr("vpp: 3"));
  EXPECT_THAT(converted(model + "--num-virtual-stages-per-pipeline-rank 2"), HasSubstr("vpp: 2"));
}

TEST(FromMegatron, MisuseIsRefused) {
  const TemporaryFolder folder;
  const auto refused = [](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"train", "--print-recipe"};
    all.insert(all.end(), words.begin(), words.end());
    const Finished run = braid(all);
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_THAT(run.out, IsEmpty());
    return run.err;
  };
  const std::string none = folder.path() + "/none.sh";
  EXPECT_THAT(refused({"--from-megatron", none}),
              AllOf(HasSubstr("cannot read '" + none + "': No such file"), HasSubstr("where: --from-megatron\n"),
                    HasSubstr("fix:   give a file with shell text")));
  EXPECT_THAT(refused({"--from-megatron", folder.path()}), HasSubstr("Is a directory"));
  EXPECT_THAT(refused({"--from-megatron", ""}), HasSubstr("--from-megatron: its value is empty"));
  EXPECT_THAT(refused({BRAID_SOURCE_DIR "/recipes/tiny-vlm.yaml", "--from-megatron", "--lr 1"}),
              HasSubstr("the command line also gives one"));
  EXPECT_THAT(braid({"train", "--from-megatron", "--lr 1"}).err, HasSubstr("add --print-recipe"));
}

}  // namespace
}  // namespace braid
