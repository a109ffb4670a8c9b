#include "run/step_traffic.h"

#include <map>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "plan/channels.h"
#include "run/rank_step.h"

namespace braid {
namespace {

class RankTraffic {
 public:
  RankTraffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan, const StepSizes& sizes,
              const StepSizes& next, int global_rank)
      : topology_(topology),
        plan_(plan),
        next_(next),
        rank_(global_rank),
        step_(setup, topology.modules(), plan.options, sizes, global_rank),
        optimizers_(setup, topology.modules(), global_rank) {}

  TrafficTable count() {
    for (const Op& op : plan_.schedule.ranks[static_cast<std::size_t>(rank_)]) add(op);
    return std::move(table_);
  }

 private:
  void add(const Op& op) {
    const int m = op.stage.module;
    switch (op.kind) {
      case Op::Begin:
      case Op::EndGather:
        return;
      case Op::Load:
        return add(m, step_.load(op.stage, op.microbatch));
      case Op::Forward:
      case Op::Backward:
        return compute(op);
      case Op::Exchange:
        return exchange(op.transfers);
      case Op::StartGather:
        return add(m, optimizers_.gathers(op.stage));
      case Op::StartReduce:
        return add(m, optimizers_.reductions(op.stage));
      case Op::EndReduce:
        return add(m, optimizers_.replica_sums(op.stage));
      case Op::Update:
        return update();
    }
  }

  void add(const std::string& meeting, const std::string& operation, std::int64_t bytes, std::int64_t operations = 1) {
    Traffic& traffic = table_[{meeting, operation}];
    traffic.operations += operations;
    traffic.bytes += bytes;
  }
  // Groups of one rank do not communicate, and empty tensors are not sent.
  void add(int m, const Collectives& collectives) {
    const Module& module = topology_.module(m);
    for (const Collective& collective : collectives)
      if (collective.bytes > 0 && group_size(module, collective.group) > 1)
        add(module.name + "." + collective.group, collective.operation, collective.bytes, collective.operations);
  }

  void compute(const Op& op) {
    const bool is_forward = op.kind == Op::Forward;
    std::vector<std::int64_t> sizes = step_.input_sizes(op.stage, op.microbatch);
    sizes.insert(sizes.end(), {op.stage.module, op.stage.index});
    const auto [found, is_new] = stages_.try_emplace(std::move(sizes));
    if (is_new) found->second = step_.walk(op.stage, op.microbatch).layers;
    for (const PaperLayer& layer : found->second)
      add(op.stage.module, is_forward ? layer.collectives.forward : layer.collectives.backward);
    add(op.stage.module, step_.shared_embeddings(op.stage, op.microbatch, is_forward));
  }

  // Transfers are counted at both ends.
  void exchange(const std::vector<Transfer>& transfers) {
    for (const Transfer& t : transfers) {
      const Edge& edge = plan_.edges[static_cast<std::size_t>(t.edge)];
      const bool forward = t.kind == Transfer::Activation;
      const std::int64_t bytes = step_.transfer_bytes(edge, t.microbatch);
      if (bytes == 0) continue;
      add(fmt::format("{}.{} {}>{}", topology_.module(edge.from.module).name,
                      key_of(channel_of(topology_, edge, t.kind)), forward ? edge.from_rank : edge.to_rank,
                      forward ? edge.to_rank : edge.from_rank),
          "exchange", bytes);
    }
  }

  void update() {
    if (topology_.world_size() > 1) add("world", "all_reduce", step_.agreed_bytes());
    for (int m = 0; m < static_cast<int>(topology_.modules().size()); ++m)
      if (topology_.module(m).dense.contains(rank_)) add(m, step_.update(m, next_));
  }

  const Topology& topology_;
  const StepPlan& plan_;
  const StepSizes& next_;
  const int rank_;
  const RankStep step_;
  const RankOptimizers optimizers_;
  std::map<std::vector<std::int64_t>, std::vector<PaperLayer>> stages_;  // by the sizes of their input
  TrafficTable table_;
};

}  // namespace

TrafficTable step_traffic(const StepSetup& setup, const Topology& topology, const StepPlan& plan,
                          const StepSizes& sizes, const StepSizes& next, int global_rank) {
  return RankTraffic(setup, topology, plan, sizes, next, global_rank).count();
}

}  // namespace braid
