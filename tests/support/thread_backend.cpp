#include "support/thread_backend.h"
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include "base/error.h"
#include "base/strings.h"
#include "comm/backend_factory.h"
#include "comm/cpu_share.h"
#include "comm/world.h"
#include "support/thread_exchange.h"

namespace braid {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

class ThreadWork : public c10d::Work {
 public:
  ThreadWork(ThreadExchange& exchange, std::shared_ptr<ThreadExchange::Communicator> communicator,
             std::vector<PostedOpPtr> ops)
      : exchange_(exchange), communicator_(std::move(communicator)), ops_(std::move(ops)) {}

  bool wait(std::chrono::milliseconds) override {
    for (const PostedOpPtr& op : ops_) exchange_.wait(*communicator_, *op);
    return true;
  }

 private:
  ThreadExchange& exchange_;
  std::shared_ptr<ThreadExchange::Communicator> communicator_;
  std::vector<PostedOpPtr> ops_;
};

class ThreadBackend : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadExchange> exchange, std::shared_ptr<ThreadExchange::Communicator> communicator,
                int rank, int size)
      : Backend(rank, size), exchange_(std::move(exchange)), communicator_(std::move(communicator)) {}

  const std::string getBackendName() const override { return "threads"; }
  bool supportsCoalescing() const override { return true; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return post({.kind = OpKind::AllReduce,
                 .input = tensors.at(0),
                 .output = tensors.at(0),
                 .reduce = from_c10d(options.reduceOp)});
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return post({.kind = OpKind::Broadcast, .output = tensors.at(0), .peer = static_cast<int>(options.rootRank)});
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return post({.kind = OpKind::Reduce,
                 .input = tensors.at(0),
                 .output = tensors.at(0),
                 .reduce = from_c10d(options.reduceOp),
                 .peer = static_cast<int>(options.rootRank)});
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return post({.kind = OpKind::AllGather, .input = input, .output = output});
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return post(
        {.kind = OpKind::ReduceScatter, .input = input, .output = output, .reduce = from_c10d(options.reduceOp)});
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_rows,
                        std::vector<std::int64_t>& input_rows, const c10d::AllToAllOptions&) override {
    return post({.kind = OpKind::AllToAll,
                 .input = input,
                 .output = output,
                 .input_rows = input_rows,
                 .output_rows = output_rows});
  }
  WorkPtr send(Tensors& tensors, int to, int) override {
    return post({.kind = OpKind::Send, .input = tensors.at(0), .peer = to});
  }
  WorkPtr recv(Tensors& tensors, int from, int) override {
    return post({.kind = OpKind::Receive, .output = tensors.at(0), .peer = from});
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return post({.kind = OpKind::Barrier}); }

  void startCoalescing() override { coalescing_ = true; }
  WorkPtr endCoalescing() override {
    coalescing_ = false;
    return post_batch(std::exchange(batch_, {}));
  }

 private:
  WorkPtr post(PostedOp op) {
    op.group_rank = getRank();
    auto posted = std::make_shared<PostedOp>(std::move(op));
    if (!coalescing_) return post_batch({std::move(posted)});
    batch_.push_back(std::move(posted));
    return c10::make_intrusive<ThreadWork>(*exchange_, communicator_, std::vector<PostedOpPtr>{});
  }

  WorkPtr post_batch(std::vector<PostedOpPtr> batch) {
    exchange_->post(*communicator_, getRank(), batch);
    return c10::make_intrusive<ThreadWork>(*exchange_, communicator_, std::move(batch));
  }

  static Reduce from_c10d(const c10d::ReduceOp& op) {
    if (op == c10d::ReduceOp::SUM) return Reduce::Sum;
    BRAID_CHECK(op == c10d::ReduceOp::MAX, "threads reduce by sum or maximum only");
    return Reduce::Max;
  }

  std::shared_ptr<ThreadExchange> exchange_;
  std::shared_ptr<ThreadExchange::Communicator> communicator_;
  bool coalescing_ = false;
  std::vector<PostedOpPtr> batch_;
};

// The first exception of any rank, and where each rank was when a deadlock was found.
class Outcome {
 public:
  void note(int rank, const std::string& op, std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!first_) first_ = error;
    ranks_at_[op].push_back(rank);
  }

  void rethrow(bool deadlocked) {
    if (!first_) return;
    if (!deadlocked) std::rethrow_exception(first_);
    std::string text = "deadlock: every rank waits for another";
    for (auto& [op, ranks] : ranks_at_) {
      std::sort(ranks.begin(), ranks.end());
      text += fmt::format("; rank{} {} in {}", ranks.size() > 1 ? "s" : "", fold_ranks(ranks), op);
    }
    throw CommError(text);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
  std::map<std::string, std::vector<int>> ranks_at_;
};

}  // namespace

void run_as_threads(int size, const std::function<void(World&)>& body, ThreadSemantics semantics) {
  work_around_blas();
  auto exchange = std::make_shared<ThreadExchange>(size, semantics);
  const MakeBackend make_backend = [&](const std::string& name, const std::vector<int>& ranks, int group_rank) {
    return c10::make_intrusive<ThreadBackend>(exchange, exchange->communicator(name, ranks), group_rank,
                                              static_cast<int>(ranks.size()));
  };
  Outcome outcome;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      Progress progress;
      World world(rank, size, c10::kCPU, make_backend, progress);
      try {
        body(world);
      } catch (const std::exception& e) {
        outcome.note(rank, progress.op_at_failure(), std::current_exception());
        exchange->abort(fmt::format("rank {} failed: {}", rank, e.what()));
      }
      exchange->rank_ended();
    });
  for (std::thread& thread : threads) thread.join();
  outcome.rethrow(exchange->deadlocked());
}

}  // namespace braid
