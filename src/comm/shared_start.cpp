#include "comm/shared_start.h"
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "base/process.h"
#include "base/strings.h"
#include "comm/world_spec.h"

namespace braid {
namespace {

constexpr const char* kVariable = "BRAID_SHARED_START";
constexpr int kFailed = 127;

SharedStart parse(const std::string& text) {
  const auto numbers =
      vector_of<int>(split(text, ' '), [](const std::string& word) { return parse_int(word).value_or(-1); });
  SharedStart start = {.launcher = numbers.at(0), .pids = numbers.at(1), .go = numbers.at(2)};
  for (std::size_t i = 3; i + 1 < numbers.size(); i += 2) start.outputs.emplace_back(numbers[i], numbers[i + 1]);
  return start;
}

// Its parent ends at once, so the launcher, which adopts orphans, becomes its parent before it says "go".
void become(int rank, const SharedStart& start) {
  setpgid(0, 0);
  const StartedRank started = {rank, getpid()};
  char go;
  if (write(start.pids, &started, sizeof started) != sizeof started || TEMP_FAILURE_RETRY(read(start.go, &go, 1)) != 1)
    _exit(kFailed);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != start.launcher) _exit(kFailed);  // it died before the line above
  const auto [out, err] = start.outputs[static_cast<std::size_t>(rank)];
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (const int fd : {start.pids, start.go}) close(fd);
  for (const auto& [other_out, other_err] : start.outputs) close(other_out), close(other_err);
  const std::string number = std::to_string(rank);
  for (const char* variable : {"RANK", "LOCAL_RANK"}) setenv(variable, number.c_str(), 1);
  if (rank == 0) return;
  if (const auto socket = parse_int(process_env()(kStoreSocket).value_or(""))) close(*socket);
  unsetenv(kStoreSocket);
}

// A library in LD_PRELOAD (a profiler, say) may have started threads, which a fork does not copy.
bool has_threads() {
  std::error_code ignored;
  const std::filesystem::directory_iterator tasks("/proc/self/task", ignored);
  return std::distance(begin(tasks), end(tasks)) != 1;
}

[[noreturn]] void start_again() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  words[0] = own_executable();
  replace_process(words);
}

}  // namespace

std::map<std::string, std::string> to_env(const SharedStart& start) {
  std::string text = fmt::format("{} {} {}", start.launcher, start.pids, start.go);
  for (const auto& [out, err] : start.outputs) text += fmt::format(" {} {}", out, err);
  return {{kVariable, text}};
}

void fork_into_ranks() {
  const auto text = process_env()(kVariable);
  if (!text) return;
  unsetenv(kVariable);
  const SharedStart start = parse(*text);
  const bool again = has_threads();
  for (int rank = 0; rank < std::ssize(start.outputs); ++rank) {
    const pid_t pid = fork();
    if (pid > 0) continue;
    if (pid < 0) _exit(kFailed);
    become(rank, start);
    if (again) start_again();
    return;
  }
  _exit(0);
}

}  // namespace braid
