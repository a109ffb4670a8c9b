#include "cluster/megatron/program_call.h"

#include <algorithm>
#include <set>

namespace braid {
namespace {

bool is_program_of_interest(const std::string& name) {
  return name == "torchrun" || is_python_name(name) || starts_ranks_itself(name);
}

}  // namespace

std::string_view raw_of(std::string_view text, const ShellWord& word) {
  return text.substr(word.begin, word.end - word.begin);
}

std::string base_name(const ShellWord& word) {
  const std::size_t slash = word.tail.rfind('/');
  if (!word.value && slash == std::string::npos) return "";
  return word.tail.substr(slash == std::string::npos ? 0 : slash + 1);
}

bool is_python_name(const std::string& name) {
  return name.starts_with("python") && name.find_first_not_of("0123456789.", 6) == std::string::npos;
}

bool is_wrapper(const std::string& name) {
  static const std::set<std::string> wrappers = {"env",     "exec",       "command", "nohup",    "nice",  "ionice",
                                                 "numactl", "taskset",    "stdbuf",  "timeout",  "nsys",  "ncu",
                                                 "uv",      "poetry",     "pdm",     "pipenv",   "conda", "mamba",
                                                 "pixi",    "micromamba", "strace",  "xvfb-run", "time",  "hatch"};
  return wrappers.count(name) > 0;
}

bool starts_ranks_itself(const std::string& name) {
  static const std::set<std::string> programs = {"srun",    "sbatch",  "salloc",     "mpirun",
                                                 "mpiexec", "orterun", "accelerate", "deepspeed"};
  return programs.count(name) > 0;
}

std::size_t program_index(const ShellCommand& command) {
  if (command.words.empty() || !is_wrapper(base_name(command.words[0]))) return 0;
  for (std::size_t i = 1; i < command.words.size(); ++i)
    if (is_program_of_interest(base_name(command.words[i]))) return i;
  return 0;
}

std::optional<PythonCall> python_call(const std::vector<ShellWord>& words, std::size_t python) {
  PythonCall call;
  for (std::size_t i = python + 1; i < words.size(); ++i) {
    const std::string& word = words[i].head;
    if (word == "-m" && i + 1 < words.size()) {
      call.what = i + 1;
      call.module = true;
      call.module_name = words[i + 1].value.value_or("");
      return call;
    }
    if (word.starts_with("-m") && word.size() > 2) {
      call.what = i;
      call.module = true;
      call.module_name = word.substr(2);
      return call;
    }
    if (word == "-c" || !word.starts_with("-")) {
      call.what = i;
      call.has_options |= word == "-c";
      return call;
    }
    call.has_options |= word != "-u";
    if (word == "-X" || word == "-W" || word == "--check-hash-based-pycs") ++i;
  }
  return std::nullopt;
}

std::string excerpt(std::string_view text, const ShellCommand& command) {
  const std::size_t begin = command.words.front().begin, end = command.words.back().end;
  std::string words(text.substr(begin, std::min<std::size_t>(end - begin, 60)));
  std::replace(words.begin(), words.end(), '\n', ' ');
  return words + (end - begin > 60 ? "..." : "");
}

}  // namespace braid
