#include "cli/megatron_command.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "cli/megatron_flags.h"
#include "cli/megatron_script.h"
#include "cluster/megatron/torchrun_options.h"

namespace braid {
namespace {

// Empty if a factor is not a number, or is larger than any cluster.
std::optional<int> product(const std::string& a, const std::string& b) {
  constexpr int kMost = 1 << 15;
  const auto x = parse_int(a), y = parse_int(b);
  return x && y && *x > 0 && *y > 0 && *x < kMost && *y < kMost ? std::optional(*x * *y) : std::nullopt;
}

class CommandReader {
 public:
  CommandReader(std::vector<ScriptWord> words, LauncherTasks tasks)
      : words_(std::move(words)), tasks_(std::move(tasks)) {}

  MegatronCommand read() {
    while (at_ < words_.size()) {
      const ScriptWord& word = words_[at_++];
      if (is_flag(word))
        take_flag(word);
      else if (word.has_variable)
        command_.unexpanded.push_back({"", word.text});
    }
    count_ranks();
    return std::move(command_);
  }

 private:
  void take_flag(const ScriptWord& word) {
    const std::size_t equals = word.text.find('=');
    std::string name = word.text.substr(2, equals == std::string::npos ? equals : equals - 2);
    const MegatronFlag* flag = find_megatron_flag(name);
    const TorchrunOption* of_torchrun = flag ? nullptr : exact_torchrun_option(name);
    if (flag) name = flag->name;
    std::vector<ScriptWord> values;
    if (equals != std::string::npos)
      values.push_back({word.text.substr(equals + 1), word.has_variable});
    else
      values = values_behind(flag                                       ? flag->values
                             : of_torchrun && !of_torchrun->takes_value ? FlagValues::None
                                                                        : FlagValues::One);
    const bool has_variable =
        std::any_of(values.begin(), values.end(), [](const ScriptWord& v) { return v.has_variable; });
    std::string value;
    for (const ScriptWord& v : values) value += (value.empty() ? "" : " ") + v.text;
    if (of_torchrun) return take_torchrun(*of_torchrun, value);
    if (has_variable) {
      command_.unexpanded.push_back({name, value});
      command_.flags.erase(name);  // of a repeated flag the last one counts
    } else if (flag) {
      command_.flags[name] = value;
    } else {
      command_.unknown.push_back(value.empty() ? "--" + name : "--" + name + " " + value);
    }
  }

  std::vector<ScriptWord> values_behind(FlagValues values) {
    std::vector<ScriptWord> found;
    const std::size_t most = values == FlagValues::None ? 0 : values == FlagValues::One ? 1 : words_.size();
    while (found.size() < most && at_ < words_.size() && !is_option(words_[at_])) found.push_back(words_[at_++]);
    return found;
  }

  void take_torchrun(const TorchrunOption& option, const std::string& value) {
    if (std::string_view(option.name) == "nproc-per-node") per_node_ = value;
    if (std::string_view(option.name) == "nnodes") nodes_ = value;
  }

  // Where srun starts torchruns, it starts one on each node. The options of sbatch may not be in the script.
  void count_ranks() {
    if (per_node_) {
      const std::string nodes = tasks_.launcher.empty() ? "1" : tasks_.nodes.empty() ? tasks_.all : tasks_.nodes;
      command_.launcher = "torchrun --nproc-per-node " + *per_node_ + (nodes_ ? " --nnodes " + *nodes_ : "");
      command_.ranks = product(*per_node_, nodes_.value_or(nodes));
    } else if (!tasks_.launcher.empty()) {
      command_.launcher = tasks_.launcher;
      command_.ranks = tasks_.all.empty() ? product(tasks_.per_node, tasks_.nodes) : product(tasks_.all, "1");
    }
  }

  const std::vector<ScriptWord> words_;
  std::size_t at_ = 0;
  const LauncherTasks tasks_;
  std::optional<std::string> per_node_, nodes_;  // torchrun's
  MegatronCommand command_;
};

}  // namespace

bool MegatronCommand::is_unexpanded(const std::string& name) const {
  return std::any_of(unexpanded.begin(), unexpanded.end(), [&](const auto& flag) { return flag.first == name; });
}

bool MegatronCommand::has_any(const std::vector<std::string>& names) const {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return has(name); });
}

std::optional<std::string> MegatronCommand::text(const std::string& name) const {
  const auto found = flags.find(name);
  return found == flags.end() ? std::nullopt : std::optional(found->second);
}

MegatronCommand read_megatron_command(std::string_view text) {
  TrainingCommand script = read_training_command(text);
  MegatronCommand command = CommandReader(std::move(script.words), std::move(script.tasks)).read();
  command.defaults = std::move(script.defaults);
  for (const std::string& name : script.unused) command.skipped.push_back(name + ", which is not used");
  for (const std::string& text : script.conditional) command.skipped.push_back(text + ", in a branch");
  for (const std::string& name : script.others) command.skipped.push_back(name + ", another command");
  for (const std::string& name : script.sourced)
    command.skipped.push_back(name + ", a sourced file, which is not read");
  if (command.flags.empty() && command.unexpanded.empty() && command.unknown.empty() && command.skipped.empty())
    throw ConfigError(
        {"there is no command with flags of Megatron-LM", "--from-megatron",
         "give the flags as one word: --from-megatron '--num-layers 32 ...'; here-documents, commands for "
         "ssh and key=value settings are not read"});
  return command;
}

}  // namespace braid