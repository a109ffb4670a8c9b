// Writes to stdout and stderr from a separate thread, so that a slow or stuck reader cannot block the launcher: it
// still handles signals and ends its ranks. A progress bar, once there is progress, stays below all other output.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "comm/control_line.h"

namespace braid {

class OutputWriter {
 public:
  // The bar is drawn only if `bar_fd` is a terminal. `patience` limits how long finish() waits.
  explicit OutputWriter(int bar_fd, std::chrono::milliseconds patience = std::chrono::seconds(3));
  ~OutputWriter();  // see finish()

  void write(int fd, const std::string& text);  // whole lines
  void show(const RunProgress& progress);
  std::optional<RunProgress> last_shown() const;
  // Waits once, for at most `patience`, until the reader has taken the rest; after that nothing is written. False if
  // some output could not be written or was not taken, which is also reported on stderr. If no reader is left, this
  // process gets SIGPIPE.
  bool finish();
  bool full() const;  // the queue is long: stop reading from the ranks for now

 private:
  struct Queue;
  const std::chrono::milliseconds patience_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace braid
