#include "base/files.h"
#include "base/strings.h"
#include "cli/recipe_draft.h"
#include "cluster/megatron/hetero_flags.h"
#include "data/text/chat.h"
#include "data/text/tokenizer.h"
#include "models/providers.h"

namespace braid {
namespace {

constexpr const char* kItsDefault = "train_hetero.py's default";
constexpr const char* kItAlwaysDoes = "train_hetero.py always does this";

class HeteroConversion : RecipeDraft {
 public:
  HeteroConversion(const MegatronCommand& command, const std::vector<ConfigOverride>& overrides)
      : RecipeDraft(command, overrides) {}

  MegatronRecipe run() {
    check_flags();
    add_table_rows();
    add_stock_flags();
    add_topology();
    add_model();
    add_data();
    add_training();
    add_checkpoint();
    return finished();
  }

 private:
  // --- values, each the one given or the parser's default ---------------------------------------------------------
  std::optional<std::string> text(const char* name) const {
    if (const auto given = command_.text(name)) return given;
    const std::string& otherwise = find_hetero_flag(name)->otherwise;
    return otherwise.empty() ? std::nullopt : std::optional(otherwise);
  }
  std::optional<std::int64_t> integer(const char* name) const {
    const auto value = text(name);
    return value ? parse_int64(*value) : std::nullopt;
  }
  bool is_on(const char* name) const { return text(name) == "true"; }
  std::string origin(const std::string& name) const {
    return command_.has(name) ? "--" + name : std::string(kItsDefault);
  }
  void copy(const char* name, const std::string& key) {
    if (const auto value = text(name)) set(key, *value, origin(name));
  }

  bool is_mock_model() const { return text("model-provider") == "mock"; }
  bool has_encoder() const { return !is_on("llm-only"); }

  // --- what the parser refuses, and a recipe could not show ---------------------------------------------------------
  void check_flags() {
    for (const auto& [name, value] : command_.unexpanded) {
      const HeteroFlag* flag = find_hetero_flag(name);
      if (flag && flag->kind != HeteroFlag::Text)
        refuse("--" + name, fmt::format("only the shell of a job expands --{} {}", name, value),
               fmt::format("add --{} with its value", name));
    }
    std::vector<std::string> starts;
    for (const char* name : {"load", "load-nemotron-checkpoint", "load-vision-from"})
      if (command_.has(name)) starts.push_back(std::string("--") + name);
    if (starts.size() > 1)
      refuse(starts[1], fmt::format("{} exclude each other", joined(starts, " and ")), "give one of them");
    if (command_.has("save-interval") && !command_.has("save") && !command_.is_unexpanded("save"))
      refuse("--save-interval", "--save-interval needs --save", "add --save FOLDER");
    if (text("lr-decay-style") == "WSD")
      for (const char* name : {"lr-wsd-decay-samples", "lr-wsd-decay-style"})
        if (!command_.has(name)) refuse("--lr-decay-style", fmt::format("WSD needs --{}", name), "add it");
    if (is_on("llm-only") && integer("llm-offset") != 0)
      refuse("--llm-only", fmt::format("--llm-only needs --llm-offset 0, not {}", *text("llm-offset")),
             "add --llm-offset 0");
    if (text("dataset-provider") == "energon_multimodal")
      for (const char* name : {"data-path", "tokenizer-model"})
        if (!command_.has(name) && !command_.is_unexpanded(name))
          refuse("--dataset-provider", fmt::format("energon_multimodal needs --{}", name), "add it");
  }

  // --- the flags that have a key of their own -----------------------------------------------------------------------
  bool applies(const std::string& key) const {
    const bool of_encoder = key.find(".images.") != key.npos || key.starts_with("data.pictures.") ||
                            key == "train.correct_partial_participation";
    return has_encoder() || !of_encoder;
  }

  void add_table_rows() {
    for (const HeteroFlag& flag : hetero_flags()) {
      const std::string name = "--" + flag.name;
      if (command_.has(flag.name) && !flag.no_effect.empty()) answer_.already.push_back({name, flag.no_effect});
      if (command_.has(flag.name) && !flag.left_out.empty()) leave_out(name, flag.left_out);
      if (flag.key.empty() || !applies(flag.key) || command_.is_unexpanded(flag.name)) continue;
      if (flag.kind != HeteroFlag::Switch)
        copy(flag.name.c_str(), flag.key);
      else if (is_on(flag.name.c_str()))
        set(flag.key, flag.value, name);
    }
  }

  // Flags of stock Megatron, which later versions of the program may have.
  void add_stock_flags() {
    for (const auto& [name, value] : command_.flags) {
      if (find_hetero_flag(name)) continue;
      const MegatronFlag& flag = *find_megatron_flag(name);
      const FlagVerdict verdict = verdict_for(flag, value, ModelFamily::Hybrid);
      answer_.add(flag, value, ModelFamily::Hybrid);
      if (verdict != FlagVerdict::Taken && verdict != FlagVerdict::Rewritten) continue;
      if (flag.factor == 0) {
        leave_out("--" + name, "train_hetero.py does not have this flag");
        continue;
      }
      set(flag.key, recipe_value(flag, value), "--" + name);
      chosen(fmt::format("{}: train_hetero.py does not have --{}, which is read as Megatron's", flag.key, name));
    }
  }

  // --- the parts of the recipe
  // ----------------------------------------------------------------------------------------
  void add_topology() {
    set("topology.modules.language.kind", "language", "");
    if (has_encoder()) set("topology.modules.images.kind", "encoder", "");
    const std::string dp = beside("topology.modules.language.dp").value_or(*text("llm-dp"));
    const std::int64_t replicas = parse_int64(dp).value_or(1), micro = *integer("micro-batch-size"),
                       microbatches = *integer("num-microbatches"), batch = micro * microbatches * replicas;
    const auto given = integer("global-batch-size");
    if (given && *given != batch)
      refuse("--global-batch-size",
             fmt::format("--global-batch-size {} contradicts {} samples x {} microbatches x {} replicas = {}", *given,
                         micro, microbatches, replicas, batch),
             fmt::format("use --global-batch-size {}, or another --num-microbatches", batch));
    set("train.global_batch", batch, "micro batch x microbatches x replicas");
  }

  void add_model() {
    const std::string provider = *text("model-provider");
    set("model.provider", is_mock_model() ? "tiny-vlm" : "nemotron-vlm-" + provider.substr(provider.rfind('-') + 1),
        origin("model-provider"));
    set("model.dtype", is_on("fp32") ? "float32" : "bfloat16", is_on("fp32") ? "--fp32" : "no --fp32");
    set("model.sequence_parallel", *integer("llm-tp") > 1, "exactly if --llm-tp is above 1");
    if (is_mock_model()) return add_mock_model();
    set("train.stage", text("training-stage").value_or("stage2"), origin("training-stage"));
    set("data.sequence_length", 8192, "the provider's");
    if (*text("vision-model-type") != "radio")
      leave_out("--vision-model-type " + *text("vision-model-type"), "the encoder of these models is RADIO");
    for (const char* size : {"hidden-size", "num-layers", "num-attention-heads", "num-moe-experts", "moe-router-topk",
                             "seq-length", "pixel-shuffle"})
      if (command_.has(size)) answer_.already.push_back({std::string("--") + size, "the provider sets it"});
  }

  void add_mock_model() {
    const std::string at = "model.language.";
    const std::int64_t hidden = *integer("hidden-size"),
                       heads = std::max<std::int64_t>(1, *integer("num-attention-heads")),
                       layers = std::clamp<std::int64_t>(*integer("num-layers"), 1, kMostLayers);
    std::string pattern;
    for (std::int64_t i = 0; i < layers; ++i) pattern += *integer("num-moe-experts") > 0 ? "*E" : "*-";
    set(at + "pattern", pattern, "--num-layers: attention, then its MLP or experts");
    set(at + "hidden", hidden, origin("hidden-size"));
    set(at + "heads", heads, origin("num-attention-heads"));
    set(at + "kv_heads", heads, "as many as heads");
    set(at + "head_dim", hidden / heads, "hidden / heads");
    set(at + "ffn", 4 * hidden, "4 x hidden");
    if (*integer("num-moe-experts") > 0) {
      copy("num-moe-experts", at + "experts");
      copy("moe-router-topk", at + "top_k");
      set(at + "expert_ffn", 4 * hidden, "4 x hidden");
      set(at + "shared_ffn", 0, "no shared expert");
    }
    copy("seq-length", "data.sequence_length");
    if (has_encoder()) add_mock_encoder(hidden);
    chosen("the mock model's encoder and its activation functions are those of tiny-vlm");
    if (command_.has("training-stage"))
      leave_out("--training-stage " + *text("training-stage"), "the mock model ignores it");
  }

  // A recipe with sizes of its own must give all of them.
  void add_mock_encoder(std::int64_t hidden) {
    const auto encoder = std::get<RadioConfig>(provider("tiny-vlm").encoders.at(0).model);
    const std::string at = "model.images.encoder.", from = "tiny-vlm's";
    set(at + "hidden", encoder.hidden, from);
    set(at + "layers", encoder.layers, from);
    set(at + "heads", encoder.heads, from);
    set(at + "ffn", encoder.ffn, from);
    set(at + "position_side", encoder.position_side, from);
    set("model.images.projector.output", hidden, origin("hidden-size"));
  }

  void add_data() {
    const bool reads = text("dataset-provider") == "energon_multimodal";
    set("data.mock", !reads, origin("dataset-provider"));
    const std::string path = command_.text("tokenizer-model").value_or("");
    add_tokens(path);
    if (has_encoder()) add_pictures();
    if (!reads) {
      for (const char* name : {"data-path", "tokenizer-model"})
        if (command_.has(name)) answer_.already.push_back({std::string("--") + name, "samples are mock samples"});
      return;
    }
    copy("data-path", "data.path");
    copy("tokenizer-model", "data.tokenizer");
    copy("tokenizer-prompt-format", "data.prompt_format");
    if (has_encoder() && command_.text("image-tag-type").value_or("") != "") copy("image-tag-type", "data.image_tag");
  }

  // With a tokenizer, the size of the vocabulary and the pictures' token are its own.
  void add_tokens(const std::string& tokenizer) {
    const std::string vocab = "model.language.vocab", token = "model.images.token_id";
    if (is_there(tokenizer)) {
      const Tokenizer read = load_tokenizer(tokenizer);
      set(vocab, read.vocab_size(), "of the tokenizer");
      const std::string name = *text("image-token");
      if (name != kImageToken) leave_out("--image-token " + name, "pictures are <image> in the text");
      return;  // the run takes the token's id from the tokenizer, too
    }
    if (!tokenizer.empty()) chosen(fmt::format("{}: '{}' does not exist on this machine", vocab, tokenizer));
    if (tokenizer.empty() || command_.has("vocab-size")) copy("vocab-size", vocab);
    if (tokenizer.empty() && has_encoder()) copy("image-token-id", token);
  }

  // Tiles and a thumbnail are what there is without dynamic resolution.
  void add_pictures() {
    const bool dynamic = text("dynamic-resolution").value_or(is_mock_model() ? "false" : "true") == "true";
    set("data.pictures.fit", dynamic ? "dynamic" : "tiles", origin("dynamic-resolution"));
    if (!dynamic) set("data.pictures.thumbnail", true, "without --dynamic-resolution");
    if (!dynamic) copy("img-h", "data.pictures.tile_side");
    if (text("img-h") != text("img-w"))
      leave_out(fmt::format("--img-w {}", *text("img-w")), "tiles are squares of --img-h");
  }

  void add_training() {
    if (command_.has("train-samples"))
      copy("train-samples", "train.samples");
    else
      copy("train-iters", "train.iterations");
    add_length("lr-warmup-samples", "train.warmup_samples", "lr-warmup-iters", "train.warmup_iterations");
    add_length("lr-decay-samples", "train.decay_samples", "lr-decay-iters", "train.decay_iterations");
    set("optimizer.zero", true, kItAlwaysDoes);
    add_buckets();
    if (is_on("timeline-profile"))
      set("log.trace_dir", text("timeline-dir").value_or("timeline"), "--timeline-profile");
  }

  // Samples take precedence over iterations.
  void add_length(const char* samples, const char* samples_key, const char* iterations, const char* iterations_key) {
    if (command_.has(samples))
      copy(samples, samples_key);
    else
      copy(iterations, iterations_key);
  }

  // Without overlap there is one bucket. A size of 0 leaves the choice to Megatron, whose rule is Braid's, too.
  void add_buckets() {
    if (command_.has("ddp-num-buckets")) return copy("ddp-num-buckets", "optimizer.bucket_count");
    if (is_on("overlap-grad-reduce") && *integer("ddp-bucket-size") > 0)
      copy("ddp-bucket-size", "optimizer.bucket_size");
  }

  void add_checkpoint() {
    set("checkpoint.scheduler", "recipe", "the command line overrides the checkpoint's schedule");
    copy("load", "checkpoint.load");
    // A run that saves can be started again with the same command; it then resumes.
    const bool saves = command_.has("save");
    copy("load-nemotron-checkpoint", saves ? "checkpoint.init.nemotron" : "checkpoint.load_nemotron");
    copy("load-vision-from", saves ? "checkpoint.init.vision" : "checkpoint.load_vision_from");
    constexpr std::pair<const char*, const char*> kParts[] = {{"no-load-optim", "checkpoint.load_optimizer"},
                                                              {"no-load-scheduler", "checkpoint.load_scheduler"},
                                                              {"no-load-rng", "checkpoint.load_rng"}};
    for (const auto& [name, key] : kParts) {
      if (!is_on(name)) continue;
      // With the weights of another model there is nothing else to load, and a resumed run needs all of its own.
      if (command_.has("load"))
        set(key, false, std::string("--") + name);
      else
        answer_.already.push_back({std::string("--") + name, "without --load only weights are loaded"});
    }
    if (is_on("finetune") && command_.has("load")) set("checkpoint.finetune", true, "--finetune");
  }

  static constexpr std::int64_t kMostLayers = 4096;
};

}  // namespace

MegatronRecipe recipe_from_hetero(const MegatronCommand& command, const std::vector<ConfigOverride>& overrides) {
  return HeteroConversion(command, overrides).run();
}

}  // namespace braid
