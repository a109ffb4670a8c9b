// Only one run at a time saves to a folder: whoever does holds `<root>/.braid_lock`, which says who that is.
//
// A lock is broken by the next run when its holder is gone, without a person's help:
//   - written on this machine: its process is gone (by pid and start time);
//   - written by an earlier start of this Slurm job, which has been queued again since;
//   - otherwise: its time stamp, which a holder renews every few seconds, stays the same for a minute.
// A holder that was taken for gone and is not finds out before it saves the next time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace braid {

// The Slurm job that a run belongs to, where there is one.
struct JobIdentity {
  std::string id{};
  std::int64_t restarts = 0;  // how often it has been queued again
};

class SaveLock {
 public:
  struct Options {
    JobIdentity job{};
    std::chrono::milliseconds beat{5000};  // between two renewals of the time stamp
    int silent_beats = 12;                 // without a renewal that mean that the holder is gone
    std::function<void(const std::string& text)> say{};
    // The text() of a lock that the launcher of this run holds: it is renewed and checked here, but neither taken nor
    // given back.
    std::string held{};
  };

  // Makes the folder where it is missing. ConfigError when nothing can be written there, or when another run that is
  // alive saves to it.
  explicit SaveLock(std::string root);
  SaveLock(std::string root, Options options);
  ~SaveLock();  // gives the folder back
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

  const std::string& text() const { return own_; }

  // std::runtime_error when another run has taken the folder over.
  void check();

 private:
  void acquire();
  bool create();  // false: there is a lock
  bool is_gone(const std::string& text) const;
  bool is_silent(const std::string& text) const;
  void take_away(const std::string& text) const;
  [[noreturn]] void refuse(const std::string& text) const;
  void keep_renewing();
  void say(const std::string& text) const;

  const std::string root_, path_;
  const Options options_;
  const std::string own_;  // the text of the lock
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;
  std::thread renewal_;
};

// Whether a name in a folder of checkpoints is that of a lock, or of one in the making.
bool is_save_lock(std::string_view name);
bool is_unfinished_save_lock(std::string_view name);

}  // namespace braid
