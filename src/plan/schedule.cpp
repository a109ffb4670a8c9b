#include "plan/schedule.h"
#include "base/strings.h"
#include "plan/meetings.h"

namespace braid {
namespace {

// The stage (chunk) and microbatch of a pipeline rank's n-th forward, if microbatches go in groups of `together`.
struct Turn {
  int chunk, microbatch;
};
Turn nth_forward(int n, int together, int vpp) {
  const int group = n / (together * vpp), within = n % (together * vpp);
  return {within / together, group * together + within % together};
}

int interleaved_warm_up(int pp, int vpp, int pp_rank, int microbatches) {
  return std::min(2 * (pp - 1 - pp_rank) + (vpp - 1) * pp, microbatches * vpp);
}

// 1F1B: one forward, one backward, after `warm_up` forwards.
std::vector<Op> one_forward_one_backward(const Stage& stage, int microbatches, int warm_up) {
  std::vector<Op> turns;
  for (int n = 0; n < microbatches + warm_up; ++n) {
    if (n < microbatches) turns.push_back({Op::Forward, stage, n});
    if (n >= warm_up) turns.push_back({Op::Backward, stage, n - warm_up});
  }
  return turns;
}

// Megatron's interleaving: microbatches go through a rank's stages in groups of pp, and after a warm-up each forward is
// followed by a backward. `microbatches` must be 1 or a multiple of pp.
std::vector<Op> interleaved(int module, int pp, int vpp, int pp_rank, int microbatches) {
  const int warm_up = interleaved_warm_up(pp, vpp, pp_rank, microbatches), count = microbatches * vpp;
  const int together = std::min(pp, microbatches);
  const auto stage = [&](int chunk) { return Stage{module, chunk * pp + pp_rank}; };
  std::vector<Op> turns;
  for (int n = 0; n < count + warm_up; ++n) {
    const Turn forward = nth_forward(n, together, vpp), backward = nth_forward(n - warm_up, together, vpp);
    if (n < count) turns.push_back({Op::Forward, stage(forward.chunk), forward.microbatch});
    if (n >= warm_up) turns.push_back({Op::Backward, stage(vpp - 1 - backward.chunk), backward.microbatch});
  }
  return turns;
}

// The turns of a stage that feeds `next`, whose rank runs `turns`: one forward further ahead.
std::vector<Op> turns_before(const Stage& stage, const Stage& next, const std::vector<Op>& turns, int microbatches) {
  std::vector<Op> before = {{Op::Forward, stage, 0}};
  for (const Op& op : turns) {
    if (op.stage != next) continue;
    const int microbatch = op.kind == Op::Forward ? op.microbatch + 1 : op.microbatch;
    if (microbatch < microbatches) before.push_back({op.kind, stage, microbatch});
  }
  return before;
}

// Runs each forward but the first, for which other stages wait, `ahead` microbatches earlier. It needs no input.
std::vector<Op> with_forwards_ahead(const std::vector<Op>& turns, int ahead, int microbatches) {
  std::vector<Op> earlier;
  int next = 0;
  for (const Op& op : turns) {
    if (op.kind != Op::Forward) {
      earlier.push_back(op);
      continue;
    }
    const int last = op.microbatch == 0 ? 0 : std::min(op.microbatch + ahead, microbatches - 1);
    for (; next <= last; ++next) earlier.push_back({Op::Forward, op.stage, next});
  }
  return earlier;
}

// The most microbatches that the k-th of vpp stages on a pipeline rank holds in flight under interleaved().
// The maximum is reached just before the chunk's first backward.
int interleaved_in_flight(int pp, int vpp, int pp_rank, int chunk, int microbatches) {
  const int together = std::min(pp, microbatches);
  const int last = interleaved_warm_up(pp, vpp, pp_rank, microbatches) + (vpp - 1 - chunk) * together;
  int held = 0;
  for (int n = 0; n <= std::min(last, microbatches * vpp - 1); ++n)
    held += nth_forward(n, together, vpp).chunk == chunk;
  return held;
}

int pp_of(const Module& module) { return module.dense.size_of("pp"); }
const Module& module_of(const Topology& topology, const Stage& stage) { return topology.module(stage.module); }

std::vector<Op> only_forwards(const std::vector<Stage>& stages, int microbatches) {
  std::vector<Op> turns;
  for (int mb = 0; mb < microbatches; ++mb)
    for (const Stage& stage : stages) turns.push_back({Op::Forward, stage, mb});
  return turns;
}

std::vector<Op> language_turns(const Topology& topology, const ScheduleOptions& options, int pp_rank) {
  const Module& module = topology.language();
  const int m = index_of_language(topology), pp = pp_of(module);
  if (options.forward_only) {
    std::vector<Stage> stages;
    for (int s = pp_rank; s < stage_count(module); s += pp) stages.push_back({m, s});
    return only_forwards(stages, options.microbatches);
  }
  return module.vpp > 1 ? interleaved(m, pp, module.vpp, pp_rank, options.microbatches)
                        : one_forward_one_backward({m, pp_rank}, options.microbatches, pp - 1 - pp_rank);
}

std::vector<Op> encoder_turns_without_prefetch(const Topology& topology, const ScheduleOptions& options,
                                               const Stage& stage) {
  if (!is_trained(topology, options, stage)) return only_forwards({stage}, options.microbatches);
  Stage next = {index_of_language(topology), 0};
  std::vector<Op> turns = language_turns(topology, options, 0);
  for (int s = stage_count(module_of(topology, stage)) - 1; s >= stage.index; --s) {
    turns = turns_before({stage.module, s}, next, turns, options.microbatches);
    next = {stage.module, s};
  }
  return turns;
}

std::vector<Op> encoder_turns(const Topology& topology, const ScheduleOptions& options, const Stage& stage) {
  const std::vector<Op> turns = encoder_turns_without_prefetch(topology, options, stage);
  if (pp_of(module_of(topology, stage)) > 1) return turns;
  return with_forwards_ahead(turns, options.prefetch, options.microbatches);
}

// The turns of a rank that colocated modules share. Without pipelines the modules change after every microbatch,
// because this holds the fewest activations; with pipelines, each module runs all its microbatches.
std::vector<Op> shared_turns(const Topology& topology, const ScheduleOptions& options, int rank) {
  const int language = index_of_language(topology);
  std::vector<Op> turns;
  const auto encode = [&](Op::Kind kind, int microbatch) {
    for (const Stage& stage : stages_of(topology, rank))
      if (stage.module != language && (kind == Op::Forward || is_trained(topology, options, stage)))
        turns.push_back({kind, stage, microbatch});
  };
  if (is_pipelined(topology)) {
    for (int mb = 0; mb < options.microbatches; ++mb) encode(Op::Forward, mb);
    const int pp_rank = topology.language().dense.coord(rank, "pp");
    for (const Op& op : language_turns(topology, options, pp_rank)) turns.push_back(op);
    for (int mb = 0; mb < options.microbatches; ++mb) encode(Op::Backward, mb);
    return turns;
  }
  for (int mb = 0; mb < options.microbatches; ++mb) {
    encode(Op::Forward, mb);
    turns.push_back({Op::Forward, {language, 0}, mb});
    if (options.forward_only) continue;
    turns.push_back({Op::Backward, {language, 0}, mb});
    encode(Op::Backward, mb);
  }
  return turns;
}

// Starts the reduction of a stage's gradients after its last backward; with overlap before it, to run during it.
std::vector<Op> with_reductions(const std::vector<Op>& turns, const ScheduleOptions& options) {
  if (!has_update(options)) return turns;
  std::vector<Op> ops;
  for (const Op& op : turns) {
    const bool is_last = op.kind == Op::Backward && op.microbatch + 1 == options.microbatches;
    if (is_last && options.overlap_reduce) ops.push_back({Op::StartReduce, op.stage});
    ops.push_back(op);
    if (is_last && !options.overlap_reduce) ops.push_back({Op::StartReduce, op.stage});
  }
  return ops;
}

// Loads the batch of each forward before the forward or backward in front of it, during which the data arrive.
std::vector<Op> with_loads(std::vector<Op> program, const Topology& topology) {
  std::vector<Op> ops;
  std::size_t before = 0;  // the place of the last forward or backward
  for (Op& op : program) {
    if (op.kind == Op::Forward && reads_batch(topology, op.stage))
      ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(before), {Op::Load, op.stage, op.microbatch});
    if (op.computes()) before = ops.size();
    ops.push_back(std::move(op));
  }
  return ops;
}

// Adds the start of the step, its update and the gathers of the parameters of trained stages. With overlap, the
// parameters of the last step arrive while this one begins: gathers start before everything else and end with the first
// forwards, whose layers await their own parameters. Otherwise parameters are gathered as part of the update.
std::vector<Op> with_update(std::vector<Op> program, const std::vector<Stage>& trained,
                            const ScheduleOptions& options) {
  if (!has_update(options)) {
    program.insert(program.begin(), {Op::Begin});
    return program;
  }
  std::vector<Op> ops;
  const bool overlaps = options.overlap_gather;
  for (std::size_t s = 0; overlaps && s < trained.size(); ++s) ops.push_back({Op::StartGather, trained[s]});
  ops.push_back({Op::Begin});
  for (Op& op : program) {
    const bool reads_first =
        overlaps && op.kind == Op::Forward && op.microbatch == 0 && std::ranges::count(trained, op.stage) > 0;
    const Stage stage = op.stage;
    ops.push_back(std::move(op));
    if (reads_first) ops.push_back({Op::EndGather, stage});
  }
  for (auto stage = trained.rbegin(); stage != trained.rend(); ++stage) ops.push_back({Op::EndReduce, *stage});
  ops.push_back({Op::Update});
  if (overlaps) return ops;
  for (const auto kind : {Op::StartGather, Op::EndGather})
    for (const Stage& stage : trained) ops.push_back({kind, stage});
  return ops;
}

// --- sends and receives

using RankLists = std::vector<std::vector<Op>>;  // by global rank

// Adds the sends and receives to the ranks' lists of forwards, backwards and reductions.
//
// It puts the ops and transfers of all ranks into one order, which every list follows. So the lists cannot deadlock
// even if each rank does one thing after the other: the first item of the order that is not done yet can always run.
// Within this rule
// - a tensor is sent right after the op that computes it; the rank goes on when it has arrived. Only an encoder with
//   prefetch may have more tensors waiting;
// - it is received as early as possible, but at most one forward or backward before the one that reads it. A rank
//   therefore holds at most one input more than it reads. Colocated modules, which run all their microbatches one
//   module after the other if they have pipelines, exchange embeddings and their gradients without this limit;
// - if two ranks would each have to wait for the other's tensor, a forward runs before a backward, because activations
//   can then travel during the longer op; of two forwards, that of the earlier stage runs first.
class TransferOrder {
 public:
  TransferOrder(const RankLists& lists, const Topology& topology, const ScheduleOptions& options,
                const std::vector<Edge>& edges)
      : lists_(lists), topology_(topology), options_(options), edges_(edges), meetings_(topology, options.microbatches),
        edges_of_(edges_by_rank(edges, lists.size())), ranks_(lists.size()) {
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
  // The transfers of a microbatch over a bundle, which happen together when all senders and receivers are ready.
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
  // An op that all its ranks have reached. The second and third field matter only if it leaves an input behind.
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

  // A forward receives and sends activations; a backward does the same with gradients in the opposite direction.
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

std::vector<Op> turns_of(const Topology& topology, const ScheduleOptions& options, int rank) {
  if (topology.colocated()) return shared_turns(topology, options, rank);
  const Stage first = stages_of(topology, rank).front();
  return module_of(topology, first).is_encoder ? encoder_turns(topology, options, first)
                                               : language_turns(topology, options, first.index);
}

Schedule make_schedule(const Topology& topology, const ScheduleOptions& options) {
  RankLists lists;
  for (int rank = 0; rank < topology.world_size(); ++rank)
    lists.push_back(with_reductions(turns_of(topology, options, rank), options));
  const std::vector<Edge> edges = make_edges(topology);
  lists = TransferOrder(lists, topology, options, edges).run();
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    std::vector<Stage> trained = stages_of(topology, rank);
    std::erase_if(trained, [&](const Stage& stage) { return !is_trained(topology, options, stage); });
    lists[rank] = with_update(with_loads(std::move(lists[rank]), topology), trained, options);
  }
  return {std::move(lists)};
}

Schedule verified_schedule(const Topology& topology, const ScheduleOptions& options) {
  Schedule schedule = make_schedule(topology, options);
  const std::vector<std::string> problems = verify(schedule, topology, options);
  BRAID_CHECK(problems.empty(), "{}", joined(problems, "; "));
  return schedule;
}

int microbatches_of(const Workload& workload, const Topology& topology) {
  const int samples = workload.micro_batch * topology.language().dense.size_of("dp");
  BRAID_CHECK_EQ(workload.global_batch % samples, 0, "samples of a step");
  return workload.global_batch / samples;
}

int max_in_flight(const Topology& topology, const ScheduleOptions& options, const Stage& stage) {
  const Module& module = module_of(topology, stage);
  const Module& language = topology.language();
  if (topology.colocated() && module.is_encoder) return is_pipelined(topology) ? options.microbatches : 1;
  const auto in_language = [&](int index) {
    const int pp = pp_of(language);
    return language.vpp > 1 ? interleaved_in_flight(pp, language.vpp, index % pp, index / pp, options.microbatches)
                            : pp - index;
  };
  const int ahead = stage_count(module) - stage.index + (pp_of(module) == 1 ? options.prefetch : 0);
  return std::min(module.is_encoder ? in_language(0) + ahead : in_language(stage.index), options.microbatches);
}

StepPlan::StepPlan(const Topology& topology, const ScheduleOptions& options)
    : options(options), edges(make_edges(topology)), schedule(verified_schedule(topology, options)) {}

}  // namespace braid
