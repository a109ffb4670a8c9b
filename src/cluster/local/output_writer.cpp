#include "cluster/local/output_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "base/terminal.h"
#include "cluster/local/progress_bar.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostWaiting = 1 << 20;
constexpr std::chrono::milliseconds kBetweenDraws{100};

// Avoids stdio: a thread stuck in it would hold a lock that exit() needs.
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

// Prints only if stderr accepts the line at once: it may have the same stuck reader.
void tell_if_there_is_room(std::string_view line) {
  pollfd entry = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&entry, 1, 0) == 1 && entry.revents == POLLOUT) write_fully(STDERR_FILENO, line);
}

}  // namespace

// Shared with the writing thread, which outlives the writer when it is stuck in a write.
struct OutputWriter::Queue {
  explicit Queue(int bar_fd) : bar(bar_fd) {}

  struct Entry {
    int fd;
    std::string text;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;
  std::size_t bytes = 0;
  std::optional<RunProgress> progress;
  bool bar_is_outdated = false, closing = false, ended = false, incomplete = false;

  StatusLine bar;  // this and the next: used only by the writing thread
  Clock::time_point next_draw = Clock::now();

  void drain() {
    std::unique_lock lock(mutex);
    while (true) {
      wait_for_work(lock);
      if (!entries.empty())
        write_first(lock);
      else if (closing)
        break;
      else
        draw(lock);
    }
    lock.unlock();
    bar.clear();
    lock.lock();
    ended = true;
    changed.notify_all();
  }

  void wait_for_work(std::unique_lock<std::mutex>& lock) {
    const auto has_work = [&] { return closing || !entries.empty() || (bar_is_outdated && Clock::now() >= next_draw); };
    while (!has_work()) {
      if (bar_is_outdated)
        changed.wait_until(lock, next_draw);
      else
        changed.wait(lock);
    }
  }

  void write_first(std::unique_lock<std::mutex>& lock) {
    const Entry entry = std::move(entries.front());
    entries.pop_front();
    lock.unlock();
    if (isatty(entry.fd)) bar.clear();
    const int error = write_fully(entry.fd, entry.text) ? 0 : errno;
    // The launcher reads its signals from a queue, so SIGPIPE tells it that its output has no reader left.
    if (error == EPIPE) kill(getpid(), SIGPIPE);
    const bool lost = error != 0 && error != EPIPE && !has_no_reader(entry.fd);
    if (lost && !incomplete) {
      bar.clear();
      write_fully(STDERR_FILENO, fmt::format("braid: part of standard {} is lost: {}\n",
                                             entry.fd == STDOUT_FILENO ? "output" : "error", std::strerror(error)));
    }
    lock.lock();
    incomplete = incomplete || lost;
    bytes -= entry.text.size();
    bar_is_outdated = progress.has_value();
  }

  void draw(std::unique_lock<std::mutex>& lock) {
    const RunProgress now = *progress;
    bar_is_outdated = false;
    lock.unlock();
    bar.draw(to_line(now, bar.columns()));
    next_draw = Clock::now() + kBetweenDraws;
    lock.lock();
  }
};

OutputWriter::OutputWriter(int bar_fd, std::chrono::milliseconds patience)
    : patience_(patience), queue_(std::make_shared<Queue>(bar_fd)) {
  std::thread([queue = queue_] { queue->drain(); }).detach();
}

OutputWriter::~OutputWriter() { finish(); }

bool OutputWriter::finish() {
  std::unique_lock lock(queue_->mutex);
  if (!queue_->closing) {
    queue_->closing = true;
    queue_->changed.notify_all();
    if (!queue_->changed.wait_for(lock, patience_, [&] { return queue_->ended; }))
      tell_if_there_is_room("braid: the last output is lost: its reader did not read it in time\n");
  }
  return queue_->ended && !queue_->incomplete;
}

void OutputWriter::write(int fd, const std::string& text) {
  std::lock_guard lock(queue_->mutex);
  queue_->entries.push_back({fd, text});
  queue_->bytes += text.size();
  queue_->changed.notify_all();
}

void OutputWriter::show(const RunProgress& progress) {
  std::lock_guard lock(queue_->mutex);
  queue_->progress = progress;
  queue_->bar_is_outdated = true;
  queue_->changed.notify_all();
}

std::optional<RunProgress> OutputWriter::last_shown() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->progress;
}

bool OutputWriter::full() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->bytes > kMostWaiting;
}

}  // namespace braid
