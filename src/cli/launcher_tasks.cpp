#include "cli/launcher_tasks.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "cli/megatron_flags.h"

namespace braid {
namespace {

constexpr std::pair<std::string_view, std::string LauncherTasks::*> kCounts[] = {
    {"--ntasks", &LauncherTasks::all},
    {"-n", &LauncherTasks::all},
    {"-np", &LauncherTasks::all},
    {"--np", &LauncherTasks::all},
    {"--nodes", &LauncherTasks::nodes},
    {"-N", &LauncherTasks::nodes},
    {"--npernode", &LauncherTasks::per_node},
    {"--ntasks-per-node", &LauncherTasks::per_node},
};

// Whether srun's options end here: at the program, or at a flag of Megatron's if the program has an unknown name.
bool ends_launcher(const ScriptWord& word) {
  if (is_flag(word)) return find_megatron_flag(word.text.substr(2, word.text.find('=') - 2)) != nullptr;
  const std::string name = word.text.substr(word.text.rfind('/') + 1);
  return !is_option(word) && (name == "torchrun" || name.starts_with("python") || name.ends_with(".py") ||
                              name.ends_with(".sh") || name == "bash" || name == "env" || name == "uv");
}

}  // namespace

void take_counts(const std::vector<ScriptWord>& options, LauncherTasks& tasks) {
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string& text = options[i].text;
    const std::size_t equals = text.find('=');
    for (const auto& [option, count] : kCounts) {
      if (text.substr(0, equals) == option)
        tasks.*count =
            equals != std::string::npos ? text.substr(equals + 1) : (i + 1 < options.size() ? options[i + 1].text : "");
      else if (option.size() == 2 && text.starts_with(option) && parse_int(text.substr(2)))
        tasks.*count = text.substr(2);  // -n16
    }
  }
}

LauncherTasks take_launcher(std::vector<ScriptWord>& words, const LauncherTasks& of_sbatch) {
  const std::string name = words.empty() ? "" : words[0].text.substr(words[0].text.rfind('/') + 1);
  if (name != "srun" && name != "mpirun" && name != "mpiexec") return {};
  LauncherTasks tasks = name == "srun" ? of_sbatch : LauncherTasks{};
  tasks.launcher = name;
  const auto end = std::find_if(words.begin(), words.end(), ends_launcher);
  LauncherTasks own;
  take_counts({words.begin() + 1, end}, own);
  if (!own.all.empty()) tasks = {.launcher = name};  // the tasks of sbatch are then no longer those of this step
  for (const auto& [option, count] : kCounts)
    if (!(own.*count).empty()) tasks.*count = own.*count;
  words.erase(words.begin(), end);
  return tasks;
}

LauncherTasks sbatch_tasks(std::string_view text) {
  LauncherTasks tasks;
  for (std::string& line : split(text, '\n')) {
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first != line.npos && line[first] != '#') break;
    std::replace_if(
        line.begin(), line.end(), [](char c) { return c == '\t' || c == '\r'; }, ' ');
    if (!line.starts_with("#SBATCH ")) continue;
    std::vector<ScriptWord> options;
    for (const std::string& word : split(line.substr(8), ' '))
      if (!word.empty()) options.push_back({word});
    take_counts(options, tasks);
  }
  return tasks;
}

}  // namespace braid
