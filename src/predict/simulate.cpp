#include "predict/simulate.h"

namespace braid {
namespace {

// Gives each cp rank of the large world an equal share of a replica's labels.
StepSizes for_large_world(StepSizes sizes, const std::vector<Module>& modules) {
  const int cp = std::ranges::find(modules, false, &Module::is_encoder)->dense.size_of("cp");
  for (auto& of_replicas : sizes.text)
    for (StepSizes::Text& text : of_replicas)
      text.labels.assign(cp, std::accumulate(text.labels.begin(), text.labels.end(), std::int64_t{0}) / cp);
  return sizes;
}

template <class Size>
int shared_factor(const TopologyConfig& config, Size size) {
  int factor = 0;
  for (const ModuleConfig& module : config.modules) factor = std::gcd(factor, size(module));
  return factor;
}

int ranks_of_replica(const ModuleConfig& module) { return module.tp * module.cp; }

// Replicas can be renumbered if modules that share ranks also have the same pipeline ranks.
int replica_factor(const TopologyConfig& config) {
  const int pp = config.modules.front().pp;
  if (config.colocated && std::ranges::count(config.modules, pp, &ModuleConfig::pp) < std::ssize(config.modules))
    return 1;
  return shared_factor(config, [](const ModuleConfig& module) { return module.dp; });
}

// Replicas that share experts must still wait for each other in the small world.
ModuleConfig reduced(ModuleConfig module, int rank_factor, int replica_factor) {
  const int ranks = ranks_of_replica(module), tp = ranks / rank_factor;
  const bool has_experts = module.kind != ModuleKind::Encoder;
  const int sharing = replica_factor == 1 ? std::lcm(ranks, module.ep * module.expt_tp) / ranks : 1;
  module.rank_offset = module.ranks = module.expt_dp = std::nullopt;
  module.tp = tp;
  module.dp /= replica_factor;
  module.cp = module.expt_tp = 1;
  module.ep = has_experts ? tp * sharing : 1;
  return module;
}

// The time of each op of a step on each rank that is played, and of each transfer between them.
class StepTimes {
  // The collectives of a stage's optimizer. They do not depend on the sizes of microbatches.
  struct Buckets {
    struct Reduction {
      double completed;  // the share of the stage's backward after which its gradients are complete
      double seconds;
    };
    std::vector<Reduction> reductions{};  // in order
    double gathers = 0, reduced = 0;      // seconds of all gathers, of all reductions
    double last_gathered = 0;             // the last gathered bucket's share of the stage's parameters
    OpTime replica_sums{};
  };

 public:
  StepTimes(const ReducedWorld& world, const Recipe& recipe, const HardwareProfile& hardware)
      : world_(world), setup_(step_setup(recipe)), options_(schedule_options_of(world.recipe, world.topology)),
        hardware_(hardware), sends_(world.topology.world_size()), receives_(sends_.size()) {
    for (const Edge& edge : make_edges(world.topology)) {
      if (!edge.crosses_modules()) continue;
      ++sends_[edge.from_rank];
      ++receives_[edge.to_rank];
    }
  }

  const ScheduleOptions& schedule_options() const { return options_; }

  // Sets the sizes of the step that is predicted next, in the small world. They must outlive its prediction.
  void begin(const StepSizes& sizes) {
    sizes_ = &sizes;
    by_microbatch_.clear();
    by_size_.clear();
  }

  // The time of an op that occupies the rank, rather than running beside its ops.
  OpTime of_op(int rank, const Op& op) {
    const int m = op.stage.module;
    OpTime time;
    switch (op.kind) {
      case Op::Load:
        return groups_of(m, world_.full_rank(m, rank)).seconds(step_of(m, rank).load(op.stage, op.microbatch));
      case Op::Forward: return stage_times(op.stage, rank, op.microbatch).forward;
      case Op::Backward: return stage_times(op.stage, rank, op.microbatch).backward;
      case Op::EndReduce: return buckets_of(op.stage).replica_sums;
      case Op::Update:
        for (int own = 0; own < std::ssize(world_.modules); ++own)
          if (world_.topology.module(own).dense.contains(rank)) time.add(of_update(own, rank));
        return time;
      default: return {};
    }
  }

  // --- gathers, reductions and updates

  // Backward completes the buckets of one group in sequence, and those of different groups concurrently.
  const Buckets& buckets_of(const Stage& stage) {
    const auto [found, is_new] = buckets_.try_emplace({stage.module, stage.index});
    Buckets& times = found->second;
    if (!is_new) return times;
    const int rank = world_.full_rank(stage.module, ranks_of(world_.topology, stage).first);
    const RankOptimizers optimizers(setup_, world_.modules, rank);
    GroupTimes& groups = groups_of(stage.module, rank);
    const Collectives reductions = optimizers.reductions(stage);
    std::map<std::string, double> bytes, completed;
    for (const Collective& bucket : reductions) bytes[bucket.group] += static_cast<double>(bucket.bytes);
    for (const Collective& bucket : reductions) {
      completed[bucket.group] += static_cast<double>(bucket.bytes);
      times.reductions.push_back({completed[bucket.group] / bytes[bucket.group], groups.seconds(bucket)});
    }
    std::ranges::stable_sort(times.reductions, {}, &Buckets::Reduction::completed);
    for (const auto& reduction : times.reductions) times.reduced += reduction.seconds;
    for (const Collective& bucket : optimizers.gathers(stage)) times.gathers += groups.seconds(bucket);
    if (!times.reductions.empty()) times.last_gathered = times.reductions.front().completed;
    times.replica_sums = groups.seconds(optimizers.replica_sums(stage));
    return times;
  }

  // The time of a gather or reduction from its start until the op that ends it can finish. If it overlaps bucket by
  // bucket with a forward or backward, their waiting for each other is included.
  double of_collective(int rank, const Op& op) {
    const Buckets& times = buckets_of(op.stage);
    if (op.kind == Op::StartGather) {
      const double forward = stage_times(op.stage, rank, 0).forward.seconds();
      return times.gathers + (options_.overlap_gather ? times.last_gathered * forward : 0);
    }
    const double backward =
        options_.overlap_reduce ? stage_times(op.stage, rank, options_.microbatches - 1).backward.seconds() : 0;
    double end = 0;
    for (const auto& [completed, seconds] : times.reductions) end = std::max(end, completed * backward) + seconds;
    return end;
  }

  // The same without the waiting for layers.
  double messages_of_collective(const Op& op) {
    const Buckets& times = buckets_of(op.stage);
    return op.kind == Op::StartGather ? times.gathers : times.reduced;
  }

  // Without communication.
  double seconds_of_update(int m, int rank) {
    const auto [found, is_new] = updates_.try_emplace({m, world_.topology.module(m).dense.coord(rank, "pp")}, 0);
    if (!is_new) return found->second;
    const std::vector<Module> alone = {world_.modules[m]};
    const OptimizerElements elements = RankOptimizers(setup_, alone, world_.full_rank(m, rank)).elements();
    const auto* hybrid = std::get_if<HybridLmConfig>(&setup_.model.language);
    const bool is_in_fp8 = !alone[0].is_encoder && hybrid && hybrid->fp8 == Fp8Mode::Rowwise;
    const auto updated = static_cast<double>(elements.updated), fp8 = static_cast<double>(elements.fp8);
    return found->second = seconds_of(update_work(updated, is_in_fp8 ? fp8 : 0, setup_.layers), hardware_);
  }

  // The update of one of the rank's modules. The collective of all ranks is attributed to the first module.
  OpTime of_update(int m, int rank) {
    const RankStep step = step_of(m, rank);
    OpTime time = {.compute = seconds_of_update(m, rank)};
    time.add(groups_of(m, world_.full_rank(m, rank)).seconds(step.update(m, *sizes_)));
    if (m == stages_of(world_.topology, rank).front().module)
      time[CommKind::Other] += seconds_of("all_reduce", static_cast<double>(step.agreed_bytes()),
                                          place_world(world_.full_size(), hardware_.ranks_per_node), hardware_);
    return time;
  }

  // --- microbatches

  // All transfers between modules that a rank sends share its link, and so do all that it receives.
  double of_transfer(const Edge& edge, int microbatch) const {
    if (world_.topology.colocated() && edge.from_rank == edge.to_rank) return 0;
    const Edge large = {edge.from, world_.full_rank(edge.from.module, edge.from_rank), edge.to,
                        world_.full_rank(edge.to.module, edge.to_rank)};
    const auto bytes = static_cast<double>(step_of(edge.from.module, edge.from_rank).transfer_bytes(large, microbatch));
    const int together = edge.crosses_modules() ? std::max(sends_[edge.from_rank], receives_[edge.to_rank]) : 1;
    return together * seconds_of("exchange", bytes,
                                 place_pair(large.from_rank, large.to_rank, hardware_.ranks_per_node), hardware_);
  }

  const ForwardBackward& stage_times(const Stage& stage, int rank, int microbatch) {
    const int replica = world_.topology.modules()[stage.module].dense.coord(rank, "dp");
    const ForwardBackward*& known = by_microbatch_[{stage.module, stage.index, replica, microbatch}];
    if (known) return *known;
    const RankStep step = step_of(stage.module, rank);
    std::vector<std::int64_t> sizes = step.input_sizes(stage, microbatch);
    sizes.insert(sizes.end(), {stage.module, stage.index, microbatch == 0 ? 1 : 0});
    const auto [found, is_new] = by_size_.try_emplace(std::move(sizes));
    if (is_new) found->second = compute_stage_times(step, stage, world_.full_rank(stage.module, rank), microbatch);
    known = &found->second;
    return *known;
  }

  ForwardBackward compute_stage_times(const RankStep& step, const Stage& stage, int full_rank, int microbatch) {
    GroupTimes& groups = groups_of(stage.module, full_rank);
    const StageOnPaper paper = step.walk(stage, microbatch);
    ForwardBackward times;
    std::vector<std::pair<const PaperLayer*, ForwardBackward>> distinct;  // equal layers take the same time
    for (const PaperLayer& layer : paper.layers) {
      auto same = std::ranges::find_if(distinct, [&](const auto& known) { return *known.first == layer; });
      if (same == distinct.end())
        same = distinct.insert(same, {&layer, layer_times(layer, setup_.layers, microbatch == 0, groups, hardware_)});
      times.forward.add(same->second.forward);
      times.backward.add(same->second.backward);
    }
    times.forward.add(groups.seconds(step.shared_embeddings(stage, microbatch, true)));
    times.backward.add(groups.seconds(step.shared_embeddings(stage, microbatch, false)));
    return times;
  }

  // Uses the placement of the replica whose group is on the most nodes, so that times are equal in all replicas.
  GroupTimes& groups_of(int m, int full_rank) {
    const Module& module = world_.modules[m];
    const int replica = module.dense.size_of("tp") * module.dense.size_of("cp");
    const int in_first_replica = full_rank - module.dense.coord(full_rank, "dp") * replica;
    return groups_.try_emplace({m, in_first_replica}, module, in_first_replica, hardware_).first->second;
  }

  RankStep step_of(int module, int rank) const {
    return RankStep(setup_, world_.modules, options_, *sizes_, world_.full_rank(module, rank));
  }

 private:
  const ReducedWorld& world_;
  const StepSetup setup_;
  const ScheduleOptions options_;
  const HardwareProfile& hardware_;
  const StepSizes* sizes_ = nullptr;
  std::vector<int> sends_, receives_;                                   // by rank: edges between modules
  std::map<std::pair<int, int>, GroupTimes> groups_;                    // by module and the rank's place in its replica
  std::map<std::pair<int, int>, Buckets> buckets_;                      // by module and stage
  std::map<std::pair<int, int>, double> updates_;                       // by module and pipeline rank
  std::map<std::vector<std::int64_t>, ForwardBackward> by_size_;        // by stage and the sizes of its input
  std::map<std::array<int, 4>, const ForwardBackward*> by_microbatch_;  // by stage, replica and microbatch
};

class Simulator {
 public:
  Simulator(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& options)
      : recipe_(recipe),
        options_(options), step_{reduce_world(recipe, !options.draw || options.equal_replicas), {}, {}},
        ranks_(step_.world.full_size()), hardware_(on_one_host(hardware, ranks_)),
        times_(step_.world, recipe, hardware_) {
    check_links(hardware_, ranks_);
    if (options.reading) reading_.emplace(*options.reading, step_.world.recipe, topology());
    step_.schedule = make_schedule(topology(), times_.schedule_options());
    result_.modules = no_times();
  }

  SimulationAndStep run() {
    for (int step = 0; step < options_.steps; ++step) play_step(step);
    find_bound();
    if (reading_) wait_for_readers();
    summarise();
    return {std::move(result_), std::move(step_)};
  }

 private:
  // How the time of a played step divides into computation, communication and waiting.
  struct Account {
    std::vector<ModuleTimes> modules;
    double busy = 0;     // core seconds that all ranks of the large world need
    double waiting = 0;  // seconds, of all ranks
  };

  const Topology& topology() const { return step_.world.topology; }

  std::vector<ModuleTimes> no_times() const {
    return vector_of<ModuleTimes>(step_.world.modules, [](auto& m) { return ModuleTimes{{}, m.name, m.dense.size()}; });
  }

  void play_step(int n) {
    const Recipe& recipe = step_.world.recipe;
    const StepSizes sizes = for_large_world(
        options_.draw ? options_.draw(recipe, topology(), n) : full_step(recipe, topology()), step_.world.modules);
    times_.begin(sizes);
    const auto duration = [&](int rank, const Op& op) {
      return op.starts_collective() ? times_.of_collective(rank, op) : times_.of_op(rank, op).seconds();
    };
    const auto transfer = [&](const Edge& edge, int microbatch) { return times_.of_transfer(edge, microbatch); };
    step_.play = play(step_.schedule, topology(), {.duration = duration, .transfer = transfer});
    BRAID_CHECK(step_.play.stuck.empty(), "{}", joined(step_.play.stuck, "; "));
    account_ = {no_times()};
    for (int rank = 0; rank < topology().world_size(); ++rank) count(rank);
    add_step();
    if (reading_) reading_->add(sizes);
    for (const auto& replicas : sizes.text)
      for (const StepSizes::Text& text : replicas)
        tokens_ += static_cast<double>(text.tokens) * step_.world.replicas_of_each;
  }

  // --- the account of a step

  double played(int m) const { return topology().module(m).dense.size(); }
  double share(int m) const { return 1 / played(m); }  // weight of a rank in its module's average
  double stands_for(int m) const { return step_.world.modules[m].dense.size() / played(m); }
  void needs_core(int m, double seconds) { account_.busy += seconds * stands_for(m); }

  // Waiting counts as communication while a gather or reduction that the op needs is running.
  void count(int rank) {
    const std::vector<Op>& ops = step_.schedule.ranks[rank];
    const std::vector<OpSpan>& spans = step_.play.ranks[rank];
    const std::vector<Stage> stages = stages_of(topology(), rank);
    const int first = stages.front().module;
    double clock = 0, waited = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Op& op = ops[i];
      const int module = op.has_stage() ? op.stage.module : first;
      if (op.starts_collective()) needs_core(module, times_.messages_of_collective(op) * hardware_.collective_cpu);
      if (op.kind == Op::Exchange || op.starts_collective()) continue;
      OpTime time = times_.of_op(rank, op);
      needs_core(module, time.compute + time.communication() * hardware_.collective_cpu);
      waited += spans[i].begin - clock - await_collective(op, clock, spans[i], ops, spans, time);
      if (op.kind != Op::Update) account_.modules[module].add(time, share(module));
      // Each of the modules that share a rank accounts for its part of the update.
      for (int m = 0; op.kind == Op::Update && m < std::ssize(account_.modules); ++m)
        if (topology().module(m).dense.contains(rank)) account_.modules[m].add(times_.of_update(m, rank), share(m));
      clock = spans[i].end;
    }
    waited += step_.play.end - clock;
    for (const Stage& stage : stages)
      if (stage.index < step_.world.modules[stage.module].dense.size_of("pp"))
        account_.modules[stage.module].waiting += waited * share(stage.module);
    account_.waiting += waited * stands_for(first);
  }

  // The time between `clock` and an op during which the gather or reduction that it ends is running.
  static double await_collective(const Op& op, double clock, const OpSpan& own, const std::vector<Op>& ops,
                                 const std::vector<OpSpan>& spans, OpTime& time) {
    if (!op.ends_collective()) return 0;
    const auto start = std::ranges::find_if(ops, [&](const Op& other) { return op.ends(other); });
    const OpSpan span = spans[start - ops.begin()];
    const double awaited = std::max(0.0, std::min(span.end, own.begin) - std::max(span.begin, clock));
    time[op.kind == Op::EndGather ? CommKind::Parameters : CommKind::Gradients] += awaited;
    return awaited;
  }

  // Ranks that share cores need at least the time that the cores take for the work of all ranks.
  double seconds_of_step() const {
    if (!is_host(hardware_)) return step_.play.end;
    const double crowding = ranks_ > hardware_.cores ? hardware_.crowding : 1;
    return std::max(step_.play.end, account_.busy * crowding / hardware_.cores);
  }

  void add_step() {
    const double seconds = seconds_of_step(), for_cores = seconds - step_.play.end;
    seconds_.push_back(seconds);
    result_.bubble += (account_.waiting / ranks_ + for_cores) / seconds / options_.steps;
    waiting_for_cores_ += for_cores / options_.steps;
    for (std::size_t m = 0; m < result_.modules.size(); ++m) {
      ModuleTimes& mean = result_.modules[m];
      const ModuleTimes& added = account_.modules[m];
      mean.compute += added.compute / options_.steps;
      mean.waiting += (added.waiting + for_cores) / options_.steps;
      for (std::size_t kind = 0; kind < kCommKinds; ++kind) mean.exposed[kind] += added.exposed[kind] / options_.steps;
    }
  }

  // --- the result

  double mean_seconds() const {
    return std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / static_cast<double>(options_.steps);
  }

  void summarise() {
    const double steps = options_.steps;
    double squares = 0;
    result_.iteration_s = mean_seconds();
    for (const double seconds : seconds_) squares += std::pow(seconds - result_.iteration_s, 2);
    result_.spread_s = std::sqrt(squares / steps);
    result_.fastest_s = std::ranges::min(seconds_);
    result_.slowest_s = std::ranges::max(seconds_);
    result_.ranks = ranks_;
    result_.nodes = (ranks_ + hardware_.ranks_per_node - 1) / hardware_.ranks_per_node;
    result_.played_ranks = topology().world_size();
    result_.tokens_per_s_per_gpu = tokens_ / steps / result_.iteration_s / ranks_;
    // FLOPs are counted for full sequences, as in the log.
    const double piece = piece_length(recipe_.data, recipe_.model.model);
    const double all = recipe_.train.global_batch * piece * recipe_.data.packed;
    const double flops = count_flops(recipe_.model.model.language, all, piece).total();
    result_.tflops_per_gpu = 1e-12 * flops / result_.iteration_s / ranks_;
  }

  // Readers that are slower than the steps delay all of them.
  void wait_for_readers() {
    const ReadingTime::Slowest reader = reading_->slowest();
    const double computing_s = mean_seconds(), late = reader.seconds - computing_s;
    result_.reading_s = reader.seconds;
    if (late <= 0) return;
    for (double& seconds : seconds_) seconds += late;
    for (ModuleTimes& module : result_.modules) module.waiting += late;
    result_.bubble = (result_.bubble * computing_s + late) / reader.seconds;
    result_.bound_by = reader.module + ": reading";
  }

  // The module that waits least limits the step; `bound_by` names what it spends most time on.
  void find_bound() {
    const ModuleTimes& module = *std::ranges::max_element(result_.modules, {}, &OpTime::seconds);
    const auto longest = std::ranges::max_element(module.exposed);
    result_.limiting_module = module.name;
    result_.exposed_communication_s = module.communication();
    if (waiting_for_cores_ > 0)
      result_.bound_by = "host: cores";
    else if (module.waiting > std::max(module.compute, *longest))
      result_.bound_by = module.name + ": waiting";
    else if (module.compute >= *longest)
      result_.bound_by = module.name + ": compute";
    else
      result_.bound_by = fmt::format("{}: {} communication", module.name,
                                     name_of(static_cast<CommKind>(longest - module.exposed.begin())));
  }

  const Recipe& recipe_;
  const SimulateOptions& options_;
  PlayedStep step_;
  const int ranks_;  // of the large world
  const HardwareProfile hardware_;
  StepTimes times_;
  Account account_;
  std::optional<ReadingTime> reading_;
  std::vector<double> seconds_;
  double tokens_ = 0, waiting_for_cores_ = 0;
  Simulation result_;
};

}  // namespace

// Colocated modules must keep equal numbers of ranks.
ReducedWorld reduce_world(const Recipe& recipe, bool equal_replicas) {
  std::vector<Module> modules = make_modules(recipe.topology, workload_of(recipe));
  const int replicas = equal_replicas ? replica_factor(recipe.topology) : 1;
  const int shared = shared_factor(recipe.topology, ranks_of_replica);
  Recipe small = recipe;
  small.topology.world_size = std::nullopt;
  small.train.global_batch /= replicas;
  Workload workload = workload_of(small);
  workload.num_experts = 1;  // any number that the ranks can share
  for (ModuleConfig& module : small.topology.modules) {
    module = reduced(module, small.topology.colocated ? shared : ranks_of_replica(module), replicas);
    workload.num_experts = std::lcm(workload.num_experts, module.ep);
  }
  Topology topology(small.topology, workload);
  return {std::move(modules), std::move(small), std::move(topology), replicas};
}

int ReducedWorld::full_rank(int module, int rank) const {
  const Grid& large = modules[module].dense;
  const Grid& small = topology.module(module).dense;
  const int tp = large.size_of("tp"), of_each = tp * large.size_of("cp") / small.size_of("tp");
  const int within = small.coord(rank, "tp") * of_each;
  return large.rank_at({within % tp, within / tp, small.coord(rank, "dp"), small.coord(rank, "pp")});
}

int ReducedWorld::full_size() const {
  int end = 0;
  for (const Module& module : modules) end = std::max(end, module.dense.end());
  return end;
}

HardwareProfile slower(HardwareProfile hardware, const Efficiency& efficiency) {
  hardware.host_us /= efficiency.compute;
  hardware.collective_us /= efficiency.links;
  const auto slow_down = [](Speed& speed, double factor) {
    speed.latency_us /= factor;
    for (Rate& rate : speed.rates) rate.giga_per_s *= factor;
  };
  for (Speed& speed : hardware.operators) slow_down(speed, efficiency.compute);
  for (Speed* link : {&hardware.inside_node, &hardware.between_nodes}) slow_down(*link, efficiency.links);
  return hardware;
}

Simulation simulate(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& options) {
  return Simulator(recipe, hardware, options).run().simulation;
}

SimulationAndStep simulate_and_keep(const Recipe& recipe, const HardwareProfile& hardware,
                                    const SimulateOptions& options) {
  return Simulator(recipe, hardware, options).run();
}

ReadingTime::ReadingTime(const ReadingTimes& times, const Recipe& recipe, const Topology& topology)
    : times_(times), threads_(recipe.loader.threads), micro_batch_(recipe.train.micro_batch),
      together_(balanced_replicas(recipe, topology)), topology_(topology) {
  for (const Module& module : topology.modules()) seconds_.emplace_back(module.dense.size_of("dp"));
}

void ReadingTime::add(const StepSizes& step) {
  const std::int64_t replicas = topology_.language().dense.size_of("dp");
  const double sequences = static_cast<double>(std::ssize(step.text)) * micro_batch_;  // of a language replica
  for (std::size_t m = 0; m < seconds_.size(); ++m) {
    const std::int64_t own = std::ssize(seconds_[m]), served = std::max(together_, (replicas + own - 1) / own);
    for (std::int64_t replica = 0; replica < own; ++replica) {
      double patches = 0;
      for (const auto& samples : step.media[m]) {
        const std::int64_t all = std::ssize(samples);
        for (std::int64_t s = all * replica / own; s < all * (replica + 1) / own; ++s)
          for (const auto& extent : samples[s]) patches += static_cast<double>(num_elements(extent));
      }
      seconds_[m][replica] +=
          (sequences * static_cast<double>(served) * times_.sequence_s + patches * times_.patch_s) / threads_;
    }
  }
  ++steps_;
}

ReadingTime::Slowest ReadingTime::slowest() const {
  Slowest slowest;
  for (std::size_t m = 0; m < seconds_.size(); ++m)
    if (const double seconds = std::ranges::max(seconds_[m]) / steps_; seconds > slowest.seconds)
      slowest = {topology_.modules()[m].name, seconds};
  return slowest;
}

std::optional<BalanceGain> balance_gain(const Recipe& recipe, const HardwareProfile& hardware,
                                        const SimulateOptions& options, const Simulation& own) {
  constexpr int kMaxReplicas = 1024;  // with more of them, a second simulation of unequal replicas takes minutes
  if (!options.draw || options.equal_replicas || recipe.train.correct_partial_participation) return std::nullopt;
  const Topology topology = reduce_world(recipe, /*equal_replicas=*/false).topology;
  const int replicas = topology.language().dense.size_of("dp");
  if (replicas > kMaxReplicas || replicas % recipe.loader.balance_replicas.value_or(1) != 0) return std::nullopt;
  Recipe other = recipe;
  const bool balances = recipe.loader.balance == Balance::Cost;
  other.loader.balance = balances ? Balance::None : Balance::Cost;
  const double other_s = simulate(other, hardware, options).iteration_s;
  return BalanceGain{.without_s = balances ? other_s : own.iteration_s,
                     .with_s = balances ? own.iteration_s : other_s,
                     .replicas = sample_balance(balances ? recipe : other, topology)->replicas()};
}

}  // namespace braid
