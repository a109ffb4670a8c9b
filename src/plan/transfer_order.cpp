#include "plan/transfer_order.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/error.h"
#include "plan/meetings.h"

namespace braid {
namespace {

class TransferOrder {
 public:
  TransferOrder(const RankLists& lists, const Topology& topology, const ScheduleOptions& options,
                const std::vector<Edge>& edges)
      : lists_(lists),
        topology_(topology),
        options_(options),
        edges_(edges),
        meetings_(topology, options.microbatches),
        edges_of_(edges_by_rank(edges, lists.size())),
        ranks_(lists.size()) {
    find_bundles();
    for (int rank = 0; rank < std::ssize(ranks_); ++rank) prepare(rank);
  }

  RankLists run() {
    for (const std::size_t e : wanted_from_start_) agree(e);
    for (int rank = 0; rank < std::ssize(ranks_); ++rank) {
      for (int ahead = 0; ahead < 2; ++ahead) open_next(rank);
      come(rank);
    }
    while (move_next() || run_next()) {
    }
    RankLists placed;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      BRAID_CHECK_EQ(ranks_[rank].next, lists_[rank].size(), "rank {} deadlocks", rank);
      placed.push_back(std::move(ranks_[rank].placed));
    }
    return placed;
  }

 private:
  struct Exchange {
    int rank;
    std::size_t op;  // that computes or reads the tensors
    std::vector<Transfer> transfers;
  };
  // The transfers of a microbatch over all edges of a bundle. They happen together, when all senders have computed
  // their tensors and all receivers want them.
  struct Event {
    int missing = 0;  // ops that have not computed their tensor, or do not want it yet
    std::vector<Exchange> exchanges{};
  };
  struct OpEvents {  // indices into events_
    std::vector<std::size_t> sends, receives;
    std::size_t inputs_left = 0;
  };
  struct Rank {
    std::vector<OpEvents> events;  // by op
    std::size_t next = 0;          // op
    std::size_t opened = 0;        // the ops before it may receive their inputs
    std::size_t sends_left = 0, sends_allowed = 0;
    bool has_come = false;  // to its next op
    std::vector<Op> placed{};
  };
  // An op that all its ranks have reached, in the order of preference. The next two fields matter only if it leaves an
  // input behind.
  struct Runnable {
    bool leaves_input_behind;  // an input of the op after it has not arrived
    bool is_backward;
    int distance;  // of its stage from those where forwards, or backwards, begin
    std::size_t position;
    int rank;  // the first of those that run it
    auto operator<=>(const Runnable&) const = default;
  };

  // --- what happens at each op

  // The edges of one encoder replica, if it feeds several language replicas, or of one language replica, if several
  // encoder replicas feed it, form a bundle; every other edge is one by itself.
  void find_bundles() {
    const int language_dp = topology_.language().dense.size_of("dp");
    std::map<std::pair<int, int>, std::size_t> bundles;  // by encoder and the rank that has several edges
    for (const Edge& edge : edges_) {
      if (!edge.crosses_modules()) {
        bundle_of_.push_back(bundles_++);
        continue;
      }
      const bool fans_out = topology_.module(edge.from.module).dense.size_of("dp") <= language_dp;
      const auto [bundle, is_new] =
          bundles.try_emplace({edge.from.module, fans_out ? edge.from_rank : edge.to_rank}, bundles_);
      if (is_new) ++bundles_;
      bundle_of_.push_back(bundle->second);
    }
    events_.resize(2 * bundles_ * options_.microbatches);
    for (const Edge& edge : edges_) carries_gradients_.push_back(is_trained(topology_, options_, edge.from));
  }

  void prepare(int rank) {
    Rank& own = ranks_[rank];
    own.events.resize(lists_[rank].size());
    for (std::size_t i = 0; i < own.events.size(); ++i) add_events(rank, i);
    const Module& module = *topology_.modules_of(rank).front();
    if (module.is_encoder && !topology_.colocated() && module.dense.size_of("pp") == 1)
      own.sends_allowed = options_.prefetch;
  }

  // A forward receives the activations of the previous stages and sends its own; a backward does the same with
  // gradients in the opposite direction.
  void add_events(int rank, std::size_t i) {
    const Op& op = lists_[rank][i];
    if (!op.computes()) return;
    const bool forward = op.kind == Op::Forward;
    for (const int e : edges_of_[rank]) {
      const Edge& edge = edges_[e];
      if (!edge.crosses_ranks() || (!forward && !carries_gradients_[e])) continue;
      for (const bool outgoing : {false, true})
        if (forward == outgoing ? edge.begins_at(op.stage, rank) : edge.ends_at(op.stage, rank))
          add_transfer(rank, i, {forward ? Transfer::Activation : Transfer::Gradient, e, op.microbatch, outgoing});
    }
  }

  void add_transfer(int rank, std::size_t i, const Transfer& t) {
    const std::size_t e = (t.kind * bundles_ + bundle_of_[t.edge]) * options_.microbatches + t.microbatch;
    Event& event = events_[e];
    if (event.exchanges.empty() || event.exchanges.back().rank != rank) {
      event.exchanges.push_back({rank, i, {}});
      ++event.missing;
      OpEvents& own = ranks_[rank].events[i];
      const bool any_time = !t.outgoing && topology_.colocated() && edges_[t.edge].crosses_modules();
      (any_time ? wanted_from_start_ : t.outgoing ? own.sends : own.receives).push_back(e);
      own.inputs_left += t.outgoing ? 0 : 1;
    }
    event.exchanges.back().transfers.push_back(t);
  }

  // --- the order

  // One more op has computed its tensor of the event, or wants it.
  void agree(std::size_t e) {
    if (--events_[e].missing == 0) due_.push_back(e);
  }

  // Lets the rank receive the inputs of one more forward or backward.
  void open_next(int rank) {
    Rank& own = ranks_[rank];
    const std::size_t op = next_compute(rank, own.opened);
    if (op == own.events.size()) return;
    for (const std::size_t e : own.events[op].receives) agree(e);
    own.opened = op + 1;
  }

  std::size_t next_compute(int rank, std::size_t from) const {
    const std::vector<Op>& ops = lists_[rank];
    while (from < ops.size() && !ops[from].computes()) ++from;
    return from;
  }

  bool move_next() {
    if (due_.empty()) return false;
    const Event& event = events_[due_.front()];
    due_.pop_front();
    for (const auto& [rank, op, transfers] : event.exchanges) {
      Rank& own = ranks_[rank];
      own.placed.push_back({.kind = Op::Exchange, .transfers = transfers});
      --(transfers.front().outgoing ? own.sends_left : own.events[op].inputs_left);
      own.has_come ? reconsider(rank) : come(rank);
    }
    return true;
  }

  void reconsider(int rank) {
    const Op& op = next_op(rank);
    const RankBlock ranks = meetings_.ranks_at(rank, op);
    if (ranks.size == 1 || meeting_for(op, ranks).came == ranks.size) consider(ranks);
  }

  // The rank arrives at its next op if it can run it.
  void come(int rank) {
    Rank& own = ranks_[rank];
    if (own.next == own.events.size() || own.sends_left > own.sends_allowed || own.events[own.next].inputs_left > 0)
      return;
    own.has_come = true;
    const Op& op = next_op(rank);
    const RankBlock ranks = meetings_.ranks_at(rank, op);
    if (ranks.size == 1 || ++meeting_for(op, ranks).came == ranks.size) consider(ranks);
  }

  const Op& next_op(int rank) const { return lists_[rank][ranks_[rank].next]; }
  Meetings::Meeting& meeting_for(const Op& op, const RankBlock& ranks) {
    // A reduction starts once and ends once, with the same ranks.
    return meetings_.at({op.kind == Op::StartReduce ? Op::EndReduce : op.kind, op.stage, op.microbatch}, ranks);
  }

  // All ranks have reached the op.
  void consider(const RankBlock& ranks) {
    const Op& op = next_op(ranks.first);
    const bool is_backward = op.kind == Op::Backward;
    const Module& module = topology_.module(op.stage.module);
    const int depth = op.stage.index - (module.is_encoder ? stage_count(module) : 0);  // encoders end together
    const std::size_t position = ranks_[ranks.first].next;
    const Runnable later = {true, is_backward, is_backward ? -depth : depth, position, ranks.first};
    runnable_.erase(later);
    runnable_.insert(leaves_input_behind(op, ranks) ? later : Runnable{false, false, 0, position, ranks.first});
  }

  bool leaves_input_behind(const Op& op, const RankBlock& ranks) const {
    if (!op.computes()) return false;
    for (const int rank : ranks) {
      const std::vector<OpEvents>& events = ranks_[rank].events;
      const std::size_t after = next_compute(rank, ranks_[rank].next + 1);
      if (after < events.size() && events[after].inputs_left > 0) return true;
    }
    return false;
  }

  bool run_next() {
    if (runnable_.empty()) return false;
    const int first = runnable_.begin()->rank;
    runnable_.erase(runnable_.begin());
    const RankBlock ranks = meetings_.ranks_at(first, next_op(first));
    for (const int rank : ranks) finish_op(rank);
    for (const int rank : ranks) come(rank);
    return true;
  }

  void finish_op(int rank) {
    Rank& own = ranks_[rank];
    own.placed.push_back(next_op(rank));
    const std::vector<std::size_t>& sends = own.events[own.next].sends;
    own.sends_left += sends.size();
    for (const std::size_t e : sends) agree(e);
    if (next_op(rank).computes()) open_next(rank);
    ++own.next;
    own.has_come = false;
  }

  const RankLists& lists_;
  const Topology& topology_;
  const ScheduleOptions& options_;
  const std::vector<Edge>& edges_;
  Meetings meetings_;
  const std::vector<std::vector<int>> edges_of_;  // by rank
  std::vector<bool> carries_gradients_;           // by edge
  std::vector<std::size_t> bundle_of_;            // by edge
  std::size_t bundles_ = 0;
  std::vector<Event> events_;  // by kind, bundle and microbatch
  std::vector<std::size_t> wanted_from_start_;
  std::vector<Rank> ranks_;
  std::deque<std::size_t> due_;  // events that can happen
  std::set<Runnable> runnable_;
};

}  // namespace

RankLists with_transfers(const RankLists& lists, const Topology& topology, const ScheduleOptions& options,
                         const std::vector<Edge>& edges) {
  return TransferOrder(lists, topology, options, edges).run();
}

}  // namespace braid
