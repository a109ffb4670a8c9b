#include "cluster/megatron/hetero_flags.h"
#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

// NAME[=OTHER NAME] KIND DEFAULT, then one of
//   -> KEY          the recipe key that gets the value; of a switch that is on: -> KEY=VALUE
//   : WHY           Braid needs no such flag
//   ! WHY           Braid does not do it
//   nothing         the conversion reads it
// KIND is switch, pair, int, float, text or the choices a|b. "-" is no default.
constexpr std::string_view kTable = R"(
encoder-offset int 0 -> topology.modules.images.rank_offset
encoder-tp int 2 -> topology.modules.images.tp
encoder-cp int 1 -> topology.modules.images.cp
encoder-pp int 2 -> topology.modules.images.pp
encoder-dp int 1 -> topology.modules.images.dp
encoder-ep int 1 -> topology.modules.images.ep
encoder-expt-tp int - -> topology.modules.images.expt_tp
encoder-expt-dp int - -> topology.modules.images.expt_dp
llm-offset int 4 -> topology.modules.language.rank_offset
llm-tp int 1 -> topology.modules.language.tp
llm-cp int 1 -> topology.modules.language.cp
llm-pp int 2 -> topology.modules.language.pp
llm-dp int 2 -> topology.modules.language.dp
llm-ep int 2 -> topology.modules.language.ep
llm-expt-tp int 1 -> topology.modules.language.expt_tp
llm-expt-dp int - -> topology.modules.language.expt_dp
llm-only switch -
model-provider=model-preset mock|nemotron-moe-vlm-20l|nemotron-moe-vlm-54l mock
hidden-size int 128
num-layers int 2
num-attention-heads int 8
vocab-size int 512
seq-length int 32
image-seq-length int - : the number of a picture's tokens follows from its size
image-token-id int 511
pad-token-id int 0 : padding is never learned and changes nothing
image-token text <image>
tokenizer-model text -
tokenizer-prompt-format text nemotron6-moe
image-tag-type |nvlm|internvl -
force-system-message switch - ! data.system is the system turn of conversations that have none
num-moe-experts int 4
moe-router-topk int 1
moe-router-force-load-balancing switch - -> model.language.force_load_balancing=true
moe-grouped-gemm switch - : each operator has only one implementation
img-h int 512
img-w int 512
patch-dim int 16 -> model.images.encoder.patch
class-token-len int 8 -> model.images.encoder.class_tokens
num-image-tiles=max-num-tiles int 12 -> data.pictures.max_tiles
vision-model-type text radio
pixel-shuffle switch -
disable-vision-class-token switch - : class tokens are removed after the encoder
use-tiling switch -
use-thumbnail switch -
dynamic-resolution pair -
dynamic-resolution-min-patches int 4 -> data.pictures.min_patches
dynamic-resolution-max-patches int 0 -> data.pictures.max_patches
freeze-lm switch - -> train.freeze_language=true
freeze-vit switch - -> train.freeze_encoders=true
freeze-projection switch - -> train.freeze_projection=true
training-stage stage1|stage2|stage3 -
vision-projection-type mlp|affine affine -> model.images.projector.kind
fp32 switch -
enable-experimental switch - : nothing has to be enabled
timeline-profile switch -
timeline-dir text -
timeline-cuda-events switch - : a trace has the GPU's time of every phase
timeline-nvtx switch - ! a trace has no NVTX ranges; log.profile records kernels
timeline-ranks text dp-replica : every rank writes its trace
timeline-dp-replica int 0 : every rank writes its trace
dataset-provider mock|energon_multimodal mock
data-path text -
num-workers int 2 -> loader.num_workers
packing-buffer-size int - -> loader.packing_buffer
shuffle-buffer-size int 100 -> loader.shuffle_buffer
max-samples-per-sequence int 100 -> loader.max_samples_per_sequence
validate-energon-data-alignment pair false : an encoder and its language replicas always compare their samples
dataloader-save text - : checkpoints contain the position in the data set
dataloader-load text - : checkpoints contain the position in the data set
energon-sample-trace-dir text - -> log.sample_trace_dir
micro-batch-size int 2 -> train.micro_batch
num-microbatches int 2
global-batch-size int -
train-iters int 2
train-samples int -
lr float 1e-4 -> train.lr
min-lr float 0 -> train.min_lr
lr-decay-style constant|linear|cosine|inverse-square-root|WSD constant -> train.decay_style
lr-warmup-iters int 0
lr-decay-iters int -
lr-warmup-samples int -
lr-decay-samples int -
lr-wsd-decay-samples int - -> train.wsd_decay_samples
lr-wsd-decay-style linear|cosine|exponential|minus_sqrt - -> train.wsd_decay_style
weight-decay float 0.01 -> train.weight_decay
adam-beta1 float 0.9 -> optimizer.beta1
adam-beta2 float 0.999 -> optimizer.beta2
clip-grad float 1.0 -> optimizer.clip_grad
log-num-zeros-in-grad switch - -> log.num_zeros=true
overlap-grad-reduce pair false -> optimizer.overlap_grad_reduce
overlap-param-gather pair false -> optimizer.overlap_param_gather
ddp-bucket-size int 10000
ddp-num-buckets int -
ddp-pad-buckets-for-high-nccl-busbw pair false -> optimizer.pad_buckets
correct-encoder-grad-for-partial-participation pair true -> train.correct_partial_participation
seed int 12345 -> train.seed
log-interval int 1 -> log.interval
tensorboard-dir text - -> log.tensorboard_dir
save text - -> checkpoint.save
load text -
save-interval int - -> checkpoint.save_interval
no-save-optim switch - -> checkpoint.save_optimizer=false
no-save-rng switch - -> checkpoint.save_rng=false
no-load-optim switch -
no-load-scheduler switch -
no-load-rng switch -
finetune switch -
load-nemotron-checkpoint text -
load-vision-from text -
dist-ckpt-optim-fully-reshardable pair false -> checkpoint.fully_reshardable
)";

constexpr std::pair<std::string_view, HeteroFlag::Kind> kKinds[] = {
    {"switch", HeteroFlag::Switch}, {"pair", HeteroFlag::Pair}, {"int", HeteroFlag::Integer},
    {"float", HeteroFlag::Number},  {"text", HeteroFlag::Text},
};

// Cuts the text at the mark, and returns what follows it.
std::string take_behind(std::string& text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == text.npos) return "";
  const std::string behind = text.substr(at + mark.size());
  text.resize(at);
  return behind;
}

struct Table {
  std::vector<HeteroFlag> flags{};
  std::map<std::string, HeteroOption, std::less<>> options{};  // by every name
};

HeteroFlag read_row(std::string row, std::string& other_name) {
  HeteroFlag flag;
  flag.left_out = take_behind(row, " ! ");
  flag.no_effect = take_behind(row, " : ");
  flag.key = take_behind(row, " -> ");
  flag.value = take_behind(flag.key, "=");
  const std::vector<std::string> words = split(row, ' ');
  flag.name = words.at(0);
  other_name = take_behind(flag.name, "=");
  const auto kind = std::ranges::find(kKinds, words.at(1), &std::pair<std::string_view, HeteroFlag::Kind>::first);
  flag.kind = kind == std::end(kKinds) ? HeteroFlag::Choice : kind->second;
  if (flag.kind == HeteroFlag::Choice) flag.choices = split(words[1], '|');
  if (words.size() > 2 && words[2] != "-") flag.otherwise = words[2];
  return flag;
}

const Table& table() {
  static const Table all = [] {
    Table made;
    std::vector<std::pair<std::string, std::size_t>> others;
    for (const std::string& row : split(kTable, '\n')) {
      if (row.empty()) continue;
      std::string other;
      made.flags.push_back(read_row(row, other));
      if (!other.empty()) others.emplace_back(other, made.flags.size() - 1);
    }
    for (const HeteroFlag& flag : made.flags) {
      made.options[flag.name] = {&flag, flag.name, false};
      if (flag.kind == HeteroFlag::Pair) made.options["no-" + flag.name] = {&flag, "no-" + flag.name, true};
    }
    for (const auto& [name, at] : others) made.options[name] = {&made.flags[at], name, false};
    return made;
  }();
  return all;
}

bool places_a_grid(const HeteroFlag& flag) { return flag.key.starts_with("topology.") || flag.name == "llm-only"; }

}  // namespace

const std::vector<HeteroFlag>& hetero_flags() { return table().flags; }

const HeteroFlag* find_hetero_flag(std::string_view name) {
  const auto found = std::ranges::find(hetero_flags(), name, &HeteroFlag::name);
  return found == hetero_flags().end() ? nullptr : &*found;
}

std::vector<HeteroOption> hetero_options(std::string_view prefix) {
  const auto& options = table().options;
  std::vector<HeteroOption> found;
  for (auto at = options.lower_bound(prefix); at != options.end() && at->first.starts_with(prefix); ++at) {
    found.push_back(at->second);
    if (at->first == prefix) break;
  }
  return found;
}

std::string refusal_of(const HeteroFlag& flag, const std::string& value) {
  switch (flag.kind) {
    case HeteroFlag::Integer: return parse_int64(value) ? "" : "an integer";
    case HeteroFlag::Number: return parse_double(value) ? "" : "a number";
    case HeteroFlag::Choice: {
      if (contains(flag.choices, value)) return "";
      std::vector<std::string> words = flag.choices;
      std::erase(words, "");
      return joined(words, " or ");
    }
    case HeteroFlag::Switch:
    case HeteroFlag::Pair:
    case HeteroFlag::Text: break;
  }
  return "";
}

bool names_hetero_program(const std::string& word) {
  const std::string path = word.ends_with(".py") ? word.substr(0, word.size() - 3) : word;
  return path.substr(path.find_last_of("/.") + 1).starts_with("train_hetero");
}

bool is_hetero_command(const std::vector<std::string>& words) {
  if (std::ranges::any_of(words, names_hetero_program)) return true;
  bool all_known = true, places = false;
  for (const std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const auto found = hetero_options(word.substr(2, word.find('=') - 2));
    all_known &= found.size() == 1;
    places |= found.size() == 1 && places_a_grid(*found[0].flag);
  }
  return all_known && places;
}

}  // namespace braid
