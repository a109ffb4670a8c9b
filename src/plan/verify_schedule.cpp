// Plays a schedule on paper. A rank that comes to an exchange first says how large the activations are that it sends,
// and hears it of those that come; then it posts all its transfers. A message is done when both sides have posted it,
// and a rank goes on when all of its exchange are. A forward or backward may have collectives over any of its stage's
// ranks (tensor, context and expert parallel), so it runs when all of them have come to it. A schedule that needs more
// than that may hang.
#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "plan/schedule.h"

namespace braid {
namespace {

class Player {
 public:
  Player(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options)
      : schedule_(schedule),
        topology_(topology),
        options_(options),
        edges_(make_edges(topology)),
        sent_(2 * edges_.size() * microbatches()),
        received_(sent_.size()),
        sizes_sent_(sent_.size()),
        sizes_received_(sent_.size()),
        position_(schedule.ranks.size()),
        ran_(2 * schedule.ranks.size() * topology.modules().size() * microbatches()),
        held_(schedule.ranks.size() * topology.modules().size()),
        edges_of_(schedule.ranks.size()),
        came_(ran_.size()),
        counted_(schedule.ranks.size()) {
    for (int edge = 0; edge < static_cast<int>(edges_.size()); ++edge) {
      edges_of_[index(edges_[index(edge)].from_rank)].push_back(edge);
      if (edges_[index(edge)].to_rank != edges_[index(edge)].from_rank)
        edges_of_[index(edges_[index(edge)].to_rank)].push_back(edge);
    }
  }

  std::vector<std::string> run() {
    check_matching();
    if (!problems_.empty()) return problems_;  // a transfer without its other side can only hang
    for (int rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const int rank = runnable_.back();
      runnable_.pop_back();
      advance(rank);
    }
    for (int rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) check_end(rank);
    check_order();
    return problems_;
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::size_t microbatches() const { return index(options_.microbatches); }
  bool trains(int module, int rank) const {
    return is_trained(topology_, options_, module, topology_.modules()[index(module)].dense.coord(rank, "pp"));
  }
  const std::string& name_of(int module) const { return topology_.modules()[index(module)].name; }
  void fail(std::string sentence) { problems_.push_back(std::move(sentence)); }

  std::size_t id_of(Transfer::Kind kind, int edge, int microbatch) const {
    return (kind * edges_.size() + index(edge)) * microbatches() + index(microbatch);
  }
  std::size_t id_of(const Transfer& t) const { return id_of(t.kind, t.edge, t.microbatch); }
  bool is_done(std::size_t id) const { return sent_[id] && received_[id]; }
  bool is_size_known(std::size_t id) const { return sizes_sent_[id] && sizes_received_[id]; }

  std::size_t place_of(Op::Kind kind, int rank, int module, int microbatch) const {
    const std::size_t place = index(rank) * topology_.modules().size() + index(module);
    return (kind * schedule_.ranks.size() * topology_.modules().size() + place) * microbatches() + index(microbatch);
  }
  char& ran(Op::Kind kind, int rank, int module, int microbatch) {
    return ran_[place_of(kind, rank, module, microbatch)];
  }

  std::string describe(const Transfer& t) const {
    const Edge& edge = edges_[index(t.edge)];
    const bool forward = t.kind == Transfer::Activation;
    return fmt::format("the {} of microbatch {} from rank {} to rank {}", forward ? "activation" : "gradient",
                       t.microbatch, forward ? edge.from_rank : edge.to_rank, forward ? edge.to_rank : edge.from_rank);
  }

  // Each edge between ranks carries each microbatch once, and its gradient once if the sender is trained.
  void check_matching() {
    std::vector<int> out(sent_.size()), in(sent_.size());
    for (int rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank)
      for (const Op& op : schedule_.ranks[index(rank)])
        for (const Transfer& t : op.transfers) {
          const Edge& edge = edges_[index(t.edge)];
          const bool leaves_from = (t.kind == Transfer::Activation) == t.outgoing;
          if (rank != (leaves_from ? edge.from_rank : edge.to_rank))
            fail(fmt::format("rank {} has no part in {}", rank, describe(t)));
          ++(t.outgoing ? out : in)[id_of(t)];
        }
    for (int edge = 0; edge < static_cast<int>(edges_.size()); ++edge)
      for (int mb = 0; mb < options_.microbatches; ++mb)
        for (const auto kind : {Transfer::Activation, Transfer::Gradient}) {
          const Edge& e = edges_[index(edge)];
          const int wanted =
              e.from_rank != e.to_rank && (kind == Transfer::Activation || trains(e.from_module, e.from_rank));
          const std::size_t id = id_of(kind, edge, mb);
          if (out[id] != wanted || in[id] != wanted)
            fail(fmt::format("{} is sent {} times and received {} times", describe({kind, edge, mb, true}), out[id],
                             in[id]));
        }
  }

  // Messages from one rank to another have no names: the n-th sent is the n-th received.
  void check_order() {
    std::map<std::pair<int, int>, std::vector<std::size_t>> sent, received;
    for (int rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank)
      for (const Op& op : schedule_.ranks[index(rank)])
        for (const Transfer& t : op.transfers) {
          const Edge& edge = edges_[index(t.edge)];
          const int other = edge.from_rank == rank ? edge.to_rank : edge.from_rank;
          t.outgoing ? sent[{rank, other}].push_back(id_of(t)) : received[{other, rank}].push_back(id_of(t));
        }
    for (const auto& [pair, ids] : sent)
      if (ids != received[pair])
        fail(fmt::format("rank {} does not receive in the order in which rank {} sends", pair.second, pair.first));
  }

  // Runs a rank until it has to wait.
  void advance(int rank) {
    const std::vector<Op>& ops = schedule_.ranks[index(rank)];
    std::size_t& next = position_[index(rank)];
    for (; next < ops.size(); ++next) {
      if (ops[next].kind != Op::Exchange) {
        if (!all_came(rank, ops[next])) return;
        compute(rank, ops[next]);
        continue;
      }
      bool waits = false;
      for (const Transfer& t : ops[next].transfers) {
        if (t.kind != Transfer::Activation) continue;
        post(rank, t, sizes_sent_, sizes_received_);
        waits = waits || !is_size_known(id_of(t));
      }
      if (waits) return;
      for (const Transfer& t : ops[next].transfers) {
        post(rank, t, sent_, received_);
        waits = waits || !is_done(id_of(t));
      }
      if (waits) return;
    }
  }

  void post(int rank, const Transfer& t, std::vector<char>& sent, std::vector<char>& received) {
    char& posted = (t.outgoing ? sent : received)[id_of(t)];
    const Edge& edge = edges_[index(t.edge)];
    if (!posted && (t.outgoing ? received : sent)[id_of(t)])
      runnable_.push_back(edge.from_rank == rank ? edge.to_rank : edge.from_rank);  // it waited for this
    posted = true;
  }

  // Whether every rank of the stage is at this op, or has been.
  bool all_came(int rank, const Op& op) {
    const Grid& grid = topology_.modules()[index(op.module)].dense;
    const int stage = grid.coord(rank, "pp"), stage_size = grid.size() / grid.size_of("pp");
    // The stages of one module are as many groups of ranks, so the first rank of each tells them apart.
    const int first = grid.rank_offset() + stage * stage_size;
    int& came = came_[place_of(op.kind, first, op.module, op.microbatch)];
    std::size_t& counted = counted_[index(rank)];
    if (counted <= position_[index(rank)]) {
      counted = position_[index(rank)] + 1;
      if (++came == stage_size)
        for (int other = first; other < first + stage_size; ++other)
          if (other != rank) runnable_.push_back(other);
    }
    return came >= stage_size;
  }

  void compute(int rank, const Op& op) {
    const bool forward = op.kind == Op::Forward;
    const auto fail_here = [&](const std::string& what) {
      fail(fmt::format("rank {}: {} of {}, microbatch {}, {}", rank, forward ? "forward" : "backward",
                       name_of(op.module), op.microbatch, what));
    };
    if (ran(op.kind, rank, op.module, op.microbatch)++) fail_here("runs twice");
    if (!forward && !trains(op.module, rank)) fail_here("is of a stage that does not train");
    if (!forward && !ran(Op::Forward, rank, op.module, op.microbatch)) fail_here("runs before its forward");
    for (const int i : edges_of_[index(rank)]) {
      const Edge& edge = edges_[index(i)];
      const bool mine = forward ? edge.to_rank == rank && edge.to_module == op.module
                                : edge.from_rank == rank && edge.from_module == op.module;
      if (!mine) continue;
      const bool there = edge.from_rank == edge.to_rank
                             ? ran(op.kind, rank, forward ? edge.from_module : edge.to_module, op.microbatch) > 0
                             : is_done(id_of(forward ? Transfer::Activation : Transfer::Gradient, i, op.microbatch));
      if (!there) fail_here("runs before what it needs is there");
    }
    int& held = held_[index(rank) * topology_.modules().size() + index(op.module)];
    held += forward ? 1 : -1;
    const int stage = topology_.modules()[index(op.module)].dense.coord(rank, "pp");
    if (trains(op.module, rank) && held > max_in_flight(topology_, options_, op.module, stage))
      fail_here(fmt::format("is one too many: {} are held", held));
  }

  void check_end(int rank) {
    const std::vector<Op>& ops = schedule_.ranks[index(rank)];
    const std::size_t next = position_[index(rank)];
    if (next < ops.size()) {
      std::vector<std::string> missing;
      for (const Transfer& t : ops[next].transfers)
        if (!is_done(id_of(t))) missing.push_back(describe(t));
      if (ops[next].kind != Op::Exchange)
        missing.push_back(fmt::format("the others for {} of {}, microbatch {}",
                                      ops[next].kind == Op::Forward ? "forward" : "backward", name_of(ops[next].module),
                                      ops[next].microbatch));
      fail(fmt::format("rank {} waits for ever at op {}: {}", rank, next, fmt::join(missing, ", ")));
      return;
    }
    for (const Module* module : topology_.modules_of(rank)) {
      const int m = static_cast<int>(module - topology_.modules().data());
      for (int mb = 0; mb < options_.microbatches; ++mb) {
        if (!ran(Op::Forward, rank, m, mb))
          fail(fmt::format("rank {} never runs {}, microbatch {}", rank, module->name, mb));
        if (trains(m, rank) && !ran(Op::Backward, rank, m, mb))
          fail(fmt::format("rank {} never runs backward of {}, microbatch {}", rank, module->name, mb));
      }
    }
  }

  const Schedule& schedule_;
  const Topology& topology_;
  const ScheduleOptions& options_;
  const std::vector<Edge> edges_;
  std::vector<char> sent_, received_;              // by transfer: which sides have posted it
  std::vector<char> sizes_sent_, sizes_received_;  // likewise, how large it is
  std::vector<std::size_t> position_;              // by rank: the op it is at
  std::vector<char> ran_;                          // by kind, rank, module and microbatch
  std::vector<int> held_;                          // by rank and module: forwards whose backward is to come
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> came_;             // by kind, first rank of a stage, module, microbatch: ranks that came to it
  std::vector<std::size_t> counted_;  // by rank: ops up to here are counted in came_
  std::vector<int> runnable_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> verify(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options) {
  return Player(schedule, topology, options).run();
}

}  // namespace braid
