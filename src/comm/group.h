// A process group. The collectives here work in place on plain tensors; comm/collectives.h has those with autograd.
// Every call returns once its result may be read on the current stream, is visible to the failure board while it runs,
// and throws CommError naming group, operation and ranks when it fails. With NCCL a call returns when it is queued;
// then the board sees how far the device is and reports a peer's failure.
//
// start_...() does not wait for peers and returns a Pending to wait for later. All ranks of a group must start its
// operations in the same order. The board counts a rank as arrived at the start, and as waiting during the wait.
#pragma once

#include <c10/util/intrusive_ptr.h>

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

class CommMeter;
class Pending;
class Progress;

enum class Reduce { Sum, Max };

class Group {  // cheap to copy
 public:
  // `ranks` are global and ascending, and `ranks[group_rank]` is this rank. A group of one needs no backend. Without a
  // meter, operations are not timed. Callers include c10d/Backend.hpp.
  Group(std::string name, std::vector<int> ranks, int group_rank, const c10::Device& device,
        c10::intrusive_ptr<c10d::Backend> backend, Progress& progress, std::shared_ptr<CommMeter> meter = nullptr);
  Group(std::string name, const c10::Device& device, Progress& progress);  // of rank 0 alone

  const std::string& name() const;
  int rank() const;  // in this group
  int size() const;
  const std::vector<int>& ranks() const;
  c10::Device device() const;  // of its tensors

  void all_reduce(at::Tensor& tensor, Reduce op = Reduce::Sum) const;
  void broadcast(at::Tensor& tensor, int root) const;
  void reduce(at::Tensor& tensor, int root) const;                     // the sum at the root; on other ranks undefined
  void all_gather(at::Tensor& output, const at::Tensor& input) const;  // [size * n, ...] from [n, ...]
  void reduce_scatter(at::Tensor& output, const at::Tensor& input) const;  // [n, ...] from [size * n, ...]
  void all_to_all(at::Tensor& output, const at::Tensor& input, const std::vector<std::int64_t>& output_rows,
                  const std::vector<std::int64_t>& input_rows) const;  // rows from and to each rank
  void send(const at::Tensor& tensor, int to) const;
  void receive(at::Tensor& tensor, int from) const;
  void barrier() const;

  // Between start and wait, outputs must not be accessed and inputs must not be written.
  [[nodiscard]] Pending start_all_reduce(at::Tensor& tensor, Reduce op = Reduce::Sum) const;
  [[nodiscard]] Pending start_all_gather(at::Tensor& output, const at::Tensor& input) const;
  [[nodiscard]] Pending start_reduce_scatter(at::Tensor& output, const at::Tensor& input) const;
  [[nodiscard]] Pending start_broadcast(at::Tensor& tensor, int root) const;
  [[nodiscard]] Pending start_reduce(at::Tensor& tensor, int root) const;
  // Several tensors whose rows go the same ways are one operation.
  [[nodiscard]] Pending start_all_to_all(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                                         const std::vector<std::int64_t>& output_rows,
                                         const std::vector<std::int64_t>& input_rows) const;
  // Sends and receives that run together, so that ranks which exchange tensors do not block on each other's first send.
  struct Transfer {
    at::Tensor& tensor;
    int peer;
    bool outgoing;
  };
  [[nodiscard]] Pending start_exchange(const std::vector<Transfer>& transfers, const char* op = "exchange") const;

 private:
  friend class Pending;
  struct State;
  template <class Start>
  Pending start(const char* op, std::string content, at::Tensor& output, const at::Tensor* input, Start start) const;
  std::shared_ptr<const State> state_;
};

// An operation in flight, with the tensors it works on. If it is destroyed without a wait, as when an exception
// unwinds, the operation continues, keeps its tensors alive, and its result is discarded.
class Pending {
 public:
  Pending() = default;  // no operation: wait() returns at once

  void wait();  // returns or throws as the blocking call would; a second wait() does nothing

 private:
  friend class Group;
  struct Operation;
  explicit Pending(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  std::shared_ptr<Operation> operation_;
};

}  // namespace braid
