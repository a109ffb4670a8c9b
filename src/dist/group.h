// One set of ranks that can talk. The collectives here work in place on plain tensors; dist/collectives.h has those
// with autograd. Every call returns once its result may be read on the current stream, is visible to the failure board
// while it runs, and throws CommError naming group, operation and ranks when it breaks.
//
// Most are also there in two parts: start_...() does not wait for anybody, and what it returns is awaited later. All
// ranks of a group start its operations in the same order. The board sees a rank come with the start and wait with the
// wait.
//
// On NCCL a call returns when it is queued: the board then sees the host's progress only, and a peer's failure is known
// through the board, not through an exception here.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
}
namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace braid {

class Progress;

enum class Reduce { Sum, Max };

class Pending;

class Group {  // cheap to copy
 public:
  // `ranks` are global, ascending, and `ranks[group_rank]` is this rank. Without a backend the group must be
  // of size 1.
  Group(std::string name, std::vector<int> ranks, int group_rank, const c10::Device& device,
        c10::intrusive_ptr<c10d::Backend> backend, Progress& progress);
  ~Group();
  Group(const Group&);
  Group& operator=(const Group&);

  const std::string& name() const;
  int rank() const;  // in this group
  int size() const;
  const std::vector<int>& ranks() const;
  c10::Device device() const;  // where its tensors live

  void all_reduce(at::Tensor& tensor, Reduce op = Reduce::Sum) const;
  void broadcast(at::Tensor& tensor, int root) const;
  void all_gather(at::Tensor& output,
                  const at::Tensor& input) const;  // output: [size * n, ...], input: [n, ...]
  void reduce_scatter(at::Tensor& output,
                      const at::Tensor& input) const;  // output: [n, ...], input: [size * n, ...]
  void all_to_all(at::Tensor& output, const at::Tensor& input, const std::vector<std::int64_t>& output_rows,
                  const std::vector<std::int64_t>& input_rows) const;  // rows from and to each rank
  void send(const at::Tensor& tensor, int to) const;
  void receive(at::Tensor& tensor, int from) const;
  // Sends and receives that run together, so that ranks which exchange tensors do not wait for each other's
  // first send.
  struct Transfer {
    at::Tensor& tensor;
    int peer;
    bool outgoing;
  };
  void exchange(const std::vector<Transfer>& transfers) const;
  void barrier() const;

  // Between start and wait, outputs may not be touched and inputs not be written.
  [[nodiscard]] Pending start_all_reduce(at::Tensor& tensor, Reduce op = Reduce::Sum) const;
  [[nodiscard]] Pending start_all_gather(at::Tensor& output, const at::Tensor& input) const;
  [[nodiscard]] Pending start_reduce_scatter(at::Tensor& output, const at::Tensor& input) const;
  [[nodiscard]] Pending start_broadcast(at::Tensor& tensor, int root) const;
  [[nodiscard]] Pending start_all_to_all(at::Tensor& output, const at::Tensor& input,
                                         const std::vector<std::int64_t>& output_rows,
                                         const std::vector<std::int64_t>& input_rows) const;
  [[nodiscard]] Pending start_exchange(const std::vector<Transfer>& transfers) const;

 private:
  friend class Pending;
  struct State;
  std::shared_ptr<const State> state_;
};

// An operation that was started, with the tensors it works on. Dropped without a wait, as when an exception unwinds, it
// goes on by itself, its tensors kept; its result is then nobody's.
class Pending {
 public:
  Pending();  // nothing: wait() returns at once
  ~Pending();
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;

  void wait();  // what a blocking call does when it returns or throws; a second wait() does nothing

 private:
  friend class Group;
  struct Operation;
  explicit Pending(std::unique_ptr<Operation> operation);
  std::unique_ptr<Operation> operation_;
};

}  // namespace braid
