// Finds the flags of Megatron-LM in shell text.
#include <algorithm>
#include <cctype>

#include "base/strings.h"
#include "cli/from_megatron.h"
#include "cli/megatron_flags.h"
#include "launch/shell_text.h"
#include "launch/torchrun_options.h"

namespace braid {
namespace {

struct Word {
  std::string text;
  bool has_variable = false;
};

bool is_flag(const Word& word) { return word.text.starts_with("--") && word.text.size() > 2; }
bool is_option(const Word& word) {  // -m, not -1 or -.5
  return is_flag(word) ||
         (word.text.size() > 1 && word.text[0] == '-' && std::isalpha(static_cast<unsigned char>(word.text[1])));
}

// Patterns like M-M*- have no file that matches them: the shell leaves them as they are, and so do we.
Word word_of(std::string_view text, const ShellWord& word) {
  if (word.value) return {*word.value};
  std::string raw(text.substr(word.begin, word.end - word.begin));
  const bool has_variable = raw.find_first_of("$`") != std::string::npos;
  std::erase_if(raw, [](char c) { return c == '"' || c == '\''; });
  return {raw, has_variable};
}

// Also those of lines that nothing joins: the middle of a script's array.
std::vector<Word> words_with_flags(std::string_view text) {
  std::vector<Word> words;
  for (const ShellCommand& command : simple_commands(text)) {
    std::vector<Word> found;
    for (const ShellWord& word : command.words) found.push_back(word_of(text, word));
    if (std::any_of(found.begin(), found.end(), is_flag)) words.insert(words.end(), found.begin(), found.end());
  }
  return words;
}

class CommandReader {
 public:
  explicit CommandReader(std::vector<Word> words) : words_(std::move(words)) {}

  MegatronCommand read() {
    while (at_ < words_.size()) {
      const Word& word = words_[at_++];
      if (is_flag(word))
        take_flag(word);
      else if (word.has_variable)
        command_.unexpanded.push_back({"", word.text});
    }
    if (!per_node_.empty())
      if (const auto ranks = parse_int(per_node_), nodes = parse_int(nodes_);
          ranks && nodes && *ranks > 0 && *nodes > 0 && *ranks < 1 << 15 && *nodes < 1 << 15)
        command_.ranks = *ranks * *nodes;
    return std::move(command_);
  }

 private:
  void take_flag(const Word& word) {
    const std::size_t equals = word.text.find('=');
    std::string name = word.text.substr(2, equals == std::string::npos ? equals : equals - 2);
    const MegatronFlag* flag = find_megatron_flag(name);
    const TorchrunOption* of_torchrun = flag ? nullptr : exact_torchrun_option(name);
    if (flag) name = flag->name;
    std::vector<Word> values;
    if (equals != std::string::npos)
      values.push_back({word.text.substr(equals + 1), word.has_variable});
    else
      values = values_behind(flag                                       ? flag->values
                             : of_torchrun && !of_torchrun->takes_value ? FlagValues::None
                                                                        : FlagValues::One);
    const bool has_variable = std::any_of(values.begin(), values.end(), [](const Word& v) { return v.has_variable; });
    std::string value;
    for (const Word& v : values) value += (value.empty() ? "" : " ") + v.text;
    if (of_torchrun) return take_torchrun(*of_torchrun, has_variable ? "" : value);
    if (has_variable)
      command_.unexpanded.push_back({name, value});
    else if (flag)
      command_.flags[name] = value;
    else
      command_.unknown.push_back(value.empty() ? "--" + name : "--" + name + " " + value);
  }

  std::vector<Word> values_behind(FlagValues values) {
    std::vector<Word> found;
    const std::size_t most = values == FlagValues::None ? 0 : values == FlagValues::One ? 1 : words_.size();
    while (found.size() < most && at_ < words_.size() && !is_option(words_[at_])) found.push_back(words_[at_++]);
    return found;
  }

  void take_torchrun(const TorchrunOption& option, const std::string& value) {
    if (std::string_view(option.name) == "nproc-per-node") per_node_ = value;
    if (std::string_view(option.name) == "nnodes") nodes_ = value;
  }

  const std::vector<Word> words_;
  std::size_t at_ = 0;
  std::string per_node_, nodes_ = "1";
  MegatronCommand command_;
};

}  // namespace

std::optional<std::string> MegatronCommand::text(const std::string& name) const {
  const auto found = flags.find(name);
  return found == flags.end() ? std::nullopt : std::optional(found->second);
}

std::optional<double> MegatronCommand::number(const std::string& name) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto number = parse_double(*value);
  if (!number)
    throw ConfigError({fmt::format("--{} should be a number, not {}", name, in_quotes(*value)), "--from-megatron", ""});
  return number;
}

int MegatronCommand::integer(const std::string& name, int otherwise) const {
  const auto value = text(name);
  if (!value) return otherwise;
  const auto number = parse_int(*value);
  if (!number || *number < 0)
    throw ConfigError(
        {fmt::format("--{} should be an integer, 0 or more, not {}", name, in_quotes(*value)), "--from-megatron", ""});
  return *number;
}

MegatronCommand read_megatron_command(std::string_view text) {
  MegatronCommand command = CommandReader(words_with_flags(text)).read();
  if (command.flags.empty() && command.unexpanded.empty() && command.unknown.empty())
    throw ConfigError({"there is no flag in the command line", "--from-megatron",
                       "give it as one word, in quotes: --from-megatron '--num-layers 32 --hidden-size 4096 ...'"});
  return command;
}

}  // namespace braid
