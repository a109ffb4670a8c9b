// Threads that share the items of a list. Which thread gets which item never changes a result.
#pragma once

namespace braid {

class WorkerPool {
 public:
  explicit WorkerPool(int threads);  // one of them is the caller's
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;

  // Calls work(0) ... work(count - 1), each once, and returns when all have returned. Rethrows the first exception by
  // index. One caller at a time.
  void run(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  void serve();
  void take_items(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::size_t next_ = 0, count_ = 0, running_ = 0, failed_ = 0;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace braid
