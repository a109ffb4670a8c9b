#include <sys/stat.h>
#include "base/config.h"
#include "base/error.h"
#include "base/files.h"
#include "base/process.h"
#include "base/strings.h"
#include "cluster/megatron/commands.h"

namespace braid {
namespace {

constexpr const char* kStandIns =
    "python python3 python3.8 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14 torchrun srun sbatch "
    "salloc mpirun mpiexec orterun accelerate deepspeed uv apptainer singularity enroot docker podman ssh";

// Writes one file per call: the number of words, the words, the folder and the environment, each ended by a zero byte.
// `command -p` finds the tools even if the script has changed PATH.
constexpr const char* kStandIn = R"(#!/bin/sh
call=$(command -p mktemp "$BRAID_CALLS/$(command -p date +%s%N).XXXXXX") || exit 1
{ printf '%s\0' $(($# + 1)) "${0##*/}" "$@" "$PWD" && command -p env -0; } >"$call"
)";

constexpr const char* kFirstInPath = R"(set -T
trap 'case $BASH_COMMAND in
  PATH=*[[:space:]]*|*env\ *PATH=*)
    echo "PATH is set for one command, so that command would be executed: $BASH_COMMAND" >&2
    exit 3 ;;
esac
case ${PATH-} in "$BRAID_STAND_INS":*) ;; *) PATH=$BRAID_STAND_INS:${PATH-} ;; esac' DEBUG
)";

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "braid-script.XXXXXX").string()) {
    if (!mkdtemp(path_.data())) throw std::runtime_error(fmt::format("cannot create the folder '{}'", path_));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;

  fs::path operator/(const char* name) const { return fs::path(path_) / name; }

 private:
  std::string path_;
};

// Scripts put folders in front of PATH (conda, venv): functions are found before these, and for programs like nohup,
// which search PATH themselves, the folder of the stand-ins comes first again before every command. Bash reads the file
// at the start of every script, also of those that the script calls.
void write_stand_ins(const TemporaryFolder& folder) {
  for (const char* name : {"bin", "calls"}) fs::create_directory(folder / name);
  const fs::path program = folder / "stand-in";
  std::ofstream(program) << kStandIn;
  ::chmod(program.c_str(), 0700);
  std::ofstream functions(folder / "functions");
  functions << kFirstInPath;
  for (const std::string& name : split(kStandIns, ' ')) {
    const fs::path file = folder / "bin" / name;
    fs::create_symlink(program, file);
    if (name.find('.') == name.npos)
      functions << fmt::format("{0}() {{ {1} \"$@\"; }}\nexport -f {0}\n", name, shell_quoted(file.string()));
  }
}

std::map<std::string, std::string> environment_of(const std::vector<std::string>& settings, const std::string& stubs) {
  static const std::set<std::string> kOurs = {"BASH_ENV", "BRAID_CALLS", "BRAID_STAND_INS", "SHLVL", "PWD", "OLDPWD",
                                              "_"};
  std::map<std::string, std::string> changed;
  for (const std::string& setting : settings) {
    const std::string name = setting.substr(0, setting.find('='));
    if (!is_identifier(name) || kOurs.count(name)) continue;
    std::string value = setting.substr(std::min(name.size() + 1, setting.size()));
    for (std::size_t at; name == "PATH" && (at = value.find(stubs + ":")) != value.npos;)
      value.erase(at, stubs.size() + 1);
    const char* before = std::getenv(name.c_str());
    if (!before || value != before) changed[name] = value;
  }
  return changed;
}

std::vector<RecordedCall> read_calls(const TemporaryFolder& folder) {
  std::set<fs::path> files;  // their names begin with the time
  for (const auto& entry : fs::directory_iterator(folder / "calls")) files.insert(entry.path());
  std::vector<RecordedCall> calls;
  for (const fs::path& file : files) {
    std::ifstream stream(file);
    const std::vector<std::string> parts = split(std::string(std::istreambuf_iterator<char>(stream), {}), '\0');
    const int count = parse_int(parts[0]).value_or(-1);
    if (count < 1 || std::ssize(parts) < count + 2) continue;  // the script ended while the call was written
    const auto folder_at = parts.begin() + 1 + count;
    calls.push_back({{parts.begin() + 1, folder_at},
                     *folder_at,
                     environment_of({folder_at + 1, parts.end()}, (folder / "bin").string())});
  }
  return calls;
}

}  // namespace

ScriptRun run_script(const std::string& script, std::chrono::seconds limit) {
  std::vector<std::string> words = {script};  // and its arguments; a path with blanks need not be quoted
  if (!is_file(script)) words = plain_words(script, kRunScript);
  if (words.empty()) throw ConfigError({"there is no script", kRunScript, "give its path"});
  if (words[0] == "-") throw ConfigError({"a script cannot be read from standard input", kRunScript, "give a file"});
  ScriptRun run{.path = words[0], .text = read_shell_file(words[0], kRunScript), .calls = {}};
  constexpr std::chrono::seconds kGrace(5);  // for what it leaves in the background, which may still call them
  std::optional<TemporaryFolder> folder(std::in_place);
  write_stand_ins(*folder);
  const char* path = std::getenv("PATH");
  const std::string stand_ins = (*folder / "bin").string(), functions = (*folder / "functions").string();
  std::vector<std::string> command = {"env",
                                      fmt::format("PATH={}:{}", stand_ins, path ? path : "/usr/bin:/bin"),
                                      "BASH_ENV=" + functions,
                                      "BRAID_CALLS=" + (*folder / "calls").string(),
                                      "BRAID_STAND_INS=" + stand_ins,
                                      "bash"};
  command.insert(command.end(), words.begin(), words.end());
  const auto [ended, stopped_by] = output_of_tree(command, limit, kGrace);
  run.calls = read_calls(*folder);
  folder.reset();
  if (stopped_by) ::raise(stopped_by);
  if (!ended)
    throw ConfigError({fmt::format("'{}' did not end within {}", run.path, counted(limit.count(), "second")),
                       kRunScript, "leave out what it waits for, or give the command that it starts"});
  std::vector<std::string> output = split(ended->err.empty() ? ended->out : ended->err, '\n');
  std::erase(output, "");
  const std::string last = output.empty() ? "" : output.back();
  if (ended->exit_code != 0)
    throw ConfigError({fmt::format("'{}' ended with exit code {}: {}", run.path, ended->exit_code, in_quotes(last)),
                       kRunScript,
                       fmt::format("set the variables that it needs, give its arguments (--run-script '{} ARGUMENT'), "
                                   "or give the command that it starts",
                                   run.path)});
  if (run.calls.empty())
    throw ConfigError({fmt::format("'{}' called neither python nor torchrun, srun or sbatch", run.path), kRunScript,
                       "a program that is called by its path is executed, not recorded: call it by its name, or give "
                       "the command that the script starts"});
  return run;
}

std::string started_command(const ScriptRun& run) {
  std::vector<RecordedCall> calls;  // of torchrun if there are any, without repetitions
  const auto add = [&](const RecordedCall& call) {
    if (std::ranges::find(calls, call.words, &RecordedCall::words) == calls.end()) calls.push_back(call);
  };
  for (const RecordedCall& call : run.calls)
    if (calls_torchrun(joined_quoted(call.words))) add(call);
  if (calls.empty())
    for (const RecordedCall& call : run.calls) add(call);
  if (calls.size() > 1)
    throw ConfigError({fmt::format("'{}' starts several programs: {} and {}", run.path,
                                   in_quotes(joined_quoted(calls[0].words)), in_quotes(joined_quoted(calls[1].words))),
                       kRunScript, "one job starts one set of ranks: split the script, or give one of the commands"});
  std::string text;
  if (calls[0].folder != fs::current_path()) text += fmt::format("cd {}\n", shell_quoted(calls[0].folder));
  for (const auto& [name, value] : calls[0].environment)
    text += fmt::format("export {}={}\n", name, shell_quoted(value));
  return text + joined_quoted(calls[0].words) + "\n";
}

}  // namespace braid
