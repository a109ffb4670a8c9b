// Only one run at a time saves to a folder. It holds `<root>/.braid_lock`, which identifies it.
//
// The next run breaks a lock whose holder is gone, without the user's help:
//   - written on this machine: its process has ended (by pid and start time);
//   - written by an earlier start of this Slurm job, which has been requeued since;
//   - otherwise: its time stamp, which a holder renews every few seconds, stays the same for a minute.
// A live holder that was considered dead finds out before its next save.
#pragma once

namespace braid {

// The Slurm job of a run, if any.
struct JobIdentity {
  std::string id{};
  std::int64_t restarts = 0;  // how often it has been requeued
};

class SaveLock {
 public:
  struct Options {
    JobIdentity job{};
    std::chrono::milliseconds beat{5000};  // between two renewals of the time stamp
    int silent_beats = 12;                 // so many intervals without a renewal mean that the holder is gone
    std::function<void(const std::string& text)> say{};
    // The text() of the launcher's lock, which is renewed and checked here, but neither taken nor released.
    std::string held{};
  };

  // Creates the folder if missing. ConfigError when it is not writable, or when another live run saves to it.
  explicit SaveLock(std::string root) : SaveLock(std::move(root), Options()) {}
  SaveLock(std::string root, Options options);
  ~SaveLock();  // releases the folder
  SaveLock(const SaveLock&) = delete;

  const std::string& text() const { return own_; }

  // std::runtime_error when another run has taken over the folder.
  void check();

 private:
  void acquire();
  bool create();  // false: there is already a lock
  bool is_gone(const std::string& text) const;
  bool is_silent(const std::string& text) const;
  void take_away(const std::string& text) const;
  [[noreturn]] void refuse(const std::string& text) const;
  void keep_renewing();
  void say(const std::string& text) const {
    if (options_.say) options_.say(text);
  }

  const std::string root_, path_;
  const Options options_;
  const std::string own_;  // the text of the lock
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;
  std::thread renewal_;
};

// Whether a name in a folder of checkpoints is that of a lock, or of a lock being created.
bool is_save_lock(std::string_view name);
bool is_unfinished_save_lock(std::string_view name);

}  // namespace braid
