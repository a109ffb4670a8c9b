#include "cli/from_megatron.h"
#include "base/files.h"
#include "base/strings.h"
#include "data/text/tokenizer.h"
#include "run/recipe.h"

namespace braid {
namespace {

constexpr const char* kSections[] = {"topology",   "model",      "data", "loader", "train", "optimizer",
                                     "loss_scale", "checkpoint", "log",  "stop",   "dist",  "cluster"};

// `kind` and `provider` come before sizes, and in the topology, encoders before the language model.
std::pair<std::ptrdiff_t, std::string> place_of(const std::string& path) {
  const std::string section = path.substr(0, path.find('.')), key = path.substr(path.rfind('.') + 1);
  const bool is_first = key == "kind" || key == "provider";
  return {std::ranges::find(kSections, section) - kSections,
          path.substr(0, path.size() - key.size()) + (is_first ? "" : key)};
}

std::string as_yaml(const std::string& value) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
  const bool is_plain = value.find_first_not_of(kPlain) == value.npos && value.find_first_of("-.") != 0;
  if ((is_plain && !value.empty()) || parse_double(value)) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + '"';
}

// Adds the names of the flags in Megatron's command line: of this key, and of the keys that the advice names. Of
// several flags for a key, the shortest is the usual one (--seq-length, --dataloader-seq-length).
std::string with_flags(const std::string& fix, const std::string& key) {
  std::map<std::string, std::string> flags;
  for (const MegatronFlag& flag : megatron_flags()) {
    const std::size_t at = fix.find(flag.key), end = at + flag.key.size();
    const bool is_named = at != fix.npos && (end == fix.size() || std::string_view(" ,=").find(fix[end]) != fix.npos);
    if (flag.key.empty() || (flag.key != key && !is_named)) continue;
    std::string& known = flags[flag.key];
    if (known.empty() || flag.name.size() + 2 < known.size()) known = "--" + flag.name;
  }
  const auto names = vector_of<std::string>(flags, [](const auto& flag) { return flag.second; });
  if (names.empty()) return fix;
  return fmt::format("{}{}the flag{} {}", fix, fix.empty() ? "" : "; ", names.size() == 1 ? " is" : "s are",
                     fmt::join(names, ", "));
}

const std::map<std::string, std::string> kProviders = {{"nemotron-moe-vlm-20l", "nemotron-vlm-20l"},
                                                       {"nemotron-moe-vlm-54l", "nemotron-vlm-54l"},
                                                       {"nemotron-moe-vlm", "nemotron-vlm-20l"},
                                                       {"llava_vlm", "tiny-llava"},
                                                       {"mock", "tiny-vlm"}};

// Flags that imply a vision encoder.
const std::vector<std::string> kVisionFlags = {"encoder-tp",        "encoder-dp",      "encoder-pp",    "freeze-ViT",
                                               "freeze-vit",        "img-h",           "patch-dim",     "pixel-shuffle",
                                               "vision-model-type", "class-token-len", "model-provider"};

constexpr const char* kSizes[] = {"hidden-size", "num-layers", "num-attention-heads"};

const std::vector<std::string> kEncoderSizes = {"encoder-tp", "encoder-cp", "encoder-dp", "encoder-pp"};

// Flags without their own recipe key that influence the values of other keys.
const std::vector<std::string> kReadElsewhere = {"group-query-attention", "make-vocab-size-divisible-by",
                                                 "moe-router-enable-expert-bias"};

// Flags that need the folder of another flag, whose value may be known only to a shell.
const std::map<std::string, std::string> kNeeded = {{"save-interval", "save"}, {"exit-on-missing-checkpoint", "load"}};

// Flags for uneven pipeline stages; without them, every stage in Megatron has the same number of layers.
const std::vector<std::string> kUnevenStages = {
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout",
    "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"};

// Defaults of Megatron that Braid's models do not support.
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

class Conversion {
 public:
  Conversion(const MegatronCommand& command, const std::vector<ConfigOverride>& overrides)
      : command_(command), overrides_(overrides) {}

  MegatronRecipe run() {
    choose_model();
    add_flags();
    add_recompute();
    add_sizes();
    add_topology();
    add_training();
    add_data();
    for (const ConfigOverride& change : overrides_) set(change.path, change.value, "command line");
    MegatronRecipe recipe = finished();
    recipe.has_model = has_model_;
    return recipe;
  }

 private:
  void choose_model() {
    const bool hybrid =
        is_mamba() || command_.has_any({"hybrid-layer-pattern", "hybrid-override-pattern", "is-hybrid-model",
                                        "num-experts", "num-moe-experts", "squared-relu", "mamba-num-heads"});
    provider_ = hybrid ? "tiny-vlm" : "tiny-llava";
    const auto named = command_.text("model-provider");
    bool is_known = false;
    if (named) {
      const auto translated = kProviders.find(*named);
      const bool is_own = contains(provider_names(), *named);
      is_known = translated != kProviders.end() || is_own;
      if (is_known)
        provider_ = is_own ? *named : translated->second;
      else
        chosen(fmt::format("model.provider {}: there is no provider {}", provider_, *named));
    }
    hybrid_ = std::holds_alternative<HybridLmConfig>(provider(provider_).language);
    vision_ = command_.has_any(kVisionFlags) && !command_.has("llm-only");
    // A named model has its own sizes; otherwise the flags give all sizes, and the provider only selects the kind.
    own_sizes_ = provider_.starts_with("tiny-") && command_.has("hidden-size");
    const auto is_unexpanded = [&](const char* flag) { return command_.is_unexpanded(flag); };
    const bool has_sizes = own_sizes_ && std::ranges::none_of(kSizes, is_unexpanded);
    has_model_ = is_known || has_sizes || beside("model.provider");
    set("model.provider", provider_,
        named        ? "--model-provider"
        : own_sizes_ ? "with other sizes"
                     : "a small model: no flag gives the sizes of your model");
  }

  // As pretrain_mamba.py is told: --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec.
  bool is_mamba() const { return command_.text("spec").value_or("").find("mamba") != std::string::npos; }

  bool has_experts() const { return command_.has_any({"num-experts", "num-moe-experts"}); }

  ModelFamily family() const { return hybrid_ ? ModelFamily::Hybrid : ModelFamily::Llama; }

  // All flags that the table translates one by one.
  void add_flags() {
    Recipe recipe;
    recipe.model.provider = provider_;
    const std::vector<std::string> keys = dotted_keys(to_yaml(recipe));
    for (const auto& [name, value] : command_.flags) {
      const MegatronFlag& flag = *find_megatron_flag(name);
      if (name == "llm-only" || contains(kReadElsewhere, name)) continue;
      if (name == "vision-model-type" && vision_ && provider_.starts_with("tiny-")) {
        leave_out(fmt::format("--{} {}", name, value),
                  fmt::format("the encoder is that of {}; set its sizes below model.images.encoder", provider_));
        continue;
      }
      if (name == "num-layers" && hybrid_) {
        check_layers();
        continue;
      }
      if (name == "data-path" && !reads_data()) {
        leave_out(
            fmt::format("--{} {}", name, value),
            "Braid reads Energon's data sets, with --tokenizer-model and --tokenizer-prompt-format, and Megatron's "
            "text where its files are");
        continue;
      }
      answer_.add(flag, value, family());
      const FlagVerdict verdict = verdict_for(flag, value, family());
      const bool is_written = verdict == FlagVerdict::Taken || verdict == FlagVerdict::Rewritten;
      const bool of_images = flag.key.find(".images.") != std::string::npos;
      if (!is_written || (of_images && !vision_) || flag.factor == 0 || name == "model-provider") continue;
      const auto overrides = [&name = name](const auto& other) { return gives_way(name, other.first); };
      if (std::ranges::any_of(command_.flags, overrides)) continue;
      if (flag.key.starts_with("model.") && !contains(keys, flag.key))
        leave_out("--" + name, fmt::format("{} has no {}", provider_, flag.key));
      else
        set(flag.key, recipe_value(flag, value), "--" + name);
    }
    for (const auto& [name, needed] : kNeeded) {
      if (!command_.has(name) || command_.has(needed) || beside(find_megatron_flag(needed)->key)) continue;
      keys_.erase(find_megatron_flag(name)->key);
      leave_out("--" + name, command_.is_unexpanded(needed) ? fmt::format("--{} is left out", needed)
                                                            : fmt::format("it needs --{} FOLDER", needed));
    }
  }

  // Megatron recomputes modules only where it does not recompute everything.
  void add_recompute() {
    const std::string key = "model.recompute", modules = "recompute-modules";
    if (command_.text("recompute-granularity") == "full") return set(key, "full", "--recompute-granularity");
    if (!command_.has("moe-layer-recompute") || !command_.has(modules)) return;
    const MegatronFlag& flag = *find_megatron_flag(modules);
    const std::string value = command_.text(modules).value_or("");
    std::vector<std::string> parts = {"experts"};
    if (verdict_for(flag, value, family()) == FlagVerdict::Rewritten)
      for (const std::string& part : split(recipe_value(flag, value), ','))
        if (part != "false" && !contains(parts, part)) parts.push_back(part);
    set(key, joined(parts, ","), "--recompute-modules --moe-layer-recompute");
  }

  // Whether a recipe can name the data set. That a path is one of text shows in its weights, or in the files.
  bool reads_data() const {
    return command_.has("data-path") && (has_tokenizer() || names_gpt_data(*command_.text("data-path")));
  }

  bool has_tokenizer() const {
    const auto is_given = [&](const char* flag) { return command_.has(flag) || beside(find_megatron_flag(flag)->key); };
    return is_given("tokenizer-model") && is_given("tokenizer-prompt-format");
  }

  // A recipe whose data set could not be translated must not train on mock samples unnoticed.
  void add_data() {
    const bool asks = command_.has("data-path") || command_.is_unexpanded("data-path");
    const bool reads = reads_data();
    if (asks && !reads && !command_.has("mock-data")) set("data.mock", "false", "--data-path is left out");
    if (reads || command_.has("eval-iters")) by_default("eval-interval", 1000);
  }

  // The value of a key in Braid's own flags.
  std::optional<std::string> beside(const std::string& key) const {
    std::optional<std::string> value;
    for (const ConfigOverride& change : overrides_)
      if (change.path == key) value = change.value;
    return value;
  }
  int beside(const std::string& key, int otherwise) const {
    return parse_int(beside(key).value_or("")).value_or(otherwise);
  }

  // Sets a default of Megatron's that differs from the recipe's. A flag that only a shell can expand has some value.
  template <class Value>
  void by_default(const char* flag, const Value& value) {
    if (!command_.has(flag) && !command_.is_unexpanded(flag))
      set(find_megatron_flag(flag)->key, value, "Megatron's default");
  }

  static int layers_in(const std::string& pattern) {
    return static_cast<int>(std::ssize(pattern) - std::ranges::count(pattern, '|'));
  }

  std::string pattern_given() const {
    return command_.text("hybrid-layer-pattern").value_or(command_.text("hybrid-override-pattern").value_or(""));
  }

  // A hybrid's layers come from its pattern. Without one, and with its own sizes, they come from --num-layers.
  void check_layers() {
    const int asked = integer("num-layers", 1);
    const std::string given = pattern_given();
    if (given.empty() && own_sizes_) return;
    const std::string pattern = given.empty() ? std::get<HybridLmConfig>(provider(provider_).language).pattern
                                              : given.substr(0, given.find('/'));  // after it: MTP's
    const int layers = layers_in(pattern);
    if (asked == layers)
      answer_.add(*find_megatron_flag("num-layers"), std::to_string(asked), family());
    else if (given.empty())
      leave_out(fmt::format("--num-layers {}", asked), fmt::format("{} has {}", provider_, layers));
    else
      refuse("--num-layers", fmt::format("--num-layers {} contradicts the pattern, which has {}", asked, layers),
             fmt::format("leave it out, or write --num-layers {}", layers));
  }

  void add_sizes() {
    const std::string at = "model.language.";
    if (vision_ && command_.has("hidden-size"))
      set("model.images.projector.output", integer("hidden-size", 1), "--hidden-size");
    if (!command_.has("padded-vocab-size")) add_vocab(at + "vocab");
    if (!own_sizes_) return;
    const std::int64_t hidden = integer("hidden-size", 1), heads = std::max(1, integer("num-attention-heads", 1));
    if (!command_.has("group-query-attention"))  // without it, Megatron ignores --num-query-groups
      set(at + "kv_heads", heads, "no --group-query-attention");
    else
      by_default("num-query-groups", 1);
    if (!command_.has("kv-channels"))
      set(at + "head_dim",
          quotient(hidden, heads, "--hidden-size {} is not divisible by --num-attention-heads {}", "--hidden-size",
                   "change one of them, or give --kv-channels"),
          "hidden / heads");
    by_default("ffn-hidden-size", ffn(hidden));
    by_default("init-method-std", 0.02);
    by_default("norm-epsilon", 1e-5);
    if (hybrid_)
      add_hybrid_sizes(hidden);
    else
      by_default("untie-embeddings-and-output-weights", "true");
    for (const auto& [flags, what, of_family, of_experts] : kDefaults)
      if ((of_family == ModelFamily::Any || of_family == family()) && (!of_experts || has_experts()) &&
          !command_.has_any(split(flags, ' ')))
        chosen(what);
  }

  // Megatron pads the size of its tokenizer.
  void add_vocab(const std::string& key) {
    const double unit = static_cast<double>(tp()) * integer("make-vocab-size-divisible-by", 128);
    const auto set_padded = [&](double size, const std::string& from) {
      set(key, std::ceil(size / unit) * unit, from + ", padded");
    };
    if (const auto vocab = number("vocab-size")) return set_padded(*vocab, "--vocab-size");
    if (!own_sizes_) return;
    const std::string path = command_.text("tokenizer-model").value_or("");
    if (is_there(path)) set_padded(load_tokenizer(path).vocab_size(), "the size of --tokenizer-model");
  }

  // As in Megatron, derived sizes must be integers.
  std::int64_t quotient(std::int64_t a, std::int64_t b, const char* what, const char* flag, const char* fix) {
    if (a % b != 0) refuse(flag, fmt::format(fmt::runtime(what), a, b), fix);
    return a / b;
  }

  std::int64_t ffn(std::int64_t hidden) const {
    return command_.has("swiglu") ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden;
  }

  void add_hybrid_sizes(std::int64_t hidden) {
    const std::string at = "model.language.";
    const bool experts = has_experts();
    std::string pattern = pattern_given();
    if (pattern.empty()) {
      for (int i = 0; i < std::min(integer("num-layers", 1), kMostLayersWritten); ++i)
        pattern += is_mamba() ? "M" : experts ? "*E" : "*-";
      set(at + "pattern", pattern,
          is_mamba() ? "--num-layers, all Mamba layers" : "--num-layers: attention, then its MLP");
      for (const char* ratio : {"hybrid-attention-ratio", "hybrid-mlp-ratio"})
        if (number(ratio).value_or(0) > 0)
          refuse(std::string("--") + ratio,
                 fmt::format("--{} gives a ratio, but Braid needs the order of the layers", ratio),
                 "write them out, as in --hybrid-override-pattern 'M-M*-'; Megatron prints its pattern");
    }
    if (pattern.find('M') != std::string::npos) {
      const int head_dim = std::max(1, integer("mamba-head-dim", 64));
      by_default("mamba-head-dim", head_dim);
      if (!command_.has("mamba-num-heads"))
        set(at + "mamba_heads",
            quotient(2 * hidden, head_dim, "2 x --hidden-size = {} is not divisible by --mamba-head-dim {}",
                     "--hidden-size", "change one of them, or give --mamba-num-heads"),
            "2 x hidden / head dim");
      by_default("mamba-num-groups", 8);
      by_default("mamba-state-dim", 128);
      set(at + "mamba_chunk", 128, "Megatron's default");
    }
    if (!experts) return;
    if (!command_.has("moe-ffn-hidden-size"))
      set(at + "expert_ffn", command_.has("ffn-hidden-size") ? integer("ffn-hidden-size", 0) : ffn(hidden),
          "--ffn-hidden-size");
    by_default("moe-router-topk", 2);
    by_default("moe-shared-expert-intermediate-size", 0);
    by_default("moe-router-topk-scaling-factor", 1);
    by_default("moe-aux-loss-coeff", 0);
    if (!command_.has("moe-router-enable-expert-bias"))
      set(at + "expert_bias_rate", 0, "no --moe-router-enable-expert-bias");
  }

  // Clamps sizes beyond any cluster's, whose products would overflow; the recipe's checks refuse them anyway.
  std::int64_t size(const char* llm, const char* megatron) {
    const int in_text = integer(llm, integer(megatron, 1));
    return std::clamp(beside(find_megatron_flag(llm)->key, in_text), 1, 1 << 15);
  }
  std::int64_t tp() { return size("llm-tp", "tensor-model-parallel-size"); }

  void add_topology() {
    const std::int64_t cp = size("llm-cp", "context-parallel-size"),
                       pp = size("llm-pp", "pipeline-model-parallel-size");
    const std::string language = "topology.modules.language.", images = "topology.modules.images.";
    set(language + "kind", "language", "");
    check_stages(pp);
    add_virtual_stages(pp);
    dp_ = beside(language + "dp", integer("llm-dp", 0));
    if (dp_ < 1) {
      dp_ = replicas(tp() * cp * pp, tp() * cp);
      set(language + "dp", dp_, "");
    }
    if (!vision_) return;
    set(images + "kind", "encoder", "");
    if (command_.has_any(kEncoderSizes)) return;
    set("topology.colocated", "true", "Megatron's encoder shares the language model's ranks");
    set(images + "tp", tp(), "");
    set(images + "pp", pp, "");
    set(images + "dp", dp_ * cp, "");
  }

  // Braid can divide layers unevenly, but in a Megatron command line that is a typing error.
  void check_stages(std::int64_t pp) {
    const int layers = integer("num-layers", 0);
    if (!pattern_given().empty() || command_.has_any(kUnevenStages) || layers % pp == 0) return;
    const std::int64_t fewer = layers / pp * pp;
    refuse("--num-layers",
           fmt::format("--num-layers {} is not divisible by --pipeline-model-parallel-size {}", layers, pp),
           fmt::format("use {}{}, or change the other", fewer > 0 ? fmt::format("{} or ", fewer) : "", fewer + pp));
  }

  void add_virtual_stages(std::int64_t pp) {
    const int of_stage = integer("num-layers-per-virtual-pipeline-stage", 0);
    if (of_stage < 1) return;
    const std::string pattern = pattern_given();
    const std::int64_t layers = pattern.empty() ? integer("num-layers", 0) : layers_in(pattern);
    const std::int64_t of_rank = layers / pp;
    if (of_rank % of_stage == 0 && of_rank > 0)
      set("topology.modules.language.vpp", of_rank / of_stage, "--num-layers-per-virtual-pipeline-stage");
    else
      refuse("--num-layers-per-virtual-pipeline-stage",
             fmt::format("the {} of a pipeline rank {} not divisible by {}", counted(of_rank, "layer"),
                         of_rank == 1 ? "is" : "are", of_stage),
             "use a number that divides them");
  }

  // Megatron derives dp from the number of ranks; if that is unknown, the smallest that experts and batch allow.
  std::int64_t replicas(std::int64_t ranks_of_one, std::int64_t ranks_of_stage) {
    std::int64_t of_encoder = vision_ && command_.has_any(kEncoderSizes) ? 1 : 0;
    for (const std::string& flag : kEncoderSizes) of_encoder *= size(flag.c_str(), flag.c_str());
    const std::int64_t ranks = command_.ranks.value_or(0) - of_encoder;
    if (ranks > 0 && ranks % ranks_of_one == 0) return ranks / ranks_of_one;
    if (command_.ranks)
      refuse(fmt::format("'{}'", command_.launcher),
             ranks < 1 ? fmt::format("{} {} too few for the encoder and the language model",
                                     counted(*command_.ranks, "rank"), *command_.ranks == 1 ? "is" : "are")
                       : fmt::format("{} {} not divisible by tp x cp x pp = {}", counted(ranks, "rank"),
                                     ranks == 1 ? "is" : "are", ranks_of_one),
             "start as many ranks as the sizes need, or change the sizes");
    const std::int64_t experts =
        size("llm-ep", "expert-model-parallel-size") * size("llm-expt-tp", "expert-tensor-parallel-size");
    const std::int64_t dp = std::lcm(experts, ranks_of_stage) / ranks_of_stage;
    chosen(fmt::format("language.dp {}: {}; set it with --llm-dp, here or in the recipe", dp,
                       command_.launcher.empty()
                           ? "the number of ranks is an option of torchrun, not of Megatron"
                           : fmt::format("'{}' does not give the number of ranks", command_.launcher)));
    return dp;
  }

  void add_training() {
    const int micro = std::max(1, integer("micro-batch-size", 1));
    if (!command_.has("global-batch-size"))
      set("train.global_batch", 1.0 * micro * static_cast<double>(dp_) * std::max(1, integer("num-microbatches", 1)),
          "micro batch x replicas" + std::string(command_.has("num-microbatches") ? " x microbatches" : ""));
    if (command_.has("bf16") && command_.has("fp16"))
      refuse("--bf16", "--bf16 and --fp16 are both given, and Megatron refuses that", "leave out --fp16");
    if (!command_.has("bf16"))
      set("model.dtype", std::string(command_.has("fp16") ? "bfloat16" : "float32"),
          command_.has("fp16") ? "fp16 is not supported" : "no --bf16");
    by_default("lr-decay-style", "linear");
    if (command_.text("lr-decay-style") == "WSD" && !command_.has("lr-wsd-decay-style"))
      set("train.wsd_decay_style", "exponential", "Megatron's default");
    by_default("log-interval", 100);
    if (!command_.has("use-distributed-optimizer")) set("optimizer.zero", "false", "no --use-distributed-optimizer");
    const auto fraction = number("lr-warmup-fraction");
    if (!fraction) return;
    const auto samples = number(command_.has("lr-decay-samples") ? "lr-decay-samples" : "train-samples");
    const auto iterations = number(command_.has("lr-decay-iters") ? "lr-decay-iters" : "train-iters");
    if (samples)
      set("train.warmup_samples", std::floor(*fraction * *samples), "--lr-warmup-fraction of the decay");
    else if (iterations)
      set("train.warmup_iterations", std::floor(*fraction * *iterations), "--lr-warmup-fraction of the decay");
    else
      leave_out("--lr-warmup-fraction", "it is a fraction of the decay, but no flag gives the length of the decay");
  }

  // --- the recipe under construction --------------------------------------------------------------------------------
  // `from` is the origin of the value, for a comment; empty: none. The last call for a key counts.
  template <class Value>
  void set(const std::string& key, const Value& value, const std::string& from) {
    keys_[key] = {fmt::format("{}", value), from};
  }
  void leave_out(const std::string& flag, const std::string& why) { answer_.unsupported.push_back({flag, why}); }
  void chosen(const std::string& what) { chosen_.push_back({what, ""}); }

  // These two refuse a value that is not a number (integer(): also a negative one) and ignore the flag.
  std::optional<double> number(const std::string& name) {
    const auto value = command_.text(name);
    const auto number = value ? parse_double(*value) : std::nullopt;
    if (value && !number) refuse("--" + name, fmt::format("--{} should be a number, not {}", name, in_quotes(*value)));
    return number;
  }

  int integer(const std::string& name, int otherwise) {
    const auto value = command_.text(name);
    const auto number = value ? parse_int(*value) : otherwise;
    if (number && *number >= 0) return *number;
    refuse("--" + name, fmt::format("--{} should be an integer of at least 0, not {}", name, in_quotes(*value)));
    return otherwise;
  }

  void refuse(const std::string& flag, const std::string& what, const std::string& fix = "") {
    // A value may be read more than once.
    if (std::ranges::find(problems_, what, &Problem::what) == problems_.end())
      problems_.push_back({what, fmt::format("--from-megatron, {}", flag), fix});
  }

  MegatronRecipe finished() {
    check();
    MegatronRecipe recipe;
    recipe.yaml =
        "# Made by `braid train --from-megatron` from a command line for Megatron-LM; docs/megatron-flags.md lists the "
        "flags.\n";
    const auto explain = [&](const char* title, const FlagEntries& entries) {
      if (!entries.empty()) recipe.yaml += fmt::format("# {}:\n{}", title, lines_of(entries, "#   ", 120));
    };
    const auto omit = [&](const char* why, const FlagEntries& entries) {
      explain(why, entries);
      for (const auto& [flag, reason] : entries) recipe.left_out.push_back(flag);
    };
    FlagEntries unexpanded;
    for (const auto& [flag, value] : command_.unexpanded) {
      unexpanded.push_back({flag.empty() ? value : fmt::format("--{} {}", flag, value), ""});
      recipe.left_out.push_back(flag.empty() ? value : "--" + flag);
    }
    explain("Left out, because only a shell can expand it", unexpanded);
    omit("Left out, because the training command does not use it, or only conditionally", command_.skipped);
    omit("Left out, because Braid does not support it", answer_.unsupported);
    omit("Left out, because the model has no such part", absent_);
    omit("Left out, because it is not a known flag of Megatron", command_.unknown);
    explain("Left out, because Braid always does this", answer_.already);
    explain("Chosen, because the command line does not give it", chosen_);
    recipe.yaml += yaml();
    return recipe;
  }

  std::string yaml() const {
    std::string text;
    std::vector<std::string> open;
    for (const auto& [path, value] : keys_) {
      const std::vector<std::string> parts = split(path, '.');
      std::size_t shared = 0;
      while (shared < open.size() && shared + 1 < parts.size() && open[shared] == parts[shared]) ++shared;
      open.assign(parts.begin(), parts.end() - 1);
      for (std::size_t i = shared; i < open.size(); ++i) text += fmt::format("{:{}}{}:\n", "", 2 * i, open[i]);
      const std::string line = fmt::format("{:{}}{}: {}", "", 2 * open.size(), parts.back(), as_yaml(value.text));
      text += value.from.empty() ? line + "\n" : fmt::format("{:<36}  # {}\n", line, value.from);
    }
    return text;
  }

  std::string origin_of(const std::string& key) const {
    const auto found = keys_.find(key);
    return found == keys_.end() ? "" : found->second.from;
  }

  // Megatron ignores modules to recompute that its model does not have, but a recipe must not name them.
  void leave_out_absent_parts() {
    const std::string key = "model.recompute", flag = origin_of(key);
    if (!flag.starts_with("--")) return;
    YamlReader reader = YamlReader::from_text(yaml(), "");
    Recipe recipe;
    describe(reader, recipe);
    const std::vector<std::string> parts = recompute_parts(recipe);
    std::vector<std::string> kept;
    for (const std::string& name : recipe.model.recompute) {
      if (contains(parts, name))
        kept.push_back(name);
      else
        absent_.push_back({flag, fmt::format("this model has no {}", name)});
    }
    if (kept.size() < recipe.model.recompute.size()) set(key, kept.empty() ? "false" : joined(kept, ","), flag);
  }

  // The recipe's problems, named by the flags that cause them.
  void check() {
    try {
      leave_out_absent_parts();
      const Recipe recipe = parse_recipe(yaml());
      const int ranks = Topology(recipe.topology, workload_of(recipe)).world_size();
      if (command_.ranks && *command_.ranks != ranks)
        chosen(fmt::format("{}, which {} from the sizes below: '{}' starts {}", counted(ranks, "rank"),
                           ranks == 1 ? "follows" : "follow", command_.launcher, *command_.ranks));
    } catch (const ConfigError& e) {
      const bool values_refused = !problems_.empty();  // then problems that follow from them add nothing
      for (Problem problem : e.problems()) {
        const std::string key = problem.where.substr(problem.where.rfind(' ') + 1), from = origin_of(key);
        const std::string where = "--from-megatron, " + from;
        const bool is_known = std::ranges::find(problems_, where, &Problem::where) != problems_.end();
        const bool is_flag = from.starts_with("--") && from.find(' ') == std::string::npos;
        if (values_refused && (!is_flag || is_known)) continue;
        problem.where = is_flag ? fmt::format("{} ({})", where, key) : "the recipe from --from-megatron, " + key;
        problem.fix = with_flags(problem.fix, is_flag ? "" : key);
        problems_.push_back(std::move(problem));
      }
    }
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
  }

  static constexpr int kMostLayersWritten = 4096;

  const MegatronCommand& command_;
  const std::vector<ConfigOverride>& overrides_;
  std::string provider_;
  bool hybrid_ = false, vision_ = false, own_sizes_ = false, has_model_ = false;
  std::int64_t dp_ = 1;

  struct Entry {
    std::string text, from;
  };
  struct RecipeOrder {
    bool operator()(const std::string& a, const std::string& b) const { return place_of(a) < place_of(b); }
  };
  std::map<std::string, Entry, RecipeOrder> keys_;
  MegatronAnswer answer_;
  FlagEntries chosen_, absent_;
  std::vector<Problem> problems_;
};

}  // namespace

MegatronRecipe recipe_from_megatron(const MegatronCommand& command, const std::vector<ConfigOverride>& overrides) {
  return Conversion(command, overrides).run();
}

}  // namespace braid
