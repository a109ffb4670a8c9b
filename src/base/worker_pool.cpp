#include "base/worker_pool.h"

namespace braid {

WorkerPool::WorkerPool(int threads) {
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  next_ = 0;
  count_ = count;
  error_ = nullptr;
  if (count > 1) changed_.notify_all();
  take_items(lock);
  changed_.wait(lock, [&] { return running_ == 0; });
  work_ = nullptr;
  count_ = 0;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void WorkerPool::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || next_ < count_; });
    if (stopping_) return;
    take_items(lock);
  }
}

void WorkerPool::take_items(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const std::size_t item = next_++;
    const auto* work = work_;
    ++running_;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*work)(item);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && (!error_ || item < failed_)) {
      error_ = error;
      failed_ = item;
    }
    if (--running_ == 0 && next_ >= count_) changed_.notify_all();
  }
}

}  // namespace braid
