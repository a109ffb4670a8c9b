// Checks a schedule: the lists are checked here, plan/player.h finds deadlocks.
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "plan/channels.h"
#include "plan/player.h"
#include "plan/schedule.h"

namespace braid {
namespace {

constexpr int kNotYet = -1;

class Verifier {
 public:
  Verifier(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options)
      : schedule_(schedule),
        topology_(topology),
        options_(options),
        edges_(make_edges(topology)),
        edges_of_(edges_by_rank(edges_, schedule.ranks.size())),
        rules_(topology.modules().size()),
        arrived_(2 * edges_.size() * options.microbatches, kNotYet) {
    for (const Stage& stage : all_stages(topology))
      rules_[stage.module].push_back({is_trained(topology, options, stage), reads_batch(topology, stage),
                                      max_in_flight(topology, options, stage)});
  }

  std::vector<std::string> run() {
    check_matching();
    if (!problems_.empty()) return problems_;  // a transfer without its other side always deadlocks
    check_order();
    for (int rank = 0; rank < world_size(); ++rank) check_list(rank);
    if (can_be_played_)
      for (const std::string& stuck : play(schedule_, topology_, {.communication_blocks = true}).stuck) fail(stuck);
    return problems_;
  }

 private:
  int world_size() const { return static_cast<int>(schedule_.ranks.size()); }
  // The properties of a stage.
  struct Rules {
    bool trains, reads_batch;
    int max_in_flight;
  };
  const Rules& rules(const Stage& stage) const { return rules_[stage.module][stage.index]; }
  bool trains(const Stage& stage) const { return rules(stage).trains; }
  bool awaits_parameters() const { return has_update(options_) && options_.overlap_gather; }
  const std::string& name_of(const Stage& stage) const { return topology_.module(stage.module).name; }
  void fail(std::string sentence) { problems_.push_back(std::move(sentence)); }

  std::size_t id_of(Transfer::Kind kind, int edge, int microbatch) const {
    return (kind * edges_.size() + edge) * options_.microbatches + microbatch;
  }

  // Each edge between ranks carries each microbatch once, and its gradient once if the sender is trained.
  void check_matching() {
    std::vector<int> out(arrived_.size()), in(out.size());
    for (int rank = 0; rank < world_size(); ++rank)
      for (const Op& op : schedule_.ranks[rank])
        for (const Transfer& t : op.transfers) {
          const Edge& edge = edges_[t.edge];
          const bool leaves_from = (t.kind == Transfer::Activation) == t.outgoing;
          if (rank != (leaves_from ? edge.from_rank : edge.to_rank))
            fail(fmt::format("rank {} takes no part in {}", rank, describe(t, edges_)));
          ++(t.outgoing ? out : in)[id_of(t.kind, t.edge, t.microbatch)];
        }
    for (int e = 0; e < std::ssize(edges_); ++e)
      for (int mb = 0; mb < options_.microbatches; ++mb)
        for (const auto kind : {Transfer::Activation, Transfer::Gradient}) {
          const Edge& edge = edges_[e];
          const int wanted = edge.crosses_ranks() && (kind == Transfer::Activation || trains(edge.from));
          const std::size_t id = id_of(kind, e, mb);
          if (out[id] != wanted || in[id] != wanted)
            fail(fmt::format("{} is sent {} times and received {} times", describe({kind, e, mb, true}, edges_),
                             out[id], in[id]));
        }
  }

  // Messages from one rank to another over one channel are not tagged: the n-th sent is the n-th received.
  void check_order() {
    std::map<std::tuple<int, int, Channel>, std::vector<std::size_t>> sent, received;
    for (int rank = 0; rank < world_size(); ++rank)
      for (const Op& op : schedule_.ranks[rank]) {
        if (op.kind == Op::Exchange && op.transfers.empty()) {
          fail(fmt::format("rank {} has an exchange without transfers", rank));
          can_be_played_ = false;
        }
        for (const Transfer& t : op.transfers) {
          const Edge& edge = edges_[t.edge];
          const Channel channel = channel_of(topology_, edge, t.kind);
          if (channel != channel_of(topology_, edges_[op.transfers[0].edge], op.transfers[0].kind))
            fail(fmt::format("rank {} starts {} in an exchange over another channel", rank, describe(t, edges_)));
          const int other = edge.peer_of(rank);
          const std::size_t id = id_of(t.kind, t.edge, t.microbatch);
          t.outgoing ? sent[{rank, other, channel}].push_back(id) : received[{other, rank, channel}].push_back(id);
        }
      }
    for (const auto& [key, ids] : sent)
      if (ids != received[key])
        fail(fmt::format("rank {} does not receive in the order in which rank {} sends", std::get<1>(key),
                         std::get<0>(key)));
  }

  // The ops that a rank has run so far, by stage and microbatch.
  struct Done {
    std::vector<int> loads, forwards, backwards;
    std::array<int, Op::kKinds> times{};  // by kind of op
    int held = 0;
  };
  using RankState = std::vector<Done>;  // as stages_of()

  // Every op of a rank's list comes after its inputs, and nothing is missing at the end.
  void check_list(int rank) {
    const std::vector<Stage> stages = stages_of(topology_, rank);
    const std::vector<int> none(options_.microbatches);
    RankState state(stages.size(), {none, none, none});
    bool updated = false;
    computed_ = 0;
    check_ends(rank);
    for (const Op& op : schedule_.ranks[rank]) {
      for (const Transfer& t : op.transfers) check_transfer(rank, t, stages, state);
      const auto at = std::find(stages.begin(), stages.end(), op.stage);
      updated = updated || op.kind == Op::Update;
      if (!op.has_stage()) continue;
      if (at == stages.end()) {
        fail(fmt::format("rank {} does not have stage {} of {}", rank, op.stage.index, name_of(op.stage)));
        can_be_played_ = false;
        continue;
      }
      Done& done = state[at - stages.begin()];
      ++done.times[op.kind];
      if (op.kind == Op::Load && done.loads[op.microbatch]++)
        fail(fmt::format("rank {} loads {}, microbatch {}, twice", rank, name_of(op.stage), op.microbatch));
      if (op.computes()) {
        check_compute(rank, op, stages, state, done);
        ++computed_;
      }
      if (op.starts_collective() || op.ends_collective()) check_collective(rank, op, done, updated);
    }
    for (std::size_t s = 0; s < stages.size(); ++s) check_end(rank, stages[s], state[s]);
  }

  // The sizes of all microbatches are known before anything but gathers runs, and nothing but gathers follows the
  // update.
  void check_ends(int rank) {
    const std::vector<Op>& ops = schedule_.ranks[rank];
    const auto is_gather = [](const Op& op) { return op.kind == Op::StartGather || op.kind == Op::EndGather; };
    const auto count = [&](Op::Kind kind) { return std::ranges::count(ops, kind, &Op::kind); };
    const auto first = std::find_if_not(ops.begin(), ops.end(), is_gather);
    if (count(Op::Begin) != 1 || first->kind != Op::Begin)
      fail(fmt::format("rank {} must begin the step once, before all ops but gathers", rank));
    const auto last = std::find_if_not(ops.rbegin(), ops.rend(), is_gather);
    const bool updates = has_update(options_);
    if (count(Op::Update) != (updates ? 1 : 0) || (updates && last->kind != Op::Update))
      fail(updates ? fmt::format("rank {} must update once, after all ops but gathers", rank)
                   : fmt::format("rank {} must not update", rank));
    check_order_of_reductions(rank);
  }

  // Replicas reduce the stages of a module in one order, that of their last backwards.
  void check_order_of_reductions(int rank) {
    std::map<int, int> last_reduced;  // by module
    for (const Op& op : schedule_.ranks[rank]) {
      if (op.kind != Op::StartReduce) continue;
      const auto [last, is_first] = last_reduced.try_emplace(op.stage.module, op.stage.index);
      if (!is_first && op.stage.index > last->second)
        fail(fmt::format("rank {} reduces stage {} of {} after stage {}", rank, op.stage.index, name_of(op.stage),
                         last->second));
      last->second = op.stage.index;
    }
  }

  void check_transfer(int rank, const Transfer& t, const std::vector<Stage>& stages, RankState& state) {
    if (!t.outgoing) {
      arrived_[id_of(t.kind, t.edge, t.microbatch)] = computed_;
      return;
    }
    const Edge& edge = edges_[t.edge];
    const bool forward = t.kind == Transfer::Activation;
    const Done& done = done_in(stages, state, forward ? edge.from : edge.to);
    if (!(forward ? done.forwards : done.backwards)[t.microbatch])
      fail(fmt::format("rank {} sends {} before it is computed", rank, describe(t, edges_)));
  }

  static const Done& done_in(const std::vector<Stage>& stages, const RankState& state, const Stage& stage) {
    return state[std::find(stages.begin(), stages.end(), stage) - stages.begin()];
  }

  // Parameters are gathered at the start of the step or after the update. A reduction starts with the last backward or
  // after it, and ends after it.
  void check_collective(int rank, const Op& op, const Done& done, bool updated) {
    const auto fail_here = [&](const std::string& what) {
      fail(fmt::format("rank {}: {} {}", rank, describe(op, topology_), what));
    };
    if (!has_update(options_) || !trains(op.stage)) fail_here("is of a stage that is not updated");
    const bool gathers = op.kind == Op::StartGather || op.kind == Op::EndGather;
    if (op.ends_collective() && done.times[gathers ? Op::StartGather : Op::StartReduce] == 0)
      fail_here("comes before it has started");
    if (gathers && updated == options_.overlap_gather)
      fail_here(updated ? "comes after the update" : "comes before the update");
    if (gathers) return;
    const int before = options_.microbatches - (options_.overlap_reduce && op.kind == Op::StartReduce ? 1 : 0);
    if (done.times[Op::Backward] != before)
      fail_here(fmt::format("comes after {} backwards, not {}", done.times[Op::Backward], before));
  }

  void check_compute(int rank, const Op& op, const std::vector<Stage>& stages, const RankState& state, Done& done) {
    const bool forward = op.kind == Op::Forward;
    const auto fail_here = [&](const std::string& what) {
      fail(fmt::format("rank {}: {} of {}, microbatch {}, {}", rank, forward ? "forward" : "backward",
                       name_of(op.stage), op.microbatch, what));
    };
    const int mb = op.microbatch;
    if ((forward ? done.forwards : done.backwards)[mb]++) fail_here("runs twice");
    if (!forward && !trains(op.stage)) fail_here("is of a stage that does not train");
    if (!forward && !done.forwards[mb]) fail_here("runs before its forward");
    if (forward && rules(op.stage).reads_batch && !done.loads[mb]) fail_here("runs before its batch is loaded");
    if (forward && trains(op.stage) && awaits_parameters()) {
      if (done.times[Op::StartGather] == 0) fail_here("runs before the gather of its parameters");
      if (done.times[Op::EndGather] != (op.microbatch == 0 ? 0 : 1))
        fail_here(fmt::format("runs {} the end of that gather", op.microbatch == 0 ? "after" : "before"));
    }
    if (!forward && done.times[Op::EndReduce] > 0) fail_here("runs after its gradients were reduced");
    if (!has_input(rank, op, stages, state)) fail_here("runs before its input has arrived");
    if (receives_early(rank, op)) fail_here("receives its input more than one forward or backward ahead");
    done.held += forward ? 1 : -1;
    if (trains(op.stage) && done.held > rules(op.stage).max_in_flight)
      fail_here(fmt::format("exceeds the limit of microbatches in flight: {} are held", done.held));
  }

  bool has_input(int rank, const Op& op, const std::vector<Stage>& stages, const RankState& state) const {
    const bool forward = op.kind == Op::Forward;
    for (const int e : inputs_of(rank, op)) {
      const Edge& edge = edges_[e];
      if (edge.crosses_ranks()) {
        if (arrived_[id_of(kind_of_input(op), e, op.microbatch)] == kNotYet) return false;
        continue;
      }
      const Done& done = done_in(stages, state, forward ? edge.from : edge.to);
      if (!(forward ? done.forwards : done.backwards)[op.microbatch]) return false;
    }
    return true;
  }

  bool receives_early(int rank, const Op& op) const {
    for (const int e : inputs_of(rank, op)) {
      const Edge& edge = edges_[e];
      const bool is_limited = edge.crosses_ranks() && !(topology_.colocated() && edge.crosses_modules());
      const int arrived = arrived_[id_of(kind_of_input(op), e, op.microbatch)];
      if (is_limited && arrived != kNotYet && computed_ - arrived > 1) return true;
    }
    return false;
  }

  static Transfer::Kind kind_of_input(const Op& op) {
    return op.kind == Op::Forward ? Transfer::Activation : Transfer::Gradient;
  }
  std::vector<int> inputs_of(int rank, const Op& op) const {
    std::vector<int> inputs = edges_of_[rank];
    std::erase_if(inputs, [&](int e) {
      return !(op.kind == Op::Forward ? edges_[e].ends_at(op.stage, rank) : edges_[e].begins_at(op.stage, rank));
    });
    return inputs;
  }

  void check_end(int rank, const Stage& stage, const Done& done) {
    for (int mb = 0; mb < options_.microbatches; ++mb) {
      if (!done.forwards[mb]) fail(fmt::format("rank {} never runs {}, microbatch {}", rank, name_of(stage), mb));
      if (trains(stage) && !done.backwards[mb])
        fail(fmt::format("rank {} never runs backward of {}, microbatch {}", rank, name_of(stage), mb));
    }
    for (const auto kind : {Op::StartGather, Op::EndGather, Op::StartReduce, Op::EndReduce})
      if (done.times[kind] != (has_update(options_) && trains(stage) ? 1 : 0)) {
        fail(fmt::format("rank {} runs {} {} times", rank, describe({kind, stage}, topology_), done.times[kind]));
        can_be_played_ = false;
      }
  }

  const Schedule& schedule_;
  const Topology& topology_;
  const ScheduleOptions& options_;
  const std::vector<Edge> edges_;
  const std::vector<std::vector<int>> edges_of_;  // by rank
  std::vector<std::vector<Rules>> rules_;         // by module and stage
  std::vector<int> arrived_;   // by transfer: how many forwards and backwards its receiver had run by then, or kNotYet
  int computed_ = 0;           // forwards and backwards of the rank that is being checked
  bool can_be_played_ = true;  // gathers and reductions are started once, by ranks that have their stages
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> verify(const Schedule& schedule, const Topology& topology, const ScheduleOptions& options) {
  return Verifier(schedule, topology, options).run();
}

}  // namespace braid
