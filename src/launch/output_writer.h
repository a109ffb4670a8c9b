// Writes to stdout and stderr from a thread of its own, so that a reader who is slow or has stopped cannot stop the
// launcher: it still hears signals and ends its ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace braid {

class OutputWriter {
 public:
  OutputWriter();
  ~OutputWriter();  // gives the reader a moment to take the rest

  void write(int fd, const std::string& text);
  bool full() const;  // much is waiting: better read no more from the ranks

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
};

}  // namespace braid
