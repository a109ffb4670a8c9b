#include "launch/output_writer.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>

namespace braid {
namespace {

constexpr std::size_t kMostWaiting = 1 << 20;
constexpr std::chrono::seconds kPatience{3};

// Not through stdio: a thread stuck in there would hold a lock that exit() needs.
bool write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size > 0)
      text.remove_prefix(static_cast<std::size_t>(size));
    else if (errno != EINTR && errno != EAGAIN)
      return false;
  }
  return true;
}

}  // namespace

// Shared with the writing thread, which outlives the writer when it is stuck in a write.
struct OutputWriter::Queue {
  struct Entry {
    int fd;
    std::string text;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;
  std::size_t bytes = 0;
  bool closing = false, ended = false;

  void drain() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closing || !entries.empty(); });
      if (entries.empty()) break;
      const Entry entry = std::move(entries.front());
      entries.pop_front();
      lock.unlock();
      // The launcher reads its signals from a queue, and finds there that nobody reads its output any more.
      if (!write_fully(entry.fd, entry.text) && errno == EPIPE) kill(getpid(), SIGPIPE);
      lock.lock();
      bytes -= entry.text.size();
    }
    ended = true;
    changed.notify_all();
  }
};

OutputWriter::OutputWriter() : queue_(std::make_shared<Queue>()) {
  std::thread([queue = queue_] { queue->drain(); }).detach();
}

OutputWriter::~OutputWriter() {
  std::unique_lock lock(queue_->mutex);
  queue_->closing = true;
  queue_->changed.notify_all();
  queue_->changed.wait_for(lock, kPatience, [&] { return queue_->ended; });
}

void OutputWriter::write(int fd, const std::string& text) {
  std::lock_guard lock(queue_->mutex);
  queue_->entries.push_back({fd, text});
  queue_->bytes += text.size();
  queue_->changed.notify_all();
}

bool OutputWriter::full() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->bytes > kMostWaiting;
}

}  // namespace braid
