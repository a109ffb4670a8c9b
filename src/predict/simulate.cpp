#include "predict/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "data/batches/sample_sizes.h"
#include "paper/flops.h"
#include "predict/reading_time.h"
#include "predict/step_times.h"
#include "run/data_source.h"

namespace braid {
namespace {

// Gives each cp rank of the large world an equal share of a replica's labels.
StepSizes for_large_world(StepSizes sizes, const std::vector<Module>& modules) {
  const auto language = std::ranges::find_if(modules, [](const Module& m) { return !m.is_encoder; });
  const int cp = language->dense.size_of("cp");
  for (auto& of_replicas : sizes.text)
    for (StepSizes::Text& text : of_replicas)
      text.labels.assign(cp, std::accumulate(text.labels.begin(), text.labels.end(), std::int64_t{0}) / cp);
  return sizes;
}

// Divides the time of a played step into computation, communication and waiting.
struct Account {
  std::vector<ModuleTimes> modules{};
  double busy = 0;     // core seconds that all ranks of the large world need
  double waiting = 0;  // seconds, of all ranks

  Account(const PlayedStep& step, StepTimes& times, double collective_cpu)
      : step_(step), times_(times), collective_cpu_(collective_cpu) {
    for (const Module& module : step.world.modules) modules.push_back({module.name, module.dense.size()});
    for (int rank = 0; rank < step.world.topology.world_size(); ++rank) add(rank);
  }

 private:
  // Waiting counts as communication while a gather or reduction that the op needs is running.
  void add(int rank) {
    const std::vector<Op>& ops = step_.schedule.ranks[rank];
    const std::vector<OpSpan>& spans = step_.play.ranks[rank];
    const int first = stages_of(step_.world.topology, rank).front().module;
    double clock = 0, waited = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Op& op = ops[i];
      const int module = op.has_stage() ? op.stage.module : first;
      if (op.starts_collective()) needs_core(module, times_.messages_of_collective(op) * collective_cpu_);
      if (op.kind == Op::Exchange || op.starts_collective()) continue;
      OpTime time = times_.of_op(rank, op);
      needs_core(module, time.compute + time.communication() * collective_cpu_);
      double gap = spans[i].begin - clock;
      if (op.ends_collective()) {
        const auto start = std::ranges::find_if(ops, [&](const Op& other) { return op.ends(other); });
        const OpSpan span = spans[start - ops.begin()];
        const double awaited = std::max(0.0, std::min(span.end, spans[i].begin) - std::max(span.begin, clock));
        time[op.kind == Op::EndGather ? CommKind::Parameters : CommKind::Gradients] += awaited;
        gap -= awaited;
      }
      waited += gap;
      if (op.kind == Op::Update)
        add_update(rank);
      else
        add(module, time);
      clock = spans[i].end;
    }
    waited += step_.play.end - clock;
    for (const Stage& stage : stages_of(step_.world.topology, rank))
      if (stage.index < stage_ranks(stage.module)) modules[stage.module].waiting += waited * share(stage.module);
    waiting += waited * stands_for(first);
  }

  void add(int m, const OpTime& time) {
    ModuleTimes& module = modules[m];
    module.compute += time.compute * share(m);
    for (std::size_t kind = 0; kind < kCommKinds; ++kind) module.exposed[kind] += time.exposed[kind] * share(m);
  }

  // Each of the modules that share a rank accounts for its part of the update.
  void add_update(int rank) {
    for (int m = 0; m < std::ssize(modules); ++m)
      if (step_.world.topology.modules()[m].dense.contains(rank)) add(m, times_.of_update(m, rank));
  }

  void needs_core(int m, double seconds) { busy += seconds * stands_for(m); }

  int stage_ranks(int m) const { return step_.world.modules[m].dense.size_of("pp"); }
  double played(int m) const { return step_.world.topology.modules()[m].dense.size(); }
  double share(int m) const { return 1 / played(m); }  // weight of a rank in its module's average
  double stands_for(int m) const { return step_.world.modules[m].dense.size() / played(m); }

  const PlayedStep& step_;
  StepTimes& times_;
  const double collective_cpu_;
};

class Simulator {
 public:
  Simulator(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& options)
      : recipe_(recipe),
        options_(options),
        step_{reduce_world(recipe, !options.draw || options.equal_replicas), {}, {}},
        hardware_(on_one_host(hardware, step_.world.full_size())),
        setup_(step_setup(recipe)),
        schedule_options_(schedule_options_of(step_.world.recipe, step_.world.topology)),
        optimizers_(step_.world, setup_, hardware_) {
    check_links(hardware_, step_.world.full_size());
    if (options.reading) reading_.emplace(*options.reading, step_.world.recipe, step_.world.topology);
    step_.schedule = make_schedule(step_.world.topology, schedule_options_);
    for (const Module& module : step_.world.modules) result_.modules.push_back({module.name, module.dense.size()});
  }

  SimulationAndStep run() {
    for (int step = 0; step < options_.steps; ++step) play_step(step);
    find_bound();
    if (reading_) wait_for_readers();
    summarise();
    return {std::move(result_), std::move(step_)};
  }

 private:
  void play_step(int n) {
    const Recipe& recipe = step_.world.recipe;
    const Topology& topology = step_.world.topology;
    const StepSizes sizes = for_large_world(
        options_.draw ? options_.draw(recipe, topology, n) : full_step(recipe, topology), step_.world.modules);
    StepTimes times(step_.world, setup_, schedule_options_, sizes, hardware_, optimizers_);
    step_.play =
        play(step_.schedule, topology,
             {.duration =
                  [&](int rank, const Op& op) {
                    return op.starts_collective() ? times.of_collective(rank, op) : times.of_op(rank, op).seconds();
                  },
              .transfer = [&](const Edge& edge, int microbatch) { return times.of_transfer(edge, microbatch); }});
    BRAID_CHECK(step_.play.stuck.empty(), "{}", fmt::join(step_.play.stuck, "; "));
    add(Account(step_, times, hardware_.collective_cpu));
    if (reading_) reading_->add(sizes);
    for (const auto& replicas : sizes.text)
      for (const StepSizes::Text& text : replicas)
        tokens_ += static_cast<double>(text.tokens) * step_.world.replicas_of_each;
  }

  // Ranks that share cores need at least the time that the cores take for the work of all ranks.
  double seconds_of_step(const Account& account) const {
    if (!is_host(hardware_)) return step_.play.end;
    const double crowding = step_.world.full_size() > hardware_.cores ? hardware_.crowding : 1;
    return std::max(step_.play.end, account.busy * crowding / hardware_.cores);
  }

  void add(const Account& account) {
    const double seconds = seconds_of_step(account), for_cores = seconds - step_.play.end;
    const double waiting = account.waiting / step_.world.full_size() + for_cores;
    seconds_.push_back(seconds);
    result_.bubble += waiting / seconds / options_.steps;
    waiting_for_cores_ += for_cores / options_.steps;
    for (std::size_t m = 0; m < result_.modules.size(); ++m) {
      ModuleTimes& mean = result_.modules[m];
      const ModuleTimes& added = account.modules[m];
      mean.compute += added.compute / options_.steps;
      mean.waiting += (added.waiting + for_cores) / options_.steps;
      for (std::size_t kind = 0; kind < kCommKinds; ++kind) mean.exposed[kind] += added.exposed[kind] / options_.steps;
    }
  }

  void summarise() {
    const double steps = options_.steps;
    double squares = 0;
    result_.iteration_s = std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / steps;
    for (const double seconds : seconds_) squares += std::pow(seconds - result_.iteration_s, 2);
    result_.spread_s = std::sqrt(squares / steps);
    result_.fastest_s = *std::ranges::min_element(seconds_);
    result_.slowest_s = *std::ranges::max_element(seconds_);
    result_.ranks = step_.world.full_size();
    result_.nodes = (result_.ranks + hardware_.ranks_per_node - 1) / hardware_.ranks_per_node;
    result_.played_ranks = step_.world.topology.world_size();
    const double tokens = tokens_ / steps, ranks = result_.ranks;
    result_.tokens_per_s_per_gpu = tokens / result_.iteration_s / ranks;
    // FLOPs are counted for full sequences, as in the log.
    const double piece = piece_length(recipe_.data, recipe_.model.model);
    const double all = recipe_.train.global_batch * piece * recipe_.data.packed;
    const double flops = count_flops(recipe_.model.model.language, all, piece).total();
    result_.tflops_per_gpu = 1e-12 * flops / result_.iteration_s / ranks;
  }

  // Readers that are slower than the steps delay all of them.
  void wait_for_readers() {
    const ReadingTime::Slowest reader = reading_->slowest();
    const double computing_s = std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / options_.steps;
    const double late = reader.seconds - computing_s;
    result_.reading_s = reader.seconds;
    if (late <= 0) return;
    for (double& seconds : seconds_) seconds += late;
    for (ModuleTimes& module : result_.modules) module.waiting += late;
    result_.bubble = (result_.bubble * computing_s + late) / reader.seconds;
    result_.bound_by = reader.module + ": reading";
  }

  // The module that waits least limits the step; `bound_by` names what it spends most time on.
  void find_bound() {
    const auto busy = [](const ModuleTimes& module) { return module.compute + module.communication(); };
    const ModuleTimes& module = *std::ranges::max_element(result_.modules, {}, busy);
    result_.limiting_module = module.name;
    result_.exposed_communication_s = module.communication();
    const auto longest = std::ranges::max_element(module.exposed);
    const auto kind = static_cast<CommKind>(longest - module.exposed.begin());
    if (waiting_for_cores_ > 0)
      result_.bound_by = "host: cores";
    else if (module.waiting > std::max(module.compute, *longest))
      result_.bound_by = fmt::format("{}: waiting", module.name);
    else if (module.compute >= *longest)
      result_.bound_by = fmt::format("{}: compute", module.name);
    else
      result_.bound_by = fmt::format("{}: {} communication", module.name, name_of(kind));
  }

  const Recipe& recipe_;
  const SimulateOptions& options_;
  PlayedStep step_;
  const HardwareProfile hardware_;
  const StepSetup setup_;
  const ScheduleOptions schedule_options_;
  OptimizerTimes optimizers_;
  std::optional<ReadingTime> reading_;
  std::vector<double> seconds_;
  double tokens_ = 0, waiting_for_cores_ = 0;
  Simulation result_;
};

}  // namespace

HardwareProfile slower(HardwareProfile hardware, const Efficiency& efficiency) {
  hardware.host_us /= efficiency.compute;
  for (OperatorSpeed& speed : hardware.operators) {
    speed.latency_us /= efficiency.compute;
    for (OperatorRate& rate : speed.rates) rate.giga_per_s *= efficiency.compute;
  }
  hardware.collective_us /= efficiency.links;
  for (Link* link : {&hardware.inside_node, &hardware.between_nodes}) {
    link->latency_us /= efficiency.links;
    for (RatePoint& point : link->rates) point.gb_per_s *= efficiency.links;
  }
  return hardware;
}

double ModuleTimes::communication() const { return std::accumulate(exposed.begin(), exposed.end(), 0.0); }

Simulation simulate(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& options) {
  return Simulator(recipe, hardware, options).run().simulation;
}

SimulationAndStep simulate_and_keep(const Recipe& recipe, const HardwareProfile& hardware,
                                    const SimulateOptions& options) {
  return Simulator(recipe, hardware, options).run();
}

std::optional<BalanceGain> balance_gain(const Recipe& recipe, const HardwareProfile& hardware,
                                        const SimulateOptions& options, const Simulation& own) {
  constexpr int kMaxReplicas = 1024;  // with more of them, a second simulation of unequal replicas takes minutes
  if (!options.draw || options.equal_replicas || recipe.train.correct_partial_participation) return std::nullopt;
  const Topology topology = reduce_world(recipe, /*equal_replicas=*/false).topology;
  const int replicas = topology.language().dense.size_of("dp");
  if (replicas > kMaxReplicas || replicas % recipe.loader.balance_replicas.value_or(1) != 0) return std::nullopt;
  Recipe other = recipe;
  const bool balances = recipe.loader.balance == "cost";
  other.loader.balance = balances ? "none" : "cost";
  const double other_s = simulate(other, hardware, options).iteration_s;
  return BalanceGain{.without_s = balances ? other_s : own.iteration_s,
                     .with_s = balances ? own.iteration_s : other_s,
                     .replicas = sample_balance(balances ? recipe : other, topology)->replicas()};
}

}  // namespace braid
