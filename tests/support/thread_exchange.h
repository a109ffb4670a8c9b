// The rendezvous of the thread backend: ranks post operations, and the rank that completes one carries it out for all.
// Independent of c10d.
#pragma once

#include <ATen/core/Tensor.h>
#include "comm/group.h"
#include "support/thread_backend.h"

namespace braid {

enum class OpKind { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, AllToAll, Barrier, Send, Receive };

struct PostedOp {
  OpKind kind;
  int group_rank = 0;
  at::Tensor input{}, output{};  // all_reduce, broadcast and reduce work in place on `output`
  Reduce reduce = Reduce::Sum;
  int peer = 0;                                           // of a send or receive; root of a broadcast or reduce
  std::vector<std::int64_t> input_rows{}, output_rows{};  // of an all-to-all
  at::Tensor delivered_to{};                              // in one queue: where wait() puts the output

  bool done = false;
  std::string error{};
};

using PostedOpPtr = std::shared_ptr<PostedOp>;

class ThreadExchange {
 public:
  ThreadExchange(int world_size, ThreadSemantics semantics);

  // One communicator per (name, ranks), created on first use.
  struct Communicator {
    struct Batch {
      std::int64_t number;  // counts the batches that the rank posted to all communicators
      std::vector<PostedOpPtr> ops;
    };
    std::vector<int> ranks;
    std::vector<std::deque<Batch>> queues;  // by group rank, in posting order
    int incomplete_transfers = 0;
  };
  std::shared_ptr<Communicator> communicator(const std::string& name, const std::vector<int>& ranks);

  // Operations of one batch (a coalesced group of sends and receives, else a single one) run together.
  void post(Communicator& communicator, int group_rank, std::vector<PostedOpPtr> batch);
  void wait(const Communicator& communicator, PostedOp& op);  // CommError when it failed or the run is aborted

  void rank_ended();
  void abort(const std::string& reason);  // wakes every waiting rank
  bool deadlocked() const;

 private:
  void run_ready();
  bool run_one(Communicator& communicator);
  bool run_collective(Communicator& communicator);
  bool run_transfer(Communicator& communicator);
  std::vector<PostedOpPtr> active(const Communicator& communicator, int group_rank) const;
  void complete(Communicator& communicator, const PostedOpPtr& op);
  void wake_all();
  void check_deadlock();

  const ThreadSemantics semantics_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Communicator>> communicators_;
  std::vector<std::condition_variable> wake_;                      // by global rank
  std::vector<std::map<std::int64_t, Communicator*>> incomplete_;  // by global rank: its batches' numbers
  std::vector<std::int64_t> posted_;                               // by global rank: its batches so far
  std::deque<Communicator*> changed_;                              // whose oldest operations may run now
  std::vector<const PostedOp*> waiting_;  // by global rank: the operation it waits for, unless that is complete
  int blocked_ = 0, alive_;
  bool deadlocked_ = false;
  std::string abort_reason_;
};

}  // namespace braid
