// Forwards the output of ranks line by line: to this process's stdout or stderr with a rank prefix, and to log files.
// Control lines (comm/control_line.h) are interpreted instead.
#pragma once

#include <fstream>
#include <string>

#include "base/socket.h"
#include "cluster/local/output_writer.h"
#include "comm/control_line.h"

namespace braid {

// Logs of earlier starts stay: adds a line to each, after which this start's lines follow. Readers of logs (doctor,
// report) know a new start by it, also in the logs of ranks that this start does not have.
void mark_start_in_logs(const std::string& log_dir, int ranks);

class RankOutput {
 public:
  // `log_dir` may be empty; a log that exists is continued. ConfigError if it cannot be written.
  RankOutput(int rank, int ranks, const std::string& log_dir, OutputWriter& writer);

  // Moves a limited amount of readable data from `pipe` to `stream` (STDOUT_FILENO or STDERR_FILENO), so that a rank
  // that prints endlessly cannot block the launcher. False at end of file.
  bool pump(const Fd& pipe, int stream);

  bool lost_output() const { return lost_output_; }         // some output was lost; stderr has the reason
  int ended_by_signal() const { return ended_by_signal_; }  // as the rank said; 0: none

 private:
  void take_line(const std::string& line, int stream);
  void obey(const ControlLine& control);
  void append_to_log(const std::string& line);

  OutputWriter& writer_;
  std::string prefix_, coloured_prefix_, log_path_;
  std::ofstream log_;
  bool lost_output_ = false;
  int ended_by_signal_ = 0;
  std::string pending_out_, pending_err_;  // lines that have not ended yet
};

}  // namespace braid
