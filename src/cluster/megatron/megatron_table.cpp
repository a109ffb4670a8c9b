// The table of Megatron-LM's flags.

#include "base/error.h"
#include "base/strings.h"
#include "cluster/megatron/megatron_flags.h"

namespace braid {
namespace {

// FLAGS (FAMILY) -> KEY=VALUE: WHY || OTHERWISE
//
// Flags that share the rest of a row stand together; an indented line continues its row.
//   --name      a switch
//   --name=     takes a value; =a/b: the row holds only for these, theirs:ours renames one, hybrid:a is a hybrid's
//   --name=*    takes several values; an accepted flag with OTHERWISE takes one
//   KEY.*       the key has the flag's name, without encoder- or llm-
//   =N, =N*60   the value depends on other flags; is in another unit
//   OTHERWISE   the reason for other values and for the other family; after "no effect:" these have no effect, else
//               they are not supported
constexpr std::string_view kTable = R"(
[accepted]
lr= min-lr= weight-decay= weight-decay-incr-style= end-weight-decay= eval-interval= seed= -> train.*
overlap-grad-reduce overlap-param-gather -> optimizer.*=true
load= load-vision-from= save= save-interval= -> checkpoint.*
exit-duration-in-mins= exit-interval= -> stop.*
metrics-file= tensorboard-dir= -> log.*
encoder-tp= encoder-cp= encoder-dp= encoder-pp= encoder-ep= encoder-expt-tp= encoder-expt-dp=
  -> topology.modules.images.*
llm-dp= llm-expt-dp= -> topology.modules.language.*
data-path=* -> data.path
mock-data -> data.mock=true
num-workers= max-samples-per-sequence= -> loader.*
packing-buffer-size= -> loader.packing_buffer
shuffle-buffer-size= -> loader.shuffle_buffer
seq-length= decoder-seq-length= packing-seq-length= dataloader-seq-length= -> data.sequence_length
eval-iters= -> train.eval_iterations
split= -> data.document_split
tokenizer-model= -> data.tokenizer
tokenizer-prompt-format= -> data.prompt_format
image-tag-type= -> data.image_tag
dynamic-resolution -> data.pictures.fit=dynamic
no-dynamic-resolution -> data.pictures.fit=square
use-tiling -> data.pictures.fit=tiles
use-thumbnail -> data.pictures.thumbnail=true
max-num-tiles= -> data.pictures.max_tiles
dynamic-resolution-min-patches= -> data.pictures.min_patches
dynamic-resolution-max-patches= -> data.pictures.max_patches
dynamic-resolution-min-side= -> data.pictures.min_side
adam-beta1= -> optimizer.beta1
adam-beta2= -> optimizer.beta2
adam-eps= -> optimizer.eps
async-save -> checkpoint.async=true
clip-grad= -> optimizer.clip_grad
bf16 -> model.dtype=bfloat16
context-parallel-size= llm-cp= -> topology.modules.language.cp
correct-encoder-grad-for-partial-participation -> train.correct_partial_participation=true
ddp-bucket-size= -> optimizer.bucket_size
ddp-num-buckets= -> optimizer.bucket_count
ddp-pad-buckets-for-high-nccl-busbw -> optimizer.pad_buckets=true
deterministic-mode -> train.deterministic=true
dist-ckpt-optim-fully-reshardable -> checkpoint.fully_reshardable=true
distributed-backend= -> dist.backend
encoder-offset= -> topology.modules.images.rank_offset
exit-on-missing-checkpoint -> checkpoint.must_exist=true
expert-model-parallel-size= llm-ep= -> topology.modules.language.ep
expert-tensor-parallel-size= llm-expt-tp= -> topology.modules.language.expt_tp
finetune -> checkpoint.finetune=true
fp32 -> model.dtype=float32
freeze-LM freeze-lm -> train.freeze_language=true
freeze-ViT freeze-vit -> train.freeze_encoders=true
freeze-projection -> train.freeze_projection=true
global-batch-size= -> train.global_batch
hysteresis= -> loss_scale.hysteresis
llm-offset= -> topology.modules.language.rank_offset
llm-pp= pipeline-model-parallel-size= -> topology.modules.language.pp
llm-vpp= num-virtual-stages-per-pipeline-rank= -> topology.modules.language.vpp
llm-tp= tensor-model-parallel-size= -> topology.modules.language.tp
load-fallback -> checkpoint.load_fallback=always
load-nemotron-checkpoint= -> checkpoint.load_nemotron
log-interval= -> log.interval
log-num-zeros-in-grad -> log.num_zeros=true
loss-scale= -> loss_scale.initial
loss-scale-window= -> loss_scale.growth_interval
lr-decay-iters= -> train.decay_iterations
lr-decay-samples= -> train.decay_samples
lr-decay-style= -> train.decay_style
lr-warmup-init= -> train.init_lr
lr-warmup-iters= -> train.warmup_iterations
lr-warmup-samples= -> train.warmup_samples
lr-wsd-decay-iters= -> train.wsd_decay_iterations
lr-wsd-decay-samples= -> train.wsd_decay_samples
lr-wsd-decay-style= -> train.wsd_decay_style
micro-batch-size= -> train.micro_batch
min-loss-scale= -> loss_scale.min
model-provider= -> model.provider
moe-router-force-load-balancing -> model.language.force_load_balancing=true
no-load-optim -> checkpoint.load_optimizer=false
no-load-rng -> checkpoint.load_rng=false
no-load-scheduler -> checkpoint.load_scheduler=false
no-overlap-grad-reduce -> optimizer.overlap_grad_reduce=false
no-overlap-param-gather -> optimizer.overlap_param_gather=false
no-save-optim -> checkpoint.save_optimizer=false
no-save-rng -> checkpoint.save_rng=false
overlap-moe-expert-parallel-comm -> model.expert_overlap_pieces=2
override-opt-param-scheduler -> checkpoint.scheduler=recipe
overwrite-checkpoints -> checkpoint.overwrite=true
sequence-parallel -> model.sequence_parallel=true
profile -> log.profile.enabled=true
profile-ranks=* -> log.profile.ranks || write --profile-ranks 0,3
profile-step-end= -> log.profile.step_end
profile-step-start= -> log.profile.step_start
tp-comm-overlap -> model.tp_overlap_pieces=2
trace= -> log.trace_dir
train-iters= -> train.iterations
train-samples= -> train.samples
training-stage= -> train.stage
use-checkpoint-opt-param-scheduler -> checkpoint.scheduler=checkpoint
use-distributed-optimizer -> optimizer.zero=true
[no effect]
group-query-attention: model.language.kv_heads sets the number of groups
make-vocab-size-divisible-by=: model.language.vocab is the padded size, a multiple of tp
swiglu (Llama): Llama's MLP uses SwiGLU || a hybrid's MLPs use squared ReLU
squared-relu (hybrid): a hybrid's MLPs and experts use squared ReLU || Llama's MLP uses SwiGLU
use-fused-weighted-squared-relu (hybrid): each operator has only one implementation || Llama's MLP uses SwiGLU
normalization=RMSNorm: the language models use RMSNorm, and the encoders use LayerNorm
disable-bias-linear: the language models' linear layers have no biases
hidden-dropout=0 attention-dropout=0: there is no dropout
position-embedding-type=rope/hybrid:none: Llama has rotary embeddings; a hybrid's attention has no position embeddings
use-rotary-position-embeddings (Llama): Llama has rotary embeddings || a hybrid's attention has no position embeddings
no-position-embedding: there are no learned position embeddings
max-position-embeddings=: no position table limits the length; data.sequence_length sets it
rotary-percent=1: rotary embeddings apply to all channels of a head
is-hybrid-model spec=*: model.provider determines this
moe-router-enable-expert-bias: model.language.expert_bias_rate sets the bias update rate; 0 means no bias
moe-router-score-function=sigmoid: routers use sigmoid scores
moe-router-load-balancing-type=seq_aux_loss/none: the loss is per sequence; model.language.aux_loss_coeff=0 turns it
  off || the only balancing loss is per sequence, seq_aux_loss
moe-router-dtype=fp32: routers compute in fp32
moe-token-dispatcher-type=alltoall: tokens are exchanged by all-to-all
moe-grouped-gemm moe-permute-fusion moe-router-fusion: each operator has only one implementation
moe-shared-expert-overlap: the shared expert runs while rows travel to their experts
disable-vision-class-token: class tokens are removed after the encoder
vision-model-type=radio/clip: model.provider determines this || encoders are RADIO, CLIP and audio
data-cache-path=: the index is stored with the data set
num-dataset-builder-threads=: data sets are tar shards, which braid data prepare has indexed
dataloader-type=external: samples come in Energon's order
dataloader-save= dataloader-load=: checkpoints contain the position in the data set
no-create-attention-mask-in-dataloader: attention needs no mask
reset-position-ids reset-attention-mask: the samples of a packed sequence are independent of each other
log-validation-ppl-to-tensorboard: always logged
tokenizer-type=: the file of data.tokenizer determines this; mock samples need no tokenizer
pad-token-id=: padding is never learned and changes nothing
eos-id=: the tokenizer's files name it
sft: data.prompt_format determines which tokens are learned
img-w=: tiles and pictures of one size are squares: see --img-h
accumulate-allreduce-grads-in-fp32: gradients are summed in fp32
attention-softmax-in-fp32: softmax is computed in fp32
apply-query-key-layer-scaling: it prevents overflow in fp16; softmax is computed in fp32
transformer-impl= use-te use-mcore-models attention-backend= use-flash-attn no-masked-softmax-fusion
  no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion no-persist-layer-norm
  no-gradient-accumulation-fusion cross-entropy-loss-fusion cross-entropy-fusion-impl=: each operator has only one
  implementation
use-cpu-initialization: initial weights depend only on seed, name and position, not on the device
te-rng-tracker: random numbers depend only on seed and name
enable-experimental: nothing has to be enabled
recompute-activations: attention never keeps its scores (core_attn); --recompute-modules names other parts
manual-gc manual-gc-interval=: Braid does not run Python and has no garbage collector
empty-unused-memory-level=: cached memory is released when memory runs out
cp-comm-type=*a2a: context parallelism uses all-to-all (a2a)
ddp-average-in-collective: gradients are summed, and then divided once by the step's tokens
disable-gloo-process-groups: every group has one backend
local-rank= lazy-mpu-init=: the topology determines the ranks; Braid reads the launcher's environment variables
optimizer=adam: the optimizer is AdamW
initial-loss-scale=: bf16 has no dynamic loss scale, as in Megatron; loss_scale.dynamic=true enables it
calculate-per-token-loss: the loss is divided by the tokens of the whole step
check-for-nan-in-loss-and-grad: a step whose loss or gradient is not finite is skipped; train.max_skipped such steps
  in a row end the run
rerun-mode=disabled: steps are not repeated
main-params-dtype=fp32 main-grads-dtype=fp32 exp-avg-dtype=fp32 exp-avg-sq-dtype=fp32: always fp32
exit-signal-handler: after SIGTERM or SIGUSR1, a run finishes its iteration, saves and ends
ckpt-format=torch_dist dist-ckpt-format=torch_dist: checkpoints use torch_dist || checkpoints use torch_dist; convert
  other formats with Megatron first
use-dist-ckpt: checkpoints use torch_dist
auto-detect-ckpt-format: unreadable formats are refused
ckpt-fully-parallel-save: every rank writes its share
ckpt-fully-parallel-load: every rank reads what it needs
ckpt-assume-constant-structure: the layout determines the index of a save
use-persistent-ckpt-worker: a background thread on each rank writes checkpoints
dist-ckpt-strictness=assume_ok_unexpected/raise_unexpected: loading fails with a list of what is missing; extra
  tensors are ignored
no-use-tokenizer-model-from-checkpoint-args: no tokenizer is loaded from a checkpoint
log-throughput log-timers-to-tensorboard log-memory-to-tensorboard log-progress log-loss-scale-to-tensorboard
  log-batch-size-to-tensorboard log-learning-rate-to-tensorboard timing-log-level=: always logged
timing-log-option=: the log shows means over the ranks of a module
tensorboard-queue-size=: points are written immediately
use-pytorch-profiler: --profile always uses libtorch's profiler
[recipe key]
hidden-size= -> model.language.hidden
ffn-hidden-size= -> model.language.ffn: Megatron's default: 4 x hidden, or 8/3 x hidden with --swiglu
num-layers= (Llama) -> model.language.layers || no effect: a hybrid has one letter per layer in model.language.pattern
num-attention-heads= -> model.language.heads
num-query-groups= -> model.language.kv_heads: without --group-query-attention: equal to the number of heads
kv-channels= -> model.language.head_dim: Megatron's default: hidden / heads
vocab-size= -> model.language.vocab: padded to a multiple of 128 x tp, as Megatron does
padded-vocab-size= -> model.language.vocab
init-method-std= -> model.language.init_std
norm-epsilon= -> model.language.norm_eps
rotary-base= (Llama) -> model.language.rope_theta || a hybrid's attention has no position embeddings
untie-embeddings-and-output-weights (Llama) -> model.language.tie_embeddings=false || no effect: a hybrid's output
  layer always has its own weights
hybrid-layer-pattern= hybrid-override-pattern= (hybrid) -> model.language.pattern: quote the pattern: the shell
  expands * || for Llama, set model.language.layers
mamba-num-heads= -> model.language.mamba_heads: Megatron's default: 2 x hidden / head dim
mamba-head-dim= -> model.language.mamba_head_dim
mamba-num-groups= -> model.language.mamba_groups
mamba-state-dim= -> model.language.mamba_state
num-experts= num-moe-experts= -> model.language.experts
moe-router-topk= -> model.language.top_k
moe-ffn-hidden-size= -> model.language.expert_ffn: Megatron's default: --ffn-hidden-size
moe-shared-expert-intermediate-size= -> model.language.shared_ffn
moe-router-topk-scaling-factor= -> model.language.router_scaling
moe-aux-loss-coeff= -> model.language.aux_loss_coeff
moe-router-bias-update-rate= -> model.language.expert_bias_rate
moe-layer-recompute -> model.recompute=experts: keeps only the normed input and the routing
image-token-id= -> model.images.token_id
class-token-len= -> model.images.encoder.class_tokens
patch-dim= -> model.images.encoder.patch
pixel-shuffle -> model.images.pixel_shuffle=true
vision-projection-type= -> model.images.projector.kind
mimo-encoder-prefetch -> train.prefetch=2
dataset-provider=mock -> data.mock=true || leave it out: data.path and the dataset.yaml there say how samples are read
encoder-seq-length= total-seq-length= -> data.sequence_length: it includes image tokens
img-h= -> data.pictures.tile_side: the side of tiles, and of pictures of one size
recompute-granularity=full -> model.recompute=full: keeps only each layer's input || no effect: attention never keeps
  its scores (core_attn); --recompute-modules names other parts
recompute-modules=*core_attn/layernorm:norms/moe_act:activations/moe:experts -> model.recompute: layernorm is norms,
  moe_act is activations, moe is experts; core_attn is never kept || an MLP or a shared expert is not recomputed as a
  whole: use model.recompute=activations, or full; there is no latent attention
distributed-timeout-minutes= -> dist.hang_limit_s=N*60: in seconds
num-layers-per-virtual-pipeline-stage= -> topology.modules.language.vpp=N: N is layers / pp / the value of this flag
lr-warmup-fraction= -> train.warmup_iterations=N: N is this fraction of the decay's iterations
num-microbatches= -> train.global_batch=N: N is microbatches x micro batch size x replicas of the language model
tensorboard-log-interval= -> log.interval: TensorBoard points are written with the log lines
[not supported]
quick-geglu openai-gelu: Llama's MLP uses SwiGLU; a hybrid's MLPs use squared ReLU
apply-layernorm-1p: norm weights are stored without subtracting 1
add-qkv-bias: query, key and value have no biases in the language models
qk-layernorm: queries and keys are not normalized
rotary-seq-len-interpolation-factor= use-rope-scaling rope-scaling-factor=: rotary embeddings are not scaled; change
  model.language.rope_theta
rotary-interleaved: rotary embeddings rotate the two halves of a head
no-rope-freq=: every layer of Llama has rotary embeddings; a hybrid's attention has none
window-size=: attention sees the whole sequence
multi-latent-attention q-lora-rank= kv-lora-rank= qk-head-dim= qk-pos-emb-head-dim= v-head-dim=: multi-latent
  attention is not supported
mtp-num-layers= mtp-loss-scaling-factor=: multi-token prediction is not supported
hybrid-attention-ratio= hybrid-mlp-ratio=: write out every layer in model.language.pattern
linear-conv-kernel-dim=: linear attention is not supported; model.language.mamba_conv sets the kernel size of Mamba's
  convolution
moe-flex-dispatcher-backend=: tokens are exchanged by all-to-all
moe-router-pre-softmax: routers use sigmoid scores
moe-router-num-groups= moe-router-group-topk=: a token chooses among all experts
moe-z-loss-coeff=: the only balancing loss is per sequence, seq_aux_loss
moe-input-jitter-eps=: router inputs get no noise
moe-expert-capacity-factor= moe-pad-expert-input-to-capacity moe-token-drop-policy=: experts process every token:
  there is no capacity limit and no token dropping
moe-layer-freq=: in a hybrid's model.language.pattern, E is a layer with experts
moe-shared-expert-gate: the shared expert has no gate
moe-latent-size=: experts use the model's hidden size
moe-use-upcycling: convert the checkpoint first
moe-per-layer-logging: the log shows the mean over layers
moe-extended-tp: use --expert-tensor-parallel-size
language-model-type=: set model.provider and change its sizes
llm-only: leave the module images out of the recipe's topology
encoder-ddp-overlap: --overlap-grad-reduce overlaps the reductions of all modules, encoders included
language-model-checkpoint=: braid ckpt convert --recipe makes a checkpoint from Hugging Face folders; load it with
  --load --finetune
allow-missing-vision-projection-checkpoint: loading is strict: the run fails with a list of missing tensors
dataset-config=: give the data set or metadataset as data.path
train-data-path=* valid-data-path=* test-data-path=*: data.path is one data set, metadataset or blend of texts;
  data.split and data.valid_split name its splits
data-args-path= per-split-data-args-path=: write a metadataset, a .yaml file with weights, and give it as data.path
no-mmap-bin-files: data sets are tar shards, which braid data prepare has indexed
mock-dataset-size=: the number of mock samples is unlimited
packing-knapsack-algorithm=: loader.packing is greedy or even
eod-mask-loss: data.prompt_format determines which tokens are learned
skip-train: use braid eval RECIPE --load CHECKPOINT
online-evaluation-config=: use --eval-interval and --eval-iters
vocab-file= merge-file= tiktoken-pattern=: data.tokenizer is a tokenizer.json, a sentencepiece .model, or a folder
  with one of them
vocab-extra-ids=: add the tokens to tokenizer.json
special-tokens=*: add the tokens to tokenizer.json, as special ones
image-token=: pictures are <image> in the text; model.images.token_id is its id
force-system-message: data.system is the system turn of conversations that have none
prompt-path=: captions are answers without a question: put prompts into the samples
image-seq-length= num-image-tiles=: the number of a picture's tokens follows from its size, see data.pictures
use-tile-tags: tiles of a picture follow each other without tags
use-area-weighted-aspect-ratio: tiles are chosen by the nearest aspect ratio
num-frames=: videos are not supported
fp16 fp4-format=: use --bf16
fp8-format= fp8-recipe= fp8-margin= fp8-interval= fp8-amax-history-len= fp8-amax-compute-algo= fp8-param-gather: for a
  hybrid, set model.fp8: rowwise besides --bf16 (docs/training.md)
first-last-layers-bf16 num-layers-at-start-in-bf16= num-layers-at-end-in-bf16=: model.fp8 is for all layers of a
  hybrid; else use --bf16
grad-reduce-in-bf16: gradients are summed in fp32
data-parallel-random-init: replicas start from the same weights
init-model-with-meta-device: each rank creates only its own shard of the weights
enable-cuda-graph cuda-graph-impl= cuda-graph-scope=*: steps are not captured as CUDA graphs
recompute-method= recompute-num-layers=: model.recompute applies to all layers
distribute-saved-activations: use --sequence-parallel
microbatch-group-size-per-virtual-pipeline-stage= overlap-p2p-communication-warmup-flush no-overlap-p2p-communication:
  interleaving uses groups of pp microbatches; transfers overlap
decoder-first-pipeline-num-layers= decoder-last-pipeline-num-layers= pipeline-model-parallel-layout=
  account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split: in a hybrid's model.language.pattern, |
  begins a pipeline stage
tp-comm-overlap-cfg=: model.tp_overlap_pieces applies to all linear maps alike
defer-embedding-wgrad-compute delay-wgrad-compute: weight gradients are not deferred
use-tp-pp-dp-mapping: ranks are numbered tp, cp, dp, pp; place modules with rank_offset
num-distributed-optimizer-instances=: optimizer state is sharded over all replicas
use-megatron-fsdp use-torch-fsdp2 data-parallel-sharding-strategy=: use --use-distributed-optimizer: optimizer state
  is sharded, parameters are not
overlap-param-gather-with-optimizer-step: use --overlap-param-gather
no-align-param-gather: each stage gathers parameters after its update
use-nccl-ub: NCCL's environment variables set which buffers it registers
use-sharp: NCCL's environment variables choose its algorithms
nccl-communicator-config-path=: NCCL's environment variables configure its communicators
high-priority-stream-groups=*: all groups have streams of the same priority
tensor-parallel-num-weight-shards= expert-tensor-parallel-num-weight-shards=: weights are split only over tp
rampup-batch-size=* step-batch-size-schedule= decrease-batch-size-if-needed: the batch size is the same in every step
decoupled-lr= decoupled-min-lr=: all parameters share one learning rate
start-weight-decay=: use --weight-decay for the start and --end-weight-decay for the end
no-check-for-nan-in-loss-and-grad: a step whose loss or gradient is not finite is skipped; train.max_skipped such
  steps in a row end the run
check-for-spiky-loss: the metrics file contains the loss of every iteration
check-for-large-grads: --clip-grad limits the gradient norm, and the log shows it
check-weight-hash-across-dp-replicas-interval=: braid ckpt verify checks what was saved
optimizer-cpu-offload: optimizer state stays on the device
use-precision-aware-optimizer: main parameters and moments are fp32
adlr-autoresume: use braid launch slurm --requeue
enable-ft-package: braid launch slurm --requeue restarts a job; braid doctor says why it ended
inprocess-restart: braid launch slurm --requeue restarts a job
no-ckpt-fully-parallel-save: every rank writes its share
use-checkpoint-args: the recipe describes the model; braid ckpt show prints what was saved
pretrained-checkpoint=: start once with --load FOLDER --finetune
ckpt-step=: give that iteration's folder: --load FOLDER/iter_0000100
save-retain-interval=: checkpoint.keep_last sets how many checkpoints are kept
non-persistent-save-interval=: saves are asynchronous: use a shorter --save-interval
load-main-params-from-ckpt: main parameters are loaded with the optimizer state, or copied from the weights
async-strategy=: a background thread on each rank writes checkpoints
log-params-norm: the log shows the norm of the gradients, not of the parameters
log-world-size-to-tensorboard: the first lines of the log show the ranks
log-straggler: the log shows where each module's time goes
log-energy: use the cluster's tools
logging-level=: there is only one level
wandb-project= wandb-exp-name= wandb-save-dir= wandb-entity= one-logger-project=: use --tensorboard-dir (wandb reads
  its files) or --metrics-file
record-memory-history memory-snapshot-path=: the log shows the memory of the rank that uses most
)";

constexpr struct {
  const char* title;
  FlagVerdict verdict;
} kSections[] = {{"[accepted]", FlagVerdict::Taken},
                 {"[no effect]", FlagVerdict::AlreadySo},
                 {"[recipe key]", FlagVerdict::Rewritten},
                 {"[not supported]", FlagVerdict::Unsupported}};

// Removes `mark` and what follows it from the text, and returns what followed.
std::string cut_at(std::string& text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == text.npos) return "";
  const std::string rest = text.substr(at + mark.size());
  text.resize(at);
  return rest;
}

void take_values(const std::string& values, MegatronFlag& flag) {
  const bool many = values.starts_with('*');
  flag.values = many ? FlagValues::Many : FlagValues::One;
  for (std::string value : split(values.substr(many ? 1 : 0), '/')) {
    const std::string renamed = cut_at(value, ":");
    std::string& allowed = value == "hybrid" ? flag.only_for_hybrid : flag.only_for;
    if (!renamed.empty() && value != "hybrid") flag.renamed.push_back({value, renamed});
    allowed += (allowed.empty() ? "" : " ") + (value == "hybrid" ? renamed : value);
  }
}

void add_row(std::string row, FlagVerdict verdict, std::vector<MegatronFlag>& flags) {
  MegatronFlag shared{.name = "", .verdict = verdict, .values = FlagValues::None};
  shared.otherwise = cut_at(row, " || ");
  if (constexpr std::string_view kNoEffect = "no effect: "; shared.otherwise.starts_with(kNoEffect)) {
    shared.other_verdict = FlagVerdict::AlreadySo;
    shared.otherwise.erase(0, kNoEffect.size());
  }
  shared.why = cut_at(row, ": ");
  shared.key = cut_at(row, " -> ");
  shared.value = cut_at(shared.key, "=");
  if (shared.value == "N" || shared.value.starts_with("N*")) {
    shared.factor = shared.value == "N" ? 0 : parse_double(shared.value.substr(2)).value();
    shared.value.clear();
  }
  for (const std::string& word : split(row, ' ')) {
    if (word == "(Llama)" || word == "(hybrid)") continue;
    MegatronFlag& flag = flags.emplace_back(shared);
    flag.name = word.substr(0, word.find('='));
    if (flag.key.ends_with('*')) {
      std::string own = flag.name.substr(flag.name.starts_with("encoder-") ? 8 : flag.name.starts_with("llm-") ? 4 : 0);
      std::ranges::replace(own, '-', '_');
      flag.key.replace(flag.key.size() - 1, 1, own);
    }
    if (row.ends_with("(Llama)")) flag.family = ModelFamily::Llama;
    if (row.ends_with("(hybrid)")) flag.family = ModelFamily::Hybrid;
    if (flag.name.size() < word.size()) take_values(word.substr(flag.name.size() + 1), flag);
    if (!flag.only_for.empty() && flag.otherwise.empty()) flag.otherwise = flag.why;
  }
}

}  // namespace

std::vector<MegatronFlag> parse_flag_table(std::string_view table) {
  std::vector<MegatronFlag> flags;
  FlagVerdict verdict{};
  std::string row;
  const auto end_row = [&] {
    if (!row.empty()) add_row(std::move(row), verdict, flags);
    row.clear();
  };
  for (const std::string& line : split(table, '\n')) {
    if (line.starts_with("  ")) {
      row += line.substr(1);
      continue;
    }
    end_row();
    row = line;
    for (const auto& [title, its_verdict] : kSections)
      if (line == title) verdict = its_verdict, row.clear();
  }
  end_row();
  std::ranges::sort(flags, {}, &MegatronFlag::name);
  for (std::size_t i = 1; i < flags.size(); ++i)
    BRAID_CHECK(flags[i - 1].name != flags[i].name, "--{} is in the table twice", flags[i].name);
  return flags;
}

const std::vector<MegatronFlag>& megatron_flags() {
  static const std::vector<MegatronFlag> all = parse_flag_table(kTable);
  return all;
}

}  // namespace braid
