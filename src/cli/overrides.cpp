#include <algorithm>
#include <map>

#include "base/strings.h"
#include "cli/commands.h"

namespace braid {
namespace {

// Megatron's name for a recipe key. Its flags take no value: they stand for one.
struct MegatronName {
  const char* path;
  const char* flag_value = nullptr;
};

const std::map<std::string, MegatronName> kMegatronNames = {
    {"adam-beta1", {"optimizer.beta1"}},
    {"adam-beta2", {"optimizer.beta2"}},
    {"adam-eps", {"optimizer.eps"}},
    {"async-save", {"checkpoint.async", "true"}},
    {"bf16", {"model.dtype", "bfloat16"}},
    {"clip-grad", {"optimizer.clip_grad"}},
    {"context-parallel-size", {"topology.modules.language.cp"}},
    {"correct-encoder-grad-for-partial-participation", {"train.correct_partial_participation", "true"}},
    {"ddp-bucket-size", {"optimizer.bucket_size"}},
    {"ddp-num-buckets", {"optimizer.bucket_count"}},
    {"ddp-pad-buckets-for-high-nccl-busbw", {"optimizer.pad_buckets", "true"}},
    {"dist-ckpt-optim-fully-reshardable", {"checkpoint.fully_reshardable", "true"}},
    {"encoder-cp", {"topology.modules.images.cp"}},
    {"encoder-dp", {"topology.modules.images.dp"}},
    {"encoder-offset", {"topology.modules.images.rank_offset"}},
    {"encoder-pp", {"topology.modules.images.pp"}},
    {"encoder-tp", {"topology.modules.images.tp"}},
    {"end-weight-decay", {"train.end_weight_decay"}},
    {"exit-duration-in-mins", {"stop.exit_duration_in_mins"}},
    {"exit-interval", {"stop.exit_interval"}},
    {"exit-on-missing-checkpoint", {"checkpoint.must_exist", "true"}},
    {"expert-model-parallel-size", {"topology.modules.language.ep"}},
    {"expert-tensor-parallel-size", {"topology.modules.language.expt_tp"}},
    {"finetune", {"checkpoint.finetune", "true"}},
    {"fp32", {"model.dtype", "float32"}},
    {"freeze-LM", {"train.freeze_language", "true"}},
    {"freeze-ViT", {"train.freeze_encoders", "true"}},
    {"freeze-lm", {"train.freeze_language", "true"}},
    {"freeze-projection", {"train.freeze_projection", "true"}},
    {"freeze-vit", {"train.freeze_encoders", "true"}},
    {"global-batch-size", {"train.global_batch"}},
    {"hysteresis", {"loss_scale.hysteresis"}},
    {"llm-cp", {"topology.modules.language.cp"}},
    {"llm-dp", {"topology.modules.language.dp"}},
    {"llm-ep", {"topology.modules.language.ep"}},
    {"llm-expt-dp", {"topology.modules.language.expt_dp"}},
    {"llm-expt-tp", {"topology.modules.language.expt_tp"}},
    {"llm-offset", {"topology.modules.language.rank_offset"}},
    {"llm-pp", {"topology.modules.language.pp"}},
    {"llm-tp", {"topology.modules.language.tp"}},
    {"load", {"checkpoint.load"}},
    {"load-nemotron-checkpoint", {"checkpoint.load_nemotron"}},
    {"load-vision-from", {"checkpoint.load_vision_from"}},
    {"log-interval", {"log.interval"}},
    {"log-num-zeros-in-grad", {"log.num_zeros", "true"}},
    {"loss-scale", {"loss_scale.initial"}},
    {"loss-scale-window", {"loss_scale.growth_interval"}},
    {"lr", {"train.lr"}},
    {"lr-decay-iters", {"train.decay_iterations"}},
    {"lr-decay-samples", {"train.decay_samples"}},
    {"lr-decay-style", {"train.decay_style"}},
    {"lr-warmup-init", {"train.init_lr"}},
    {"lr-warmup-iters", {"train.warmup_iterations"}},
    {"lr-warmup-samples", {"train.warmup_samples"}},
    {"lr-wsd-decay-iters", {"train.wsd_decay_iterations"}},
    {"lr-wsd-decay-samples", {"train.wsd_decay_samples"}},
    {"lr-wsd-decay-style", {"train.wsd_decay_style"}},
    {"micro-batch-size", {"train.micro_batch"}},
    {"min-loss-scale", {"loss_scale.min"}},
    {"min-lr", {"train.min_lr"}},
    {"model-provider", {"model.provider"}},
    {"moe-router-force-load-balancing", {"model.language.force_load_balancing", "true"}},
    {"no-load-optim", {"checkpoint.load_optimizer", "false"}},
    {"no-load-rng", {"checkpoint.load_rng", "false"}},
    {"no-load-scheduler", {"checkpoint.load_scheduler", "false"}},
    {"no-overlap-grad-reduce", {"optimizer.overlap_grad_reduce", "false"}},
    {"no-overlap-param-gather", {"optimizer.overlap_param_gather", "false"}},
    {"no-save-optim", {"checkpoint.save_optimizer", "false"}},
    {"no-save-rng", {"checkpoint.save_rng", "false"}},
    {"num-workers", {"loader.num_workers"}},
    {"overlap-grad-reduce", {"optimizer.overlap_grad_reduce", "true"}},
    {"overlap-param-gather", {"optimizer.overlap_param_gather", "true"}},
    {"override-opt-param-scheduler", {"checkpoint.scheduler", "recipe"}},
    {"packing-buffer-size", {"loader.packing_buffer"}},
    {"pipeline-model-parallel-size", {"topology.modules.language.pp"}},
    {"save", {"checkpoint.save"}},
    {"save-interval", {"checkpoint.save_interval"}},
    {"seed", {"train.seed"}},
    {"seq-length", {"data.sequence_length"}},
    {"sequence-parallel", {"model.sequence_parallel", "true"}},
    {"tensor-model-parallel-size", {"topology.modules.language.tp"}},
    {"tensorboard-dir", {"log.tensorboard_dir"}},
    {"train-iters", {"train.iterations"}},
    {"train-samples", {"train.samples"}},
    {"training-stage", {"train.stage"}},
    {"use-checkpoint-opt-param-scheduler", {"checkpoint.scheduler", "checkpoint"}},
    {"use-distributed-optimizer", {"optimizer.zero", "true"}},
    {"weight-decay", {"train.weight_decay"}},
    {"weight-decay-incr-style", {"train.weight_decay_incr_style"}},
    // Not Megatron's, but like them.
    {"load-fallback", {"checkpoint.load_fallback", "always"}},
    {"metrics-file", {"log.metrics_file"}},
    {"overwrite-checkpoints", {"checkpoint.overwrite", "true"}},
    {"trace", {"log.trace_dir"}},
};

const MegatronName* megatron_name(const std::string& word) {
  const auto found = word.rfind("--", 0) == 0 ? kMegatronNames.find(word.substr(2)) : kMegatronNames.end();
  return found == kMegatronNames.end() ? nullptr : &found->second;
}

bool is_key(const std::string& word) {
  return word.rfind("--", 0) == 0 && word.find('.') != std::string::npos && word.find('=') == std::string::npos;
}

ConfigError unknown_option(const std::string& flag, const std::vector<std::string>& others) {
  std::vector<std::string> names;
  for (const std::string& other : others) names.push_back(other.substr(2));
  for (const auto& [name, known] : kMegatronNames) names.push_back(name);
  const auto guess = nearest(flag, names);
  return ConfigError({fmt::format("unknown option --{}", flag), "command line",
                      guess ? fmt::format("did you mean --{}?", *guess)
                            : "recipe keys are given with their section, e.g. --train.lr 1e-4"});
}

}  // namespace

std::vector<ConfigOverride> parse_overrides(const std::vector<std::string>& arguments,
                                            const std::vector<std::string>& others) {
  std::vector<ConfigOverride> overrides;
  for (const std::string& argument : arguments) {
    if (argument.rfind("--", 0) != 0)
      throw ConfigError({fmt::format("unexpected argument '{}'", argument), "command line", "see --help"});
    const std::size_t equals = argument.find('=');
    const std::string option = argument.substr(0, equals);
    const MegatronName* name = megatron_name(option);
    if (!name && option.find('.') == std::string::npos) throw unknown_option(option.substr(2), others);
    const bool has_value = equals != std::string::npos;
    if (!has_value && !(name && name->flag_value))
      throw ConfigError({fmt::format("{} needs a value", option), "command line", ""});
    if (has_value && name && name->flag_value)
      throw ConfigError({fmt::format("{} takes no value", option), "command line",
                         fmt::format("leave it out; it stands for --{}={}", name->path, name->flag_value)});
    overrides.push_back(
        {name ? name->path : option.substr(2), has_value ? argument.substr(equals + 1) : name->flag_value, option});
  }
  return overrides;
}

bool takes_foreign_command(const std::vector<std::string>& command_line) {
  return command_line.size() > 2 && command_line[1] == "launch" &&
         (command_line[2] == "slurm" || command_line[2] == "local");
}

std::vector<std::string> words_behind_dashes(const std::vector<std::string>& command_line) {
  const auto dashes = std::find(command_line.begin(), command_line.end(), "--");
  return {dashes == command_line.end() ? dashes : dashes + 1, command_line.end()};
}

std::vector<std::string> join_overrides(const std::vector<std::string>& words) {
  const bool has_recipe =
      words.size() > 1 && (words[1] == "train" || words[1] == "plan" || takes_foreign_command(words));
  if (!has_recipe) return words;
  std::vector<std::string> joined;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--" && takes_foreign_command(words)) {
      joined.insert(joined.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const std::string& word = words[i];
    const MegatronName* name = megatron_name(word);
    const bool takes_value = is_key(word) || (name && !name->flag_value);
    if (takes_value && i + 1 < words.size())
      joined.push_back(word + "=" + words[++i]);
    else
      joined.push_back(word);
  }
  return joined;
}

std::string overrides_help() {
  std::string text =
      "Any recipe key can be set on the command line (--train.lr 1e-4). Megatron's names work too;\n"
      "--encoder-... are those of the module images, --llm-... and Megatron's sizes those of the module language:";
  for (const auto& [name, known] : kMegatronNames)
    text += fmt::format("\n  --{:<48} {}{}", name, known.path,
                        known.flag_value ? fmt::format("={}", known.flag_value) : std::string());
  return text;
}

}  // namespace braid
