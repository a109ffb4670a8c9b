#include "support/thread_exchange.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include "base/error.h"
#include "comm/backend_factory.h"

namespace braid {
namespace {

bool is_transfer(const PostedOp& op) { return op.kind == OpKind::Send || op.kind == OpKind::Receive; }

using Ops = std::vector<PostedOpPtr>;  // one per group rank

void require(bool agreed, const char* what) {
  if (!agreed) throw CommError(fmt::format("ranks disagree on {}", what));
}

void check_alike(const Ops& ops) {
  for (const PostedOpPtr& op : ops) {
    require(op->kind == ops[0]->kind, "which collective comes next");
    if (op->kind == OpKind::Barrier) continue;
    require(op->output.scalar_type() == ops[0]->output.scalar_type(), "dtype");
    if (op->kind == OpKind::AllToAll) continue;
    require(op->output.sizes() == ops[0]->output.sizes(), "shape");
    require(op->peer == ops[0]->peer && op->reduce == ops[0]->reduce, "root or reduction");
  }
}

// In rank order, and in float for narrower types, so that every run gives the same bits.
at::Tensor reduce(const std::vector<at::Tensor>& parts, Reduce op) {
  const auto dtype = parts[0].scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  at::Tensor total = narrow ? parts[0].to(at::kFloat) : parts[0].clone();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (op == Reduce::Sum)
      total.add_(parts[i]);
    else
      total = at::maximum(total, parts[i].to(total.scalar_type()));
  }
  return total.to(dtype);
}

std::vector<at::Tensor> inputs_of(const Ops& ops) {
  std::vector<at::Tensor> parts;
  for (const PostedOpPtr& op : ops) parts.push_back(op->input);
  return parts;
}

void all_to_all(const Ops& ops) {
  std::vector<std::int64_t> taken(ops.size(), 0);  // rows of each sender's input already handed out
  for (std::size_t to = 0; to < ops.size(); ++to) {
    std::int64_t row = 0;
    for (std::size_t from = 0; from < ops.size(); ++from) {
      const std::int64_t rows = ops[from]->input_rows.at(to);
      require(rows == ops[to]->output_rows.at(from), "how many rows are exchanged");
      ops[to]->output.narrow(0, row, rows).copy_(ops[from]->input.narrow(0, taken[from], rows));
      taken[from] += rows;
      row += rows;
    }
  }
}

void execute(const Ops& ops) {
  at::NoGradGuard guard;
  check_alike(ops);
  switch (ops[0]->kind) {
    case OpKind::AllReduce: {
      const at::Tensor total = reduce(inputs_of(ops), ops[0]->reduce);
      for (const PostedOpPtr& op : ops) op->output.copy_(total);
      break;
    }
    case OpKind::Broadcast: {
      const at::Tensor& source = ops.at(ops[0]->peer)->output;
      for (const PostedOpPtr& op : ops)
        if (!op->output.is_same(source)) op->output.copy_(source);
      break;
    }
    case OpKind::Reduce: ops.at(ops[0]->peer)->output.copy_(reduce(inputs_of(ops), ops[0]->reduce)); break;
    case OpKind::AllGather: {
      const at::Tensor whole = at::cat(inputs_of(ops));
      for (const PostedOpPtr& op : ops) op->output.copy_(whole.view(op->output.sizes()));
      break;
    }
    case OpKind::ReduceScatter: {
      const at::Tensor total = reduce(inputs_of(ops), ops[0]->reduce).flatten();
      for (const PostedOpPtr& op : ops) {
        const std::int64_t size = op->output.numel();
        op->output.copy_(total.narrow(0, op->group_rank * size, size).view(op->output.sizes()));
      }
      break;
    }
    case OpKind::AllToAll: all_to_all(ops); break;
    default: break;
  }
}

void transfer(PostedOp& send, PostedOp& receive) {
  at::NoGradGuard guard;
  require(send.input.scalar_type() == receive.output.scalar_type(), "the dtype sent and received");
  require(send.input.sizes() == receive.output.sizes(), "the shape sent and received");
  receive.output.copy_(send.input);
}

// The caller's tensor is NaN until deliver(). The root of a broadcast may read what it sends.
void hold_back(PostedOp& op) {
  if (!op.output.defined() || (op.kind == OpKind::Broadcast && op.peer == op.group_rank)) return;
  at::NoGradGuard guard;
  op.delivered_to = op.output;
  op.output = op.output.clone();
  if (op.input.defined() && op.input.is_alias_of(op.delivered_to)) op.input = op.input.clone();
  if (op.delivered_to.is_floating_point()) op.delivered_to.fill_(std::numeric_limits<double>::quiet_NaN());
}

void deliver(PostedOp& op) {
  at::NoGradGuard guard;
  if (op.delivered_to.defined()) std::exchange(op.delivered_to, {}).copy_(op.output);
}

// An operation that fails, fails on all its ranks.
template <class Act>
void act_and_note(const std::vector<PostedOpPtr>& ops, Act act) {
  try {
    act();
  } catch (const std::exception& e) {
    for (const PostedOpPtr& op : ops) op->error = e.what();
  }
}

}  // namespace

ThreadExchange::ThreadExchange(int world_size, ThreadSemantics semantics)
    : semantics_(semantics), wake_(static_cast<std::size_t>(world_size)),
      incomplete_(static_cast<std::size_t>(world_size)), posted_(static_cast<std::size_t>(world_size), 0),
      waiting_(static_cast<std::size_t>(world_size), nullptr), alive_(world_size) {}

std::shared_ptr<ThreadExchange::Communicator> ThreadExchange::communicator(const std::string& name,
                                                                           const std::vector<int>& ranks) {
  std::lock_guard lock(mutex_);
  auto& entry = communicators_[group_key(name, ranks)];
  if (!entry) {
    entry = std::make_shared<Communicator>();
    entry->ranks = ranks;
    entry->queues.resize(ranks.size());
  }
  return entry;
}

void ThreadExchange::post(Communicator& communicator, int group_rank, std::vector<PostedOpPtr> batch) {
  if (semantics_ == ThreadSemantics::OneQueue)
    for (const PostedOpPtr& op : batch) hold_back(*op);
  std::lock_guard lock(mutex_);
  if (semantics_ == ThreadSemantics::Relaxed)
    for (const PostedOpPtr& op : batch)
      if (op->kind == OpKind::Send) {
        op->input = op->input.clone();
        op->done = true;
      }
  const int global_rank = communicator.ranks[group_rank];
  const std::int64_t number = posted_[global_rank]++;
  incomplete_[global_rank].emplace(number, &communicator);
  communicator.incomplete_transfers += static_cast<int>(
      std::count_if(batch.begin(), batch.end(), [](const PostedOpPtr& op) { return is_transfer(*op); }));
  communicator.queues[group_rank].push_back({number, std::move(batch)});
  changed_.push_back(&communicator);
  run_ready();
}

// An operation that completes may add the communicators of the next ones to changed_.
void ThreadExchange::run_ready() {
  for (; !changed_.empty(); changed_.pop_front())
    while (run_one(*changed_.front())) {
    }
}

bool ThreadExchange::run_one(Communicator& communicator) {
  return run_collective(communicator) || run_transfer(communicator);
}

// The operations of a rank that may run now. Relaxed: its oldest collective and every transfer. Else those of its
// oldest batch, in one queue only if it is also the oldest of all communicators.
std::vector<PostedOpPtr> ThreadExchange::active(const Communicator& communicator, int group_rank) const {
  std::vector<PostedOpPtr> ops;
  bool has_collective = false;
  for (const Communicator::Batch& batch : communicator.queues[group_rank]) {
    if (semantics_ == ThreadSemantics::OneQueue &&
        batch.number != incomplete_[communicator.ranks[group_rank]].begin()->first)
      break;
    for (const PostedOpPtr& op : batch.ops) {
      if (!is_transfer(*op) && std::exchange(has_collective, true)) continue;
      ops.push_back(op);
    }
    if (semantics_ != ThreadSemantics::Relaxed) break;
  }
  return ops;
}

bool ThreadExchange::run_collective(Communicator& communicator) {
  const auto& queues = communicator.queues;
  if (std::any_of(queues.begin(), queues.end(), [](const auto& queue) { return queue.empty(); })) return false;
  Ops ops;
  for (std::size_t rank = 0; rank < communicator.ranks.size(); ++rank) {
    const auto candidates = active(communicator, static_cast<int>(rank));
    const auto op = std::find_if(candidates.begin(), candidates.end(),
                                 [](const PostedOpPtr& candidate) { return !is_transfer(*candidate); });
    if (op == candidates.end()) return false;
    ops.push_back(*op);
  }
  act_and_note(ops, [&] { execute(ops); });
  for (const PostedOpPtr& op : ops) complete(communicator, op);
  return true;
}

bool ThreadExchange::run_transfer(Communicator& communicator) {
  if (communicator.incomplete_transfers == 0) return false;
  for (std::size_t from = 0; from < communicator.ranks.size(); ++from)
    for (const PostedOpPtr& send : active(communicator, static_cast<int>(from))) {
      if (send->kind != OpKind::Send) continue;
      for (const PostedOpPtr& receive : active(communicator, send->peer)) {
        if (receive->kind != OpKind::Receive || receive->peer != static_cast<int>(from)) continue;
        act_and_note({send, receive}, [&] { transfer(*send, *receive); });
        complete(communicator, send);
        complete(communicator, receive);
        return true;
      }
    }
  return false;
}

void ThreadExchange::complete(Communicator& communicator, const PostedOpPtr& op) {
  auto& queue = communicator.queues[op->group_rank];
  const int global_rank = communicator.ranks[op->group_rank];
  for (auto batch = queue.begin(); batch != queue.end(); ++batch) {
    const auto position = std::find(batch->ops.begin(), batch->ops.end(), op);
    if (position == batch->ops.end()) continue;
    batch->ops.erase(position);
    if (batch->ops.empty()) {
      auto& incomplete = incomplete_[global_rank];
      incomplete.erase(batch->number);
      queue.erase(batch);
      // In one queue, the rank's next operation may run now, whichever its communicator.
      if (semantics_ == ThreadSemantics::OneQueue && !incomplete.empty())
        changed_.push_back(incomplete.begin()->second);
    }
    break;
  }
  if (is_transfer(*op)) --communicator.incomplete_transfers;
  op->done = true;
  if (waiting_[global_rank] == op.get()) {
    waiting_[global_rank] = nullptr;
    --blocked_;
    wake_[global_rank].notify_one();
  }
}

void ThreadExchange::wait(const Communicator& communicator, PostedOp& op) {
  const int global_rank = communicator.ranks[op.group_rank];
  std::unique_lock lock(mutex_);
  if (!op.done && abort_reason_.empty()) {
    waiting_[global_rank] = &op;
    ++blocked_;
    check_deadlock();
    wake_[global_rank].wait(lock, [&] { return op.done || !abort_reason_.empty(); });
  }
  if (!op.done) throw CommError(abort_reason_);
  if (!op.error.empty()) throw CommError(op.error);
  lock.unlock();
  deliver(op);
}

// Only a running rank could complete an operation, and none is running.
void ThreadExchange::check_deadlock() {
  if (blocked_ < alive_ || alive_ == 0 || !abort_reason_.empty()) return;
  deadlocked_ = true;
  abort_reason_ = "deadlock: every rank waits";
  wake_all();
}

void ThreadExchange::rank_ended() {
  std::lock_guard lock(mutex_);
  --alive_;
  check_deadlock();
}

void ThreadExchange::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason;
  wake_all();
}

void ThreadExchange::wake_all() {
  for (auto& wake : wake_) wake.notify_all();
}

bool ThreadExchange::deadlocked() const {
  std::lock_guard lock(mutex_);
  return deadlocked_;
}

}  // namespace braid
