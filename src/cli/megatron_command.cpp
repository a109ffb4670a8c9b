// Finds the flags of Megatron-LM in shell text.
#include <algorithm>
#include <cctype>
#include <utility>

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

// Of srun and mpirun: how many processes they start, as written.
struct Tasks {
  std::string launcher, all, nodes, per_node;
};

constexpr std::pair<std::string_view, std::string Tasks::*> kCounts[] = {
    {"--ntasks", &Tasks::all},
    {"-n", &Tasks::all},
    {"-np", &Tasks::all},
    {"--np", &Tasks::all},
    {"--nodes", &Tasks::nodes},
    {"-N", &Tasks::nodes},
    {"--npernode", &Tasks::per_node},
    {"--ntasks-per-node", &Tasks::per_node},
};

// Whether srun's options end here: at the program, or at a flag of Megatron's, whatever the program is called.
bool ends_launcher(const Word& word) {
  if (is_flag(word)) return find_megatron_flag(word.text.substr(2, word.text.find('=') - 2)) != nullptr;
  const std::string name = word.text.substr(word.text.rfind('/') + 1);
  return !is_option(word) && (name == "torchrun" || name.starts_with("python") || name.ends_with(".py") ||
                              name.ends_with(".sh") || name == "bash" || name == "env" || name == "uv");
}

// Takes srun or mpirun and their options off the front of a command; those that say how many tasks there are count.
void take_launcher(std::vector<Word>& words, Tasks& tasks) {
  const std::string name = words.empty() ? "" : words[0].text.substr(words[0].text.rfind('/') + 1);
  if (name != "srun" && name != "mpirun" && name != "mpiexec") return;
  tasks.launcher = name;
  const auto end = std::find_if(words.begin(), words.end(), ends_launcher);
  for (auto word = words.begin() + 1; word < end; ++word) {
    const std::size_t equals = word->text.find('=');
    for (const auto& [option, count] : kCounts) {
      if (word->text.substr(0, equals) == option)
        tasks.*count =
            equals != std::string::npos ? word->text.substr(equals + 1) : (word + 1 < end ? word[1].text : "");
      else if (option.size() == 2 && word->text.starts_with(option) && parse_int(word->text.substr(2)))
        tasks.*count = word->text.substr(2);  // -n16
    }
  }
  words.erase(words.begin(), end);
}

struct Script {
  std::vector<Word> words;  // of commands that have flags
  Tasks tasks;
  std::vector<std::string> arrays;  // "${ARGS[@]}": those that were read
};

// An array's flags, ARGS=(--lr 1 ...), count where they are written; the words that expand it say nothing more. Lines
// count that nothing joins: the middle of an array.
void read_script(std::string_view text, Script& script, bool in_array = false) {
  for (const ShellCommand& command : simple_commands(text)) {
    for (const ShellWord& assignment : command.assignments) {
      const std::string_view raw = text.substr(assignment.begin, assignment.end - assignment.begin);
      const std::size_t open = raw.find("=(");
      if (in_array || open == raw.npos || !raw.ends_with(')')) continue;
      script.arrays.push_back(fmt::format("${{{}[@]}}", raw.substr(0, raw.find_first_of("+="))));
      read_script(raw.substr(open + 2, raw.size() - open - 3), script, /*in_array=*/true);
    }
    std::vector<Word> found;
    for (const ShellWord& word : command.words) found.push_back(word_of(text, word));
    take_launcher(found, script.tasks);
    std::erase_if(found, [&](const Word& word) { return contains(script.arrays, word.text); });
    if (std::any_of(found.begin(), found.end(), is_flag))
      script.words.insert(script.words.end(), found.begin(), found.end());
  }
}

// Nothing where a factor is no number, or beyond any cluster.
std::optional<int> product(const std::string& a, const std::string& b) {
  constexpr int kMost = 1 << 15;
  const auto x = parse_int(a), y = parse_int(b);
  return x && y && *x > 0 && *y > 0 && *x < kMost && *y < kMost ? std::optional(*x * *y) : std::nullopt;
}

class CommandReader {
 public:
  explicit CommandReader(Script script) : words_(std::move(script.words)), tasks_(std::move(script.tasks)) {}

  MegatronCommand read() {
    while (at_ < words_.size()) {
      const Word& word = words_[at_++];
      if (is_flag(word))
        take_flag(word);
      else if (word.has_variable)
        command_.unexpanded.push_back({"", word.text});
    }
    count_ranks();
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
    if (of_torchrun) return take_torchrun(*of_torchrun, value);
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

  // Where srun starts torchruns, it starts one on each node.
  void count_ranks() {
    if (per_node_) {
      const std::string nodes = !tasks_.nodes.empty() ? tasks_.nodes : !tasks_.all.empty() ? tasks_.all : "1";
      command_.launcher = "torchrun --nproc-per-node " + *per_node_ + (nodes_ ? " --nnodes " + *nodes_ : "");
      command_.ranks = product(*per_node_, nodes_.value_or(nodes));
    } else if (!tasks_.launcher.empty()) {
      command_.launcher = tasks_.launcher;
      command_.ranks = tasks_.all.empty() ? product(tasks_.per_node, tasks_.nodes.empty() ? "1" : tasks_.nodes)
                                          : product(tasks_.all, "1");
    }
  }

  const std::vector<Word> words_;
  std::size_t at_ = 0;
  const Tasks tasks_;
  std::optional<std::string> per_node_, nodes_;  // torchrun's
  MegatronCommand command_;
};

}  // namespace

std::optional<std::string> MegatronCommand::text(const std::string& name) const {
  const auto found = flags.find(name);
  return found == flags.end() ? std::nullopt : std::optional(found->second);
}

MegatronCommand read_megatron_command(std::string_view text) {
  Script script;
  read_script(text, script);
  MegatronCommand command = CommandReader(std::move(script)).read();
  if (command.flags.empty() && command.unexpanded.empty() && command.unknown.empty())
    throw ConfigError({"there is no flag in the command line", "--from-megatron",
                       "give it as one word, in quotes: --from-megatron '--num-layers 32 --hidden-size 4096 ...'"});
  return command;
}

}  // namespace braid
