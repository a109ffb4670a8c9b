// Checks a schedule: the lists are checked here, plan/player.h finds deadlocks.

#include "base/error.h"
#include "plan/channels.h"
#include "plan/player.h"
#include "plan/schedule.h"

namespace braid {
namespace {

constexpr int kNotYet = -1;

bool is_gather(const Op& op) { return op.kind == Op::StartGather || op.kind == Op::EndGather; }

class Verifier {
 public:
  Verifier(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options)
      : schedule_(schedule), topology_(topology), options_(options), edges_(make_edges(topology)),
        channels_(channels_of(topology, edges_)), edges_of_(edges_by_rank(edges_, schedule.ranks.size())),
        updates_(has_update(options)), arrived_(2 * edges_.size() * options.microbatches, kNotYet) {
    std::map<std::tuple<int, int, Channel>, int> routes;
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      const Edge& edge = edges_[i % edges_.size()];
      const auto route = routes.try_emplace({edge.from_rank, edge.to_rank, channels_[i]}, routes_).first;
      route_of_.push_back(route->second);
      routes_ = static_cast<int>(routes.size());
    }
  }

  std::vector<std::string> run() {
    check_matching();
    if (!problems_.empty()) return problems_;  // a transfer without its other side always deadlocks
    check_order();
    for (rank_ = 0; rank_ < world_size(); ++rank_) check_list();
    if (can_be_played_)
      for (const std::string& stuck : play(schedule_, topology_, {.communication_blocks = true}).stuck)
        problems_.push_back(stuck);
    return problems_;
  }

 private:
  int world_size() const { return static_cast<int>(schedule_.ranks.size()); }
  bool trains(const Stage& stage) const { return is_trained(topology_, options_, stage); }
  const std::string& name_of(const Stage& stage) const { return topology_.module(stage.module).name; }

  template <class... Args>
  void fail(fmt::format_string<Args...> sentence, Args&&... args) {
    problems_.push_back(fmt::format(sentence, std::forward<Args>(args)...));
  }

  std::size_t id_of(Transfer::Kind kind, int edge, int microbatch) const {
    return (kind * edges_.size() + edge) * options_.microbatches + microbatch;
  }
  std::size_t id_of(const Transfer& t) const { return id_of(t.kind, t.edge, t.microbatch); }
  const Channel& channel_of(const Transfer& t) const { return channels_[t.kind * edges_.size() + t.edge]; }

  // --- transfers of all ranks

  // Each edge between ranks carries each microbatch once, and its gradient once if the sender is trained.
  void check_matching() {
    std::vector<int> out(arrived_.size()), in(out.size());
    for (int rank = 0; rank < world_size(); ++rank)
      for (const Op& op : schedule_.ranks[rank])
        for (const Transfer& t : op.transfers) {
          const Edge& edge = edges_[t.edge];
          const bool leaves_from = (t.kind == Transfer::Activation) == t.outgoing;
          if (rank != (leaves_from ? edge.from_rank : edge.to_rank))
            fail("rank {} takes no part in {}", rank, describe(t, edges_));
          ++(t.outgoing ? out : in)[id_of(t)];
        }
    for (int e = 0; e < std::ssize(edges_); ++e) {
      const bool has_gradient = trains(edges_[e].from);
      for (int mb = 0; mb < options_.microbatches; ++mb)
        for (const auto kind : {Transfer::Activation, Transfer::Gradient}) {
          const int wanted = edges_[e].crosses_ranks() && (kind == Transfer::Activation || has_gradient);
          const std::size_t id = id_of(kind, e, mb);
          if (out[id] != wanted || in[id] != wanted)
            fail("{} is sent {} times and received {} times", describe({kind, e, mb, true}, edges_), out[id], in[id]);
        }
    }
  }

  // Messages from one rank to another over one channel are not tagged: the n-th sent is the n-th received.
  void check_order() {
    std::vector<int> sent(routes_), received(routes_);  // so far, by route
    std::vector<int> sent_as(arrived_.size()), received_as(arrived_.size());
    for (int rank = 0; rank < world_size(); ++rank)
      for (const Op& op : schedule_.ranks[rank]) {
        if (op.kind == Op::Exchange && op.transfers.empty()) {
          fail("rank {} has an exchange without transfers", rank);
          can_be_played_ = false;
        }
        for (const Transfer& t : op.transfers) {
          if (channel_of(t) != channel_of(op.transfers[0]))
            fail("rank {} starts {} in an exchange over another channel", rank, describe(t, edges_));
          const int route = route_of_[t.kind * edges_.size() + t.edge];
          (t.outgoing ? sent_as : received_as)[id_of(t)] = (t.outgoing ? sent : received)[route]++;
        }
      }
    std::set<int> named;  // routes
    for (std::size_t id = 0; id < arrived_.size(); ++id) {
      const std::size_t side = id / options_.microbatches;  // of an edge
      if (sent_as[id] == received_as[id] || !named.insert(route_of_[side]).second) continue;
      const Edge& edge = edges_[side % edges_.size()];
      const bool forward = side < edges_.size();
      fail("rank {} does not receive in the order in which rank {} sends", forward ? edge.to_rank : edge.from_rank,
           forward ? edge.from_rank : edge.to_rank);
    }
  }

  // --- the list of one rank

  // The ops of a stage that the rank has run so far.
  struct Done {
    Stage stage;
    bool trains;
    int max_in_flight;
    std::array<int, Op::kKinds> times{};                          // by kind of op
    std::vector<std::array<int, Op::Backward + 1>> microbatch{};  // the same of its loads, forwards and backwards
    int held = 0;
  };

  Done* find(const Stage& stage) {
    const auto found = std::ranges::find(done_, stage, &Done::stage);
    return found == done_.end() ? nullptr : &*found;
  }
  bool has_computed(Op::Kind kind, const Stage& stage, int mb) { return find(stage)->microbatch[mb][kind] > 0; }

  // Every op comes after its inputs, and nothing is missing at the end.
  void check_list() {
    done_.clear();
    for (const Stage& stage : stages_of(topology_, rank_)) {
      Done& done = done_.emplace_back(Done{stage, trains(stage), max_in_flight(topology_, options_, stage)});
      done.microbatch.resize(options_.microbatches);
    }
    updated_ = false;
    computed_ = 0;
    check_ends();
    check_order_of_reductions();
    for (const Op& op : schedule_.ranks[rank_]) {
      for (const Transfer& t : op.transfers) check_transfer(t);
      updated_ = updated_ || op.kind == Op::Update;
      if (!op.has_stage()) continue;
      Done* done = find(op.stage);
      if (!done) {
        fail("rank {} does not have stage {} of {}", rank_, op.stage.index, name_of(op.stage));
        can_be_played_ = false;
        continue;
      }
      ++done->times[op.kind];
      if (op.kind == Op::Load && done->microbatch[op.microbatch][Op::Load]++)
        fail("rank {} loads {}, microbatch {}, twice", rank_, name_of(op.stage), op.microbatch);
      if (op.computes()) check_compute(op, *done);
      if (op.starts_collective() || op.ends_collective()) check_collective(op, *done);
    }
    for (const Done& done : done_) check_end(done);
  }

  // Begin, after which the sizes of microbatches are known, and the update: only gathers are outside of them.
  void check_ends() {
    const std::vector<Op>& ops = schedule_.ranks[rank_];
    const auto count = [&](Op::Kind kind) { return std::ranges::count(ops, kind, &Op::kind); };
    const auto first = std::find_if_not(ops.begin(), ops.end(), is_gather);
    if (count(Op::Begin) != 1 || first->kind != Op::Begin)
      fail("rank {} must begin the step once, before all ops but gathers", rank_);
    const auto last = std::find_if_not(ops.rbegin(), ops.rend(), is_gather);
    if (!updates_ && count(Op::Update) > 0) fail("rank {} must not update", rank_);
    if (updates_ && (count(Op::Update) != 1 || last->kind != Op::Update))
      fail("rank {} must update once, after all ops but gathers", rank_);
  }

  // Replicas reduce the stages of a module in one order, that of their last backwards.
  void check_order_of_reductions() {
    std::map<int, int> last_reduced;  // by module
    for (const Op& op : schedule_.ranks[rank_]) {
      if (op.kind != Op::StartReduce) continue;
      const auto [last, is_first] = last_reduced.try_emplace(op.stage.module, op.stage.index);
      if (!is_first && op.stage.index > last->second)
        fail("rank {} reduces stage {} of {} after stage {}", rank_, op.stage.index, name_of(op.stage), last->second);
      last->second = op.stage.index;
    }
  }

  void check_transfer(const Transfer& t) {
    const Edge& edge = edges_[t.edge];
    const bool forward = t.kind == Transfer::Activation;
    if (!t.outgoing)
      arrived_[id_of(t)] = computed_;
    else if (!has_computed(forward ? Op::Forward : Op::Backward, forward ? edge.from : edge.to, t.microbatch))
      fail("rank {} sends {} before it is computed", rank_, describe(t, edges_));
  }

  // With overlap_gather, gathers come before the update, otherwise after it. A reduction starts before the last
  // backward with overlap_reduce, otherwise after it; it always ends after it.
  void check_collective(const Op& op, const Done& done) {
    const auto fail_here = [&](const std::string& what) {
      fail("rank {}: {} {}", rank_, describe(op, topology_), what);
    };
    if (!updates_ || !done.trains) fail_here("is of a stage that is not updated");
    if (op.ends_collective() && done.times[is_gather(op) ? Op::StartGather : Op::StartReduce] == 0)
      fail_here("comes before it has started");
    if (is_gather(op) && updated_ == options_.overlap_gather)
      fail_here(updated_ ? "comes after the update" : "comes before the update");
    if (is_gather(op)) return;
    const int before = options_.microbatches - (options_.overlap_reduce && op.kind == Op::StartReduce ? 1 : 0);
    if (done.times[Op::Backward] != before)
      fail_here(fmt::format("comes after {} backwards, not {}", done.times[Op::Backward], before));
  }

  void check_compute(const Op& op, Done& done) {
    const bool forward = op.kind == Op::Forward;
    const auto fail_here = [&](const std::string& what) {
      fail("rank {}: {} of {}, microbatch {}, {}", rank_, forward ? "forward" : "backward", name_of(op.stage),
           op.microbatch, what);
    };
    const auto fail_if = [&](bool is_wrong, const char* what) {
      if (is_wrong) fail_here(what);
    };
    const int mb = op.microbatch;
    fail_if(done.microbatch[mb][op.kind]++ > 0, "runs twice");
    fail_if(!forward && !done.trains, "is of a stage that does not train");
    fail_if(!forward && done.microbatch[mb][Op::Forward] == 0, "runs before its forward");
    fail_if(forward && reads_batch(topology_, op.stage) && done.microbatch[mb][Op::Load] == 0,
            "runs before its batch is loaded");
    if (forward && done.trains && updates_ && options_.overlap_gather) {
      fail_if(done.times[Op::StartGather] == 0, "runs before the gather of its parameters");
      fail_if(done.times[Op::EndGather] != (mb == 0 ? 0 : 1),
              mb == 0 ? "runs after the end of that gather" : "runs before the end of that gather");
    }
    fail_if(!forward && done.times[Op::EndReduce] > 0, "runs after its gradients were reduced");
    const auto [has_inputs, is_early] = inputs_of(op);
    fail_if(!has_inputs, "runs before its input has arrived");
    fail_if(is_early, "receives its input more than one forward or backward ahead");
    done.held += forward ? 1 : -1;
    if (done.trains && done.held > done.max_in_flight)
      fail_here(fmt::format("exceeds the limit of microbatches in flight: {} are held", done.held));
    ++computed_;
  }

  // Whether all inputs of a forward or backward are there, and whether one has come too early.
  std::pair<bool, bool> inputs_of(const Op& op) {
    const bool forward = op.kind == Op::Forward;
    bool has_all = true, is_early = false;
    for (const int e : edges_of_[rank_]) {
      const Edge& edge = edges_[e];
      if (!(forward ? edge.ends_at(op.stage, rank_) : edge.begins_at(op.stage, rank_))) continue;
      if (!edge.crosses_ranks()) {
        has_all = has_all && has_computed(op.kind, forward ? edge.from : edge.to, op.microbatch);
        continue;
      }
      const int arrived = arrived_[id_of(forward ? Transfer::Activation : Transfer::Gradient, e, op.microbatch)];
      const bool is_limited = !(topology_.colocated() && edge.crosses_modules());
      has_all = has_all && arrived != kNotYet;
      is_early = is_early || (is_limited && arrived != kNotYet && computed_ - arrived > 1);
    }
    return {has_all, is_early};
  }

  void check_end(const Done& done) {
    for (int mb = 0; mb < options_.microbatches; ++mb) {
      if (!done.microbatch[mb][Op::Forward])
        fail("rank {} never runs {}, microbatch {}", rank_, name_of(done.stage), mb);
      if (done.trains && !done.microbatch[mb][Op::Backward])
        fail("rank {} never runs backward of {}, microbatch {}", rank_, name_of(done.stage), mb);
    }
    for (const auto kind : {Op::StartGather, Op::EndGather, Op::StartReduce, Op::EndReduce})
      if (done.times[kind] != (updates_ && done.trains ? 1 : 0)) {
        fail("rank {} runs {} {} times", rank_, describe({kind, done.stage}, topology_), done.times[kind]);
        can_be_played_ = false;
      }
  }

  const Schedule& schedule_;
  const Topology& topology_;
  const ScheduleOptions& options_;
  const std::vector<Edge> edges_;
  const std::vector<Channel> channels_;  // by kind of transfer and edge
  std::vector<int> route_of_;            // by kind and edge: a number for its ranks and channel
  int routes_ = 0;
  const std::vector<std::vector<int>> edges_of_;  // by rank
  const bool updates_;
  std::vector<int> arrived_;   // by transfer: how many forwards and backwards its receiver had run by then, or kNotYet
  bool can_be_played_ = true;  // false: there is a defect that play() cannot handle
  std::vector<std::string> problems_;
  // Of the rank whose list is checked.
  int rank_ = 0;
  std::vector<Done> done_;  // by stage
  bool updated_ = false;
  int computed_ = 0;  // forwards and backwards
};

}  // namespace

std::vector<std::string> verify(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options) {
  return Verifier(schedule, topology, options).run();
}

}  // namespace braid
