// Prepares batches on a thread before they are requested.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "data/batches/batch.h"

namespace braid {

template <class Batch>
class ReadAhead : public BatchReader<Batch> {
 public:
  // Prepares up to `ahead` batches, and stops sooner once the prepared ones hold `most_bytes`. `pin`: in pinned memory,
  // from which a GPU copies without the host.
  ReadAhead(std::unique_ptr<BatchReader<Batch>> reader, std::size_t ahead, std::int64_t most_bytes, bool pin)
      : reader_(std::move(reader)), ahead_(ahead), most_bytes_(most_bytes), pin_(pin), thread_([this] { read(); }) {}

  ~ReadAhead() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Rethrows an error of the reader in place of its batch.
  Batch next() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || error_; });
    if (ready_.empty()) std::rethrow_exception(error_);
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    held_bytes_ -= bytes_of(batch);
    changed_.notify_all();
    return batch;
  }

 private:
  void read() {
    try {
      for (;;) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return stopping_ || (ready_.size() < ahead_ && held_bytes_ < most_bytes_); });
          if (stopping_) return;
        }
        Batch batch = reader_->next();
        if (pin_) batch = pinned(std::move(batch));
        std::lock_guard lock(mutex_);
        held_bytes_ += bytes_of(batch);
        ready_.push_back(std::move(batch));
        changed_.notify_all();
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  const std::unique_ptr<BatchReader<Batch>> reader_;
  const std::size_t ahead_;
  const std::int64_t most_bytes_;
  const bool pin_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::int64_t held_bytes_ = 0;  // in ready_
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace braid
