#include "support/programs.h"
#include <csignal>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/process.h"
#include "cluster/local/rank_process.h"

namespace braid::testing {

namespace fs = std::filesystem;

// A shell's background job ignores SIGINT, and so would every program that a test sends it to.
static const auto before_tests = std::signal(SIGINT, SIG_DFL);

std::string built_program(const std::string& name) {
  return (fs::path(own_executable()).parent_path() / name).string();
}

Finished run_program(const std::vector<std::string>& command, const std::map<std::string, std::string>& env) {
  RankProcess process = spawn_rank(command, env);
  Finished finished;
  const auto drain = [](Fd& pipe, std::string& text) {
    char buffer[16384];
    ssize_t size;
    while ((size = read(pipe.get(), buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(size));
    if (size == 0) pipe = Fd();
  };
  while (process.out || process.err) {
    pollfd entries[] = {{process.out.get(), POLLIN, 0}, {process.err.get(), POLLIN, 0}};  // -1 is passed over
    poll(entries, 2, -1);
    if (process.out) drain(process.out, finished.out);
    if (process.err) drain(process.err, finished.err);
  }
  int status = 0;
  waitpid(process.pid, &status, 0);
  finished.exit_code = exit_code_of(status);
  return finished;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "braid-test-XXXXXX").string();
  path_ = mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() { fs::remove_all(path_); }

std::string TemporaryFolder::write(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path) << text;
  return path;
}

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace braid::testing
