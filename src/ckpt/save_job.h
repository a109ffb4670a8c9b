// One writer's part in saving an iteration, on a thread of its own: its shards into a file, that file to disk, and on
// one writer, the publisher, the whole put together when all have handed in theirs. See ckpt/checkpoint_folder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "formats/pickle.h"

namespace braid {

// A box of a stored tensor.
struct KeyedTensor {
  std::string key;
  std::vector<std::int64_t> shape, begin;  // of the whole, and of this box in it
  at::Tensor value;                        // as many dimensions as the whole
};

// The tensors as they are now, contiguous and on the CPU, in one piece of memory that goes back to the system with the
// last of them.
std::vector<KeyedTensor> copied_to_host(std::vector<KeyedTensor> tensors);

// The same for a save that training waits for: what is on the CPU and contiguous already is not copied.
std::vector<KeyedTensor> taken_to_host(std::vector<KeyedTensor> tensors);

struct SaveContent {
  std::vector<KeyedTensor> tensors{};  // on the CPU and contiguous; let go of when they are written
  std::vector<std::pair<std::string, PickleValue>> objects{};
  PickleValue common{};  // the publisher's
};

struct SavePlace {
  std::string root{};  // where begin_iteration() has been
  std::int64_t iteration = 0;
  int writer = 0, writers = 1, publisher = 0;
  std::optional<int> keep_last{};  // how many iterations stay
  std::function<void()> check{};   // on the publisher: throws when another run has taken the folder over
};

// What the publisher tells of a save.
struct Saved {
  std::int64_t bytes = 0;
  std::string note{};  // what else did not work
  std::chrono::steady_clock::time_point at{};
};

class SaveJob {
 public:
  SaveJob(SaveContent content, SavePlace place);
  ~SaveJob();  // gives up what is not finished

  bool done() const { return done_; }
  // When done: throws what went wrong; something on the publisher only.
  std::optional<Saved> result() const;

  std::int64_t iteration() const { return place_.iteration; }
  std::int64_t bytes_written() const { return written_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  void run();
  void write();
  void publish_all();

  SaveContent content_;
  const SavePlace place_;
  const std::int64_t bytes_;
  std::atomic<std::int64_t> written_ = 0;
  std::atomic<bool> done_ = false, cancelled_ = false;
  std::exception_ptr error_;
  std::optional<Saved> saved_;
  std::thread thread_;  // last: it uses all of them
};

}  // namespace braid
