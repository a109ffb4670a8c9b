// Programs that tests start: where they are, and their results.
#pragma once

namespace braid::testing {

std::string built_program(const std::string& name);  // another program of this test's build

struct Finished {
  int exit_code = 0;
  std::string out, err;
};

// Runs a program to its end; `env` is added to this process's environment.
Finished run_program(const std::vector<std::string>& command, const std::map<std::string, std::string>& env = {});

// A folder of its own for one test, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const;  // returns the file's path

 private:
  std::string path_;
};

std::string read_file(const std::string& path);

}  // namespace braid::testing
