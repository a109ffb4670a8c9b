#include "plan/player.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace braid {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

std::size_t index(int i) { return static_cast<std::size_t>(i); }

class Player {
 public:
  Player(const Schedule& schedule, const Topology& topology, const PlayOptions& options)
      : schedule_(schedule), topology_(topology), options_(options), edges_(make_edges(topology)) {
    for (const Module& module : topology.modules()) {
      first_stage_.push_back(stages_);
      stages_ += index(stage_count(module));
    }
    for (const auto& ops : schedule.ranks)
      for (const Op& op : ops) microbatches_ = std::max(microbatches_, index(op.microbatch) + 1);
    ranks_.resize(schedule.ranks.size());
    edges_of_.resize(ranks_.size());
    for (int e = 0; e < static_cast<int>(edges_.size()); ++e) {
      edges_of_[index(edges_[index(e)].from_rank)].push_back(e);
      edges_of_[index(edges_[index(e)].to_rank)].push_back(e);
    }
    posted_.assign(4 * edges_.size() * microbatches_, kNotYet);
    arrived_.assign(2 * edges_.size() * microbatches_, kNotYet);
    meetings_.resize(kMeetingKinds * stages_ * microbatches_ * ranks_.size());
    play_.ranks.resize(ranks_.size());
    is_moved_.resize(arrived_.size());
    for (const auto& ops : schedule.ranks)
      for (const Op& op : ops)
        for (const Transfer& t : op.transfers) is_moved_[id_of(t)] = true;
  }

  Play run() {
    for (int rank = static_cast<int>(ranks_.size()); rank-- > 0;) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const int rank = runnable_.back();
      runnable_.pop_back();
      advance(rank);
    }
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      const auto& spans = play_.ranks[index(rank)];
      if (spans.size() < schedule_.ranks[index(rank)].size() || !state(rank).queue_done())
        play_.stuck.push_back(describe_stuck(rank));
      play_.end = std::max({play_.end, state(rank).clock, state(rank).exchanged});
    }
    return std::move(play_);
  }

 private:
  struct Rank {
    double clock = 0;                    // when its last op ended
    double exchanged = 0;                // when its last exchange ended
    std::vector<std::size_t> exchanges;  // indices of the exchanges reached so far
    std::size_t exchanges_done = 0;
    std::vector<double> reached;  // by exchange: the time
    bool has_come = false;        // it has arrived at the meeting of its next op
    bool queue_done() const { return exchanges_done == exchanges.size(); }
  };
  // The arrivals of the ranks that take part in an op.
  struct Meeting {
    int came = 0;
    double last = 0;
  };
  static constexpr std::size_t kMeetingKinds = Op::Update + 1;

  Rank& state(int rank) { return ranks_[index(rank)]; }
  const Op& op_at(int rank, std::size_t i) const { return schedule_.ranks[index(rank)][i]; }

  std::size_t id_of(const Transfer& t) const {
    return (t.kind * edges_.size() + index(t.edge)) * microbatches_ + index(t.microbatch);
  }
  double& posted(const Transfer& t, bool outgoing) { return posted_[2 * id_of(t) + (outgoing ? 1 : 0)]; }
  int peer(int rank, const Transfer& t) const {
    const Edge& edge = edges_[index(t.edge)];
    return edge.from_rank == rank ? edge.to_rank : edge.from_rank;
  }

  // Runs a rank until it must wait.
  void advance(int rank) {
    run_exchanges(rank);
    const std::vector<Op>& ops = schedule_.ranks[index(rank)];
    auto& spans = play_.ranks[index(rank)];
    while (spans.size() < ops.size()) {
      const Op& op = ops[spans.size()];
      if (!(op.kind == Op::Exchange ? exchange(rank) : meet(rank, op))) return;
    }
  }

  bool exchange(int rank) {
    Rank& own = state(rank);
    const std::size_t i = play_.ranks[index(rank)].size();
    if (own.exchanges.empty() || own.exchanges.back() != i) {
      own.exchanges.push_back(i);
      own.reached.push_back(own.clock);
      run_exchanges(rank);
    }
    if (options_.exchanges_block && !own.queue_done()) return false;
    const double begin = own.clock;
    if (options_.exchanges_block) own.clock = std::max(own.clock, own.exchanged);
    play_.ranks[index(rank)].push_back({begin, own.clock});
    return true;
  }

  // Runs the rank's exchanges whose peers have arrived.
  void run_exchanges(int rank) {
    Rank& own = state(rank);
    for (; !own.queue_done(); ++own.exchanges_done) {
      const Op& op = op_at(rank, own.exchanges[own.exchanges_done]);
      const double start = std::max(own.reached[own.exchanges_done], own.exchanged);
      double end = start;
      for (const Transfer& t : op.transfers) {
        if (posted(t, t.outgoing) == kNotYet) {
          posted(t, t.outgoing) = start;
          if (posted(t, !t.outgoing) != kNotYet) runnable_.push_back(peer(rank, t));
        }
        const double met = std::max(posted(t, true), posted(t, false));
        end = std::max(end, met + (options_.transfer ? options_.transfer(edges_[index(t.edge)], t.microbatch) : 0));
      }
      if (end == kNotYet) return;
      own.exchanged = end;
      for (const Transfer& t : op.transfers)
        if (!t.outgoing) arrived_[id_of(t)] = end;
    }
  }

  // When all inputs of a forward or backward have arrived from other ranks; the update waits for every exchange.
  double arrival(int rank, const Op& op) {
    if (op.kind == Op::Update) return state(rank).queue_done() ? state(rank).exchanged : kNotYet;
    double last = 0;
    if (!op.computes()) return last;
    const bool forward = op.kind == Op::Forward;
    for (const int e : edges_of_[index(rank)]) {
      const Edge& edge = edges_[index(e)];
      const bool into =
          forward ? edge.to == op.stage && edge.to_rank == rank : edge.from == op.stage && edge.from_rank == rank;
      const std::size_t id = id_of({forward ? Transfer::Activation : Transfer::Gradient, e, op.microbatch, false});
      if (into && is_moved_[id]) last = std::max(last, arrived_[id]);
    }
    return last;
  }

  RankBlock concerned(int rank, const Op& op) const {
    if (op.kind == Op::Agree || op.kind == Op::Update) return {0, static_cast<int>(ranks_.size())};
    if (op.kind == Op::Load) return replica_of(topology_, op.stage, rank);
    if (op.computes()) return computes_with(topology_, op.stage, rank);
    return ranks_of(topology_, op.stage);
  }

  // True when all ranks have arrived: the op then runs.
  bool meet(int rank, const Op& op) {
    Rank& own = state(rank);
    const RankBlock block = concerned(rank, op);
    const std::size_t stage = first_stage_[index(op.stage.module)] + index(op.stage.index);
    Meeting& meeting = meetings_[((op.kind * stages_ + stage) * microbatches_ + index(op.microbatch)) * ranks_.size() +
                                 index(block.first)];
    if (!own.has_come) {
      const double arrived = arrival(rank, op);
      if (arrived == kNotYet) return false;
      own.has_come = true;
      meeting.last = std::max({meeting.last, own.clock, arrived});
      if (++meeting.came == block.size)
        for (int other = block.first; other < block.first + block.size; ++other)
          if (other != rank) runnable_.push_back(other);
    }
    if (meeting.came < block.size) return false;
    own.has_come = false;
    own.clock = meeting.last + (options_.duration ? options_.duration(rank, op) : 0);
    play_.ranks[index(rank)].push_back({meeting.last, own.clock});
    return true;
  }

  std::string describe(const Op& op) const {
    constexpr const char* kNames[] = {
        "the agreement on sizes", "the batch",     "the parameters", "forward", "backward",
        "the exchange",           "the gradients", "the update"};
    const std::string name = kNames[op.kind];
    if (op.kind == Op::Agree || op.kind == Op::Update) return name;
    const std::string& module = topology_.modules()[index(op.stage.module)].name;
    return fmt::format("{} of {}, microbatch {}", name, module, op.microbatch);
  }

  std::string describe_stuck(int rank) {
    const std::size_t at = play_.ranks[index(rank)].size();
    std::vector<std::string> missing;
    const Rank& own = state(rank);
    if (!own.queue_done())
      for (const Transfer& t : op_at(rank, own.exchanges[own.exchanges_done]).transfers)
        if (posted(t, !t.outgoing) == kNotYet) missing.push_back(braid::describe(t, edges_));
    if (missing.empty() && at < schedule_.ranks[index(rank)].size()) {
      const Op& op = op_at(rank, at);
      missing.push_back("the others for " + describe(op));
    }
    return fmt::format("rank {} deadlocks at op {}: it waits for {}", rank, at, fmt::join(missing, ", "));
  }

  const Schedule& schedule_;
  const Topology& topology_;
  const PlayOptions& options_;
  const std::vector<Edge> edges_;
  std::vector<std::size_t> first_stage_;  // by module: index among the stages of all modules
  std::size_t stages_ = 0, microbatches_ = 1;
  std::vector<Rank> ranks_;
  std::vector<std::vector<int>> edges_of_;  // by rank
  std::vector<char> is_moved_;              // by transfer: whether the schedule contains it
  std::vector<double> posted_;              // by transfer and side: the time
  std::vector<double> arrived_;             // by transfer: when its exchange ended on the receiving rank
  std::vector<Meeting> meetings_;           // by kind, stage, microbatch and first rank
  std::vector<int> runnable_;
  Play play_;
};

}  // namespace

std::string describe(const Transfer& t, const std::vector<Edge>& edges) {
  const Edge& edge = edges[index(t.edge)];
  const bool forward = t.kind == Transfer::Activation;
  return fmt::format("the {} of microbatch {} from rank {} to rank {}", forward ? "activation" : "gradient",
                     t.microbatch, forward ? edge.from_rank : edge.to_rank, forward ? edge.to_rank : edge.from_rank);
}

Play play(const Schedule& schedule, const Topology& topology, const PlayOptions& options) {
  return Player(schedule, topology, options).run();
}

}  // namespace braid
