#include "mimo/executor.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include "comm/world.h"

namespace braid {

Executor::Executor(const StepPlan& plan, const Topology& topology, const Groups& groups,
                   const at::TensorOptions& tensors, StageWork& work)
    : plan_(plan), topology_(topology), rank_(groups.world().rank()), tensors_(tensors), work_(work) {
  for (const Stage& stage : stages_of(topology, rank_))
    stages_.push_back({stage, edges_into(plan.edges, stage, rank_), edges_from(plan.edges, stage, rank_),
                       std::vector<State>(static_cast<std::size_t>(plan.options.microbatches))});
  for (const Edge& edge : plan.edges)
    for (const auto kind : {Transfer::Activation, Transfer::Gradient})
      if (edge.from_rank != edge.to_rank && (edge.from_rank == rank_ || edge.to_rank == rank_)) {
        const Channel channel = channel_of(topology, edge, kind);
        const std::string& module = topology.module(channel.module).name;
        channels_.try_emplace(channel, ChannelState{groups.get(module, key_of(channel))});
      }
}

void Executor::run(const Op& op) {
  switch (op.kind) {
    case Op::Begin: return;
    case Op::Load: return work_.load(op.stage, op.microbatch);
    case Op::Forward: return forward(op);
    case Op::Backward: return backward(op);
    case Op::Exchange: return exchange(op.transfers);
    default: throw_check_failed(__FILE__, __LINE__, "not an op of a stage");
  }
}

void Executor::finish() {
  for (auto& [channel, state] : channels_) {
    for (const auto& moving : state.sending) moving->pending.wait();
    state.sending.clear();
  }
}

Executor::LocalStage& Executor::local_stage(const Stage& stage) {
  const auto found = std::ranges::find(stages_, stage, &LocalStage::stage);
  BRAID_CHECK(found != stages_.end(), "stage {} is not on rank {}", stage.index, rank_);
  return *found;
}

at::Tensor& Executor::input_over(int e, int microbatch) {
  const LocalStage& to = local_stage(edge(e).to);
  State& s = state(edge(e).to, microbatch);
  s.inputs.resize(to.into.size());
  return s.inputs[static_cast<std::size_t>(std::ranges::find(to.into, e) - to.into.begin())];
}

void Executor::await(State& state) {
  for (const auto& moving : state.arriving) moving->pending.wait();
  state.arriving.clear();
}

// --- forwards and backwards

void Executor::forward(const Op& op) {
  LocalStage& here = local_stage(op.stage);
  State& s = state(op.stage, op.microbatch);
  await(s);
  for (const int e : here.into) {
    if (!is_within(e)) continue;
    input_over(e, op.microbatch) = output_over(e, op.microbatch).requires_grad_(is_trained(edge(e).from));
    count_use(e, op.microbatch);
  }
  const bool trains = is_trained(op.stage);
  at::AutoGradMode grad_mode(trains);
  s.output = work_.forward(op.stage, op.microbatch, s.inputs);
  s.uses_left = here.from.size();
  if (trains) return;
  s.inputs.clear();
  if (here.from.empty()) s.output.reset();
}

void Executor::backward(const Op& op) {
  LocalStage& here = local_stage(op.stage);
  State& s = state(op.stage, op.microbatch);
  await(s);
  for (const int e : here.from) {
    if (!is_within(e)) continue;
    output_grad_over(e, op.microbatch).copy_(input_over(e, op.microbatch));
    input_over(e, op.microbatch).reset();
  }
  const bool last_of_all = !topology_.module(op.stage.module).is_encoder && is_last(topology_, op.stage);
  // Every rank of a replica has the same output, and one rank receives its whole gradient. The other ranks have no
  // outgoing edge, so their gradient is zero.
  if (!s.output_grad.defined())
    s.output_grad = last_of_all ? work_.gradient_of_last(op.microbatch, s.output) : at::zeros_like(s.output);
  s.output.backward(s.output_grad);
  s.output.reset();
  s.output_grad.reset();
  for (at::Tensor& input : s.inputs)
    input = !input.requires_grad() ? at::Tensor() : input.grad().defined() ? input.grad() : at::zeros_like(input);
}

// --- transfers

void Executor::exchange(const std::vector<Transfer>& transfers) {
  at::NoGradGuard guard;
  ChannelState& channel = channels_.at(channel_of(topology_, edge(transfers[0].edge), transfers[0].kind));
  const auto moving = std::make_shared<Moving>();
  for (const Transfer& t : transfers) moving->tensors.push_back(t.outgoing ? sent(t) : tensor_to_fill(t, moving));
  std::vector<Group::Transfer> moves;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    const Edge& e = edge(t.edge);
    const int peer = e.from_rank == rank_ ? e.to_rank : e.from_rank;
    const std::vector<int>& ranks = channel.group.ranks();
    const auto place = std::ranges::lower_bound(ranks, peer) - ranks.begin();
    if (moving->tensors[i].numel() > 0) moves.push_back({moving->tensors[i], static_cast<int>(place), t.outgoing});
    // What is sent is not needed here any more: a gradient, or the output of a stage that does not train.
    if (t.outgoing && t.kind == Transfer::Gradient) input_over(t.edge, t.microbatch).reset();
    if (t.outgoing && t.kind != Transfer::Gradient) count_use(t.edge, t.microbatch);
  }
  if (moves.empty()) return;
  moving->pending = channel.group.start_exchange(moves);
  if (!transfers[0].outgoing) return;
  // Two exchanges may be in flight on a channel. Any older one has ended or is about to; waiting for it frees its
  // memory and keeps a stage without backward from running further ahead.
  channel.sending.push_back(moving);
  if (channel.sending.size() <= 2) return;
  channel.sending.front()->pending.wait();
  channel.sending.pop_front();
}

at::Tensor Executor::tensor_to_fill(const Transfer& t, const std::shared_ptr<Moving>& moving) {
  const Edge& e = edge(t.edge);
  if (t.kind == Transfer::Gradient) {
    state(e.from, t.microbatch).arriving.push_back(moving);
    return output_grad_over(t.edge, t.microbatch);
  }
  state(e.to, t.microbatch).arriving.push_back(moving);
  const EdgeRows rows = work_.rows_over(t.edge, t.microbatch);
  at::Tensor& input = input_over(t.edge, t.microbatch);
  input = at::empty({rows.rows, rows.width}, tensors_).requires_grad_(is_trained(e.from));
  return input.detach();
}

at::Tensor Executor::output_grad_over(int e, int microbatch) {
  const EdgeRows rows = work_.rows_over(e, microbatch);
  State& from = state(edge(e).from, microbatch);
  if (!from.output_grad.defined())
    from.output_grad = rows.rows == from.output.size(0) ? at::empty_like(from.output) : at::zeros_like(from.output);
  return from.output_grad.narrow(0, rows.begin, rows.rows);
}

}  // namespace braid
