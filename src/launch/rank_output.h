// What ranks print, line by line: to this process's stdout or stderr behind a prefix per rank, and to log
// files.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>

#include "base/socket.h"

namespace braid {

class RankOutput {
 public:
  // `log_dir` may be empty. ConfigError when it cannot be written.
  RankOutput(int rank, int ranks, const std::string& log_dir);

  // Moves some of what is readable from `pipe` to `stream`; false at its end. Some, so that a rank which prints without
  // end cannot keep the launcher from everything else.
  bool pump(const Fd& pipe, std::FILE* stream);

 private:
  void print_line(const std::string& line, std::FILE* stream);

  std::string prefix_, coloured_prefix_;
  std::ofstream log_;
  std::string pending_out_, pending_err_;  // lines that have not ended yet
};

}  // namespace braid
