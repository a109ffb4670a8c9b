#include "plan/player.h"
#include "base/strings.h"
#include "plan/channels.h"
#include "plan/meetings.h"

namespace braid {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

int microbatches_in(const Schedule& schedule) {
  int microbatches = 1;
  for (const auto& ops : schedule.ranks)
    for (const Op& op : ops) microbatches = std::max(microbatches, op.microbatch + 1);
  return microbatches;
}

class Player {
 public:
  Player(const Schedule& schedule, const Topology& topology, const PlayOptions& options)
      : schedule_(schedule), topology_(topology), options_(options), edges_(make_edges(topology)),
        microbatches_(microbatches_in(schedule)), meetings_(topology, microbatches_),
        collectives_(2 * meetings_.stages()), ranks_(schedule.ranks.size()),
        edges_of_(edges_by_rank(edges_, ranks_.size())), channels_(channels_of(topology, edges_)) {
    posted_.assign(4 * edges_.size() * microbatches_, kNotYet);
    arrived_.assign(2 * edges_.size() * microbatches_, kNotYet);
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
    for (int rank = 0; rank < std::ssize(ranks_); ++rank) {
      const auto& spans = play_.ranks[rank];
      if (spans.size() < schedule_.ranks[rank].size() || !state(rank).has_exchanged())
        play_.stuck.push_back(describe_stuck(rank));
      play_.end = std::max({play_.end, state(rank).clock, state(rank).exchanged()});
      show_collectives(rank);
    }
    return std::move(play_);
  }

 private:
  struct Started {
    std::size_t op;
    double time;
  };
  // A rank's exchanges over one channel, which run in order.
  struct Queue {
    Channel channel;
    std::vector<Started> exchanges{};  // that the rank has reached so far
    std::size_t done = 0;              // of them
    double ended = 0;                  // when the last one that is done ended
    std::size_t met = 0;               // transfers of the next one whose peers have arrived, from the first on
    double met_end = 0;                // when the last of these ends
    bool is_done() const { return done == exchanges.size(); }
  };
  struct Rank {
    double clock = 0;              // when its last op ended
    std::vector<Queue> queues;     // of the channels that it has used
    bool has_come = false;         // it has arrived at the meeting of its next op
    bool awaits_exchange = false;  // its next op needs one that is not done
    std::vector<Started> started;  // gathers and reductions that have not begun, oldest first
    double communicated = 0;       // when its last gather or reduction ended

    bool has_exchanged() const { return std::ranges::all_of(queues, &Queue::is_done); }
    double exchanged() const {  // when its last exchange ended
      double last = 0;
      for (const Queue& queue : queues) last = std::max(last, queue.ended);
      return last;
    }
  };
  // A gather or reduction of a stage. It begins when it is the next one of all its ranks.
  struct Collective {
    int came = 0;
    double begin = 0, end = kNotYet;
  };

  Rank& state(int rank) { return ranks_[rank]; }
  const Op& op_at(int rank, std::size_t i) const { return schedule_.ranks[rank][i]; }
  Collective& collective_of(const Op& op) {
    const bool reduces = op.kind == Op::StartReduce || op.kind == Op::EndReduce;
    return collectives_[2 * meetings_.number_of(op.stage) + (reduces ? 1 : 0)];
  }

  std::size_t id_of(const Transfer& t) const {
    return (t.kind * edges_.size() + t.edge) * microbatches_ + t.microbatch;
  }
  double& posted(const Transfer& t, bool outgoing) { return posted_[2 * id_of(t) + (outgoing ? 1 : 0)]; }
  double duration(int rank, const Op& op) const { return options_.duration ? options_.duration(rank, op) : 0; }

  Queue& queue_of(int rank, const Op& op) {
    const Transfer& first = op.transfers.front();
    const Channel& channel = channels_[first.kind * edges_.size() + first.edge];
    std::vector<Queue>& queues = state(rank).queues;
    const auto found = std::ranges::find(queues, channel, &Queue::channel);
    return found == queues.end() ? queues.emplace_back(Queue{channel}) : *found;
  }

  // Runs a rank until it must wait.
  void advance(int rank) {
    bool has_exchanged = false;
    for (Queue& queue : state(rank).queues) has_exchanged |= run_exchanges(rank, queue);
    if (state(rank).awaits_exchange && !has_exchanged) return;
    const std::vector<Op>& ops = schedule_.ranks[rank];
    auto& spans = play_.ranks[rank];
    while (spans.size() < ops.size()) {
      const Op& op = ops[spans.size()];
      const bool ran = op.kind == Op::Exchange  ? exchange(rank, op)
                       : op.starts_collective() ? start(rank, op)
                                                : meet(rank, op);
      if (!ran) return;
    }
  }

  // --- exchanges

  bool exchange(int rank, const Op& op) {
    Rank& own = state(rank);
    Queue& queue = queue_of(rank, op);
    const std::size_t i = play_.ranks[rank].size();
    if (queue.exchanges.empty() || queue.exchanges.back().op != i) {
      queue.exchanges.push_back({i, own.clock});
      run_exchanges(rank, queue);
    }
    if (options_.communication_blocks && !queue.is_done()) return false;
    const double begin = own.clock;
    if (options_.communication_blocks) own.clock = std::max(own.clock, queue.ended);
    play_.ranks[rank].push_back({begin, own.clock});
    return true;
  }

  // Runs the exchanges of a queue whose peers have arrived. An exchange of an encoder may have thousands of peers, so
  // the next call resumes at the first missing one. Returns whether another exchange is done.
  bool run_exchanges(int rank, Queue& queue) {
    const std::size_t before = queue.done;
    for (; !queue.is_done(); ++queue.done) {
      const auto& [i, reached] = queue.exchanges[queue.done];
      const Op& op = op_at(rank, i);
      if (const Transfer& first = op.transfers.front(); posted(first, first.outgoing) == kNotYet) {
        queue.met = 0;
        queue.met_end = std::max(reached, queue.ended);
        post(rank, op, queue.met_end);
      }
      for (; queue.met < op.transfers.size(); ++queue.met) {
        const Transfer& t = op.transfers[queue.met];
        const double met = std::max(posted(t, true), posted(t, false));
        if (met == kNotYet) return queue.done > before;
        const double duration = options_.transfer ? options_.transfer(edges_[t.edge], t.microbatch) : 0;
        queue.met_end = std::max(queue.met_end, met + duration);
      }
      queue.ended = queue.met_end;
      for (const Transfer& t : op.transfers)
        if (!t.outgoing) arrived_[id_of(t)] = queue.ended;
    }
    return queue.done > before;
  }

  void post(int rank, const Op& op, double start) {
    for (const Transfer& t : op.transfers) {
      posted(t, t.outgoing) = start;
      if (posted(t, !t.outgoing) != kNotYet) runnable_.push_back(edges_[t.edge].peer_of(rank));
    }
  }

  // --- gathers and reductions

  bool start(int rank, const Op& op) {
    Rank& own = state(rank);
    if (!own.has_come) {
      own.has_come = true;
      own.started.push_back({play_.ranks[rank].size(), own.clock});
      if (own.started.size() == 1) come_to_next_collective(rank);
    }
    if (options_.communication_blocks) {
      if (collective_of(op).end == kNotYet) return false;
      own.clock = std::max(own.clock, collective_of(op).end);
    }
    own.has_come = false;
    play_.ranks[rank].push_back({own.clock, own.clock});
    return true;
  }

  void come_to_next_collective(int rank) {
    const Started& next = state(rank).started.front();
    const Op& op = op_at(rank, next.op);
    Collective& collective = collective_of(op);
    collective.begin = std::max({collective.begin, next.time, state(rank).communicated});
    const RankBlock ranks = meetings_.ranks_at(rank, op);
    if (++collective.came < ranks.size) return;
    collective.end = collective.begin + duration(rank, op);
    for (const int other : ranks) {
      state(other).communicated = collective.end;
      state(other).started.erase(state(other).started.begin());
      runnable_.push_back(other);
      if (!state(other).started.empty()) come_to_next_collective(other);
    }
  }

  // The span of an op that starts a gather or reduction is that of the gather or reduction.
  void show_collectives(int rank) {
    auto& spans = play_.ranks[rank];
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Op& op = op_at(rank, i);
      if (op.starts_collective()) spans[i] = {collective_of(op).begin, collective_of(op).end};
    }
  }

  // --- other ops

  // When all inputs of a forward or backward have arrived from other ranks; the update waits for every exchange.
  double arrival(int rank, const Op& op) {
    if (op.kind == Op::Update) return state(rank).has_exchanged() ? state(rank).exchanged() : kNotYet;
    if (op.ends_collective()) return collective_of(op).end;
    double last = 0;
    if (!op.computes()) return last;
    const bool forward = op.kind == Op::Forward;
    for (const int e : edges_of_[rank]) {
      const bool into = forward ? edges_[e].ends_at(op.stage, rank) : edges_[e].begins_at(op.stage, rank);
      const std::size_t id = id_of({forward ? Transfer::Activation : Transfer::Gradient, e, op.microbatch, false});
      if (into && is_moved_[id]) last = std::max(last, arrived_[id]);
    }
    return last;
  }

  // True when all ranks have arrived: the op then runs.
  bool meet(int rank, const Op& op) {
    Rank& own = state(rank);
    const RankBlock ranks = meetings_.ranks_at(rank, op);
    Meetings::Meeting alone;
    Meetings::Meeting& meeting = ranks.size == 1 ? alone : meetings_.at(op, ranks);
    if (!own.has_come) {
      const double arrived = arrival(rank, op);
      own.awaits_exchange = arrived == kNotYet && !op.ends_collective();
      if (arrived == kNotYet) return false;
      own.has_come = true;
      meeting.last = std::max({meeting.last, own.clock, arrived});
      if (++meeting.came == ranks.size)
        for (const int other : ranks)
          if (other != rank) runnable_.push_back(other);
    }
    if (meeting.came < ranks.size) return false;
    own.has_come = false;
    own.clock = meeting.last + duration(rank, op);
    play_.ranks[rank].push_back({meeting.last, own.clock});
    return true;
  }

  std::string describe_stuck(int rank) {
    const std::size_t at = play_.ranks[rank].size();
    std::vector<std::string> missing;
    for (const Queue& queue : state(rank).queues) {
      if (queue.is_done()) continue;
      for (const Transfer& t : op_at(rank, queue.exchanges[queue.done].op).transfers)
        if (posted(t, !t.outgoing) == kNotYet) missing.push_back(describe(t, edges_));
    }
    if (missing.empty() && at < schedule_.ranks[rank].size())
      missing.push_back("the others for " + describe(op_at(rank, at), topology_));
    return fmt::format("rank {} deadlocks at op {}: it waits for {}", rank, at, joined(missing, ", "));
  }

  const Schedule& schedule_;
  const Topology& topology_;
  const PlayOptions& options_;
  const std::vector<Edge> edges_;
  const int microbatches_;
  Meetings meetings_;
  std::vector<Collective> collectives_;  // by stage; gather, reduction
  std::vector<Rank> ranks_;
  std::vector<std::vector<int>> edges_of_;  // by rank
  const std::vector<Channel> channels_;     // by kind of transfer and edge
  std::vector<char> is_moved_;              // by transfer: whether the schedule contains it
  std::vector<double> posted_;              // by transfer and side: the time
  std::vector<double> arrived_;             // by transfer: when its exchange ended on the receiving rank
  std::vector<int> runnable_;
  Play play_;
};

}  // namespace

Play play(const Schedule& schedule, const Topology& topology, const PlayOptions& options) {
  return Player(schedule, topology, options).run();
}

}  // namespace braid
