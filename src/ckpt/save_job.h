// One writer's share of saving an iteration, on a separate thread: writes its shards to a file, syncs it to disk and,
// on one writer, the publisher, completes the checkpoint when all have handed in. See ckpt/checkpoint_folder.h.
#pragma once

#include <ATen/core/Tensor.h>
#include "formats/pickle.h"

namespace braid {

// A box of a stored tensor.
struct KeyedTensor {
  std::string key;
  std::vector<std::int64_t> shape, begin;  // of the whole tensor, and this box's begin in it
  at::Tensor value;                        // as many dimensions as the whole tensor
};

// Contiguous copies on the CPU, in one block of memory that is returned to the system with the last of them.
std::vector<KeyedTensor> copied_to_host(std::vector<KeyedTensor> tensors);

// The same for a synchronous save: tensors that are already contiguous on the CPU are not copied.
std::vector<KeyedTensor> taken_to_host(std::vector<KeyedTensor> tensors);

struct SaveContent {
  std::vector<KeyedTensor> tensors{};  // on the CPU and contiguous; released once written
  std::vector<std::pair<std::string, PickleValue>> objects{};
  PickleValue common{};  // on the publisher
};

struct SaveTarget {
  std::string root{};  // after begin_iteration()
  std::int64_t iteration = 0;
  int writer = 0, writers = 1, publisher = 0;
  std::optional<int> keep_last{};  // how many iterations to keep
  std::function<void()> check{};   // on the publisher: throws when another run has taken over the folder
};

// The publisher's report of a save.
struct Saved {
  std::int64_t bytes = 0;
  std::string note{};  // what else failed
  std::chrono::steady_clock::time_point at{};
};

class SaveJob {
 public:
  SaveJob(SaveContent content, SaveTarget target);
  ~SaveJob();  // cancels an unfinished save

  bool done() const { return done_; }
  // After it is done: rethrows its error; returns a value on the publisher only.
  std::optional<Saved> result() const {
    if (error_) std::rethrow_exception(error_);
    return saved_;
  }

  std::int64_t iteration() const { return target_.iteration; }
  std::int64_t bytes_written() const { return written_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  void write();
  void publish_all();

  SaveContent content_;
  const SaveTarget target_;
  const std::int64_t bytes_;
  std::atomic<std::int64_t> written_ = 0;
  std::atomic<bool> done_ = false, cancelled_ = false;
  std::exception_ptr error_;
  std::optional<Saved> saved_;
  std::thread thread_;  // last: it uses all of them
};

}  // namespace braid
