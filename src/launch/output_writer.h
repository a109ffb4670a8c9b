// Writes to stdout and stderr from a thread of its own, so that a reader who is slow or has stopped cannot stop the
// launcher: it still hears signals and ends its ranks. A progress bar, once there is something to show, stays below all
// other output.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "dist/control_line.h"

namespace braid {

class OutputWriter {
 public:
  // The bar is drawn where that is a terminal; `patience` is that of finish().
  explicit OutputWriter(int bar_fd, std::chrono::milliseconds patience = std::chrono::seconds(3));
  ~OutputWriter();  // see finish()

  void write(int fd, const std::string& text);  // whole lines
  void show(const RunProgress& progress);
  std::optional<RunProgress> last_shown() const;
  // Gives the reader a moment, once, to take the rest; then nothing is written any more. False when something could not
  // be written or was not taken, which stderr has been told. If no reader is left, this process gets SIGPIPE.
  bool finish();
  bool full() const;  // much is waiting: better read no more from the ranks

 private:
  struct Queue;
  const std::chrono::milliseconds patience_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace braid
