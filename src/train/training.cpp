#include "train/training.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include "base/strings.h"
#include "comm/comm_meter.h"
#include "comm/world.h"
#include "ops/attention.h"
#include "train/all_ranks.h"

namespace braid {
namespace {

int microbatches(const TrainingConfig& config, const Topology& topology) {
  return microbatches_of({.micro_batch = config.micro_batch, .global_batch = config.global_batch}, topology);
}

ScheduleOptions schedule_options(const TrainingConfig& config, const Topology& topology) {
  ScheduleOptions options =
      schedule_options(topology, config.model.frozen, microbatches(config, topology), config.prefetch);
  options.overlap_reduce = config.optimizer.overlap_grad_reduce;
  options.overlap_gather = config.optimizer.overlap_param_gather;
  return options;
}

// Collective: combines every rank's rows of a step's choices.
std::vector<std::vector<int>> all_choices(const at::Tensor& own, std::int64_t samples, World& world) {
  const double own_length = own.defined() ? static_cast<double>(own.size(1)) : 0;
  const auto length = static_cast<std::int64_t>(reduced({own_length}, Reduce::Max, world)[0]);
  at::Tensor all =
      own.defined() ? own : at::full({samples, length}, -1, at::TensorOptions(at::kLong).device(world.device()));
  world.everyone().all_reduce(all, Reduce::Max);
  all = to_host(all);
  const auto* id = all.const_data_ptr<std::int64_t>();
  std::vector<std::vector<int>> choices;
  for (std::int64_t i = 0; i < samples; ++i, id += length) choices.emplace_back(id, id + length);
  return choices;
}

// How the time of an op is reported.
struct Measured {
  Op::Kind kind;
  Phase phase;
  const char* name;
  bool of_stage = false;
};
constexpr Measured kMeasured[] = {{Op::Begin, Phase::Other, "batches"},
                                  {Op::Load, Phase::Forward, "load", true},
                                  {Op::StartGather, Phase::Optimizer, "gather parameters"},
                                  {Op::EndGather, Phase::Optimizer, "parameters arrive"},
                                  {Op::Forward, Phase::Forward, "forward", true},
                                  {Op::Backward, Phase::Backward, "backward", true},
                                  {Op::StartReduce, Phase::Reduce, "reduce gradients"},
                                  {Op::EndReduce, Phase::Reduce, "gradients arrive"}};

// One rank's terms of a sum over all ranks, from which largest_stop() takes the maximum.
at::Tensor stop_terms(StopReason own) {
  at::Tensor terms = at::zeros({static_cast<int>(StopReason::SigInt) + 1}, at::kDouble);
  terms[static_cast<int>(own)] = 1;
  return terms;
}

StopReason largest_stop(const std::vector<double>& sums) {
  std::size_t stop = sums.size() - 1;
  while (stop > 0 && sums[stop] == 0) --stop;
  return static_cast<StopReason>(stop);
}

// NCCL connects two ranks in their first transfer, and waits until their GPUs are idle to allocate memory for it. In a
// step a GPU may be in an operation that ends only after this transfer, so all pairs of the schedule are connected
// before the first step, each over its channel and all in one order.
void connect_pairs(const Topology& topology, const std::vector<Edge>& edges, const Groups& groups) {
  if (!groups.world().device().is_cuda()) return;
  const int rank = groups.world().rank();
  std::set<std::tuple<Channel, int, int>> connected;
  for (const Edge& edge : edges)
    for (const auto kind : {Transfer::Activation, Transfer::Gradient}) {
      const Channel channel = channel_of(topology, edge, kind);
      const bool forward = kind == Transfer::Activation;
      const int from = forward ? edge.from_rank : edge.to_rank, to = forward ? edge.to_rank : edge.from_rank;
      if (from == to || (rank != from && rank != to) || !connected.insert({channel, from, to}).second) continue;
      const Group& group = groups.get(topology.module(channel.module).name, key_of(channel));
      const std::vector<int>& ranks = group.ranks();
      const auto peer = std::lower_bound(ranks.begin(), ranks.end(), rank == from ? to : from) - ranks.begin();
      at::Tensor tensor = at::zeros({1}, at::TensorOptions(group.device()));
      group.start_exchange({{tensor, static_cast<int>(peer), rank == from}}).wait();
    }
}

}  // namespace

struct Training::RunningStep {
  StepClock& clock;
  const std::function<StopReason()>& wanted;
  std::optional<ActivationDump> activations{};
  std::optional<Step> step{};
  TrainingReport report{};
};

Training::Training(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
                   const TrainingConfig& config)
    : topology_(topology), groups_(groups), config_(config), plan_(topology, schedule_options(config, topology)),
      model_(provider, topology, groups, world, config.model), schedule_(config.schedule),
      loss_scale_(config.loss_scale) {
  set_deterministic(config.deterministic);
  connect_pairs(topology, plan_.edges, groups);
  for (const auto& set : model_.parameter_sets()) {
    if (!set->parameters.trains()) continue;
    const Module& module = topology.module(set->module);
    trained_.push_back({set->module, set.get(),
                        std::make_unique<ModuleOptimizer>(set->parameters, groups, module.name, config.optimizer)});
  }
}

Training::~Training() = default;

void Training::read_from(const BatchSource& data, std::int64_t first_sample) {
  feed_.emplace(model_, plan_.options.microbatches, samples_per_microbatch(), data, config_.sample_trace_dir);
  lanes_ = data.lanes();
  next_sample_ = first_sample;
}

EvaluationReport Training::evaluate(const BatchSource& data, int iterations, std::optional<int> choices_on,
                                    const std::function<StopReason()>& wanted) {
  finish_parameters();
  const at::NoGradGuard no_grad;
  const int microbatches = plan_.options.microbatches;
  const StepPlan plan(topology_, {.microbatches = microbatches, .forward_only = true});
  BatchFeed feed(model_, microbatches, samples_per_microbatch(), data);
  std::vector<double> sums(StepTotals::kFixed + topology_.modules().size());
  EvaluationReport report;
  for (int i = 0; i < iterations && report.stop == StopReason::None; ++i) {
    Step step(model_, plan, feed.next_step(std::int64_t{i} * config_.global_batch),
              {.micro_batch = config_.micro_batch, .keep_choices = choices_on.has_value()});
    for (const Op& op : plan.schedule.ranks[static_cast<std::size_t>(model_.world().rank())])
      if (op.kind != Op::Begin) step.run(op);
    const std::vector<std::vector<double>> terms = sum_terms({step.finish(), stop_terms(wanted())}, groups_.world());
    report.stop = largest_stop(terms[1]);
    report.is_complete = i + 1 == iterations;
    std::ranges::transform(sums, terms[0], sums.begin(), std::plus());
    if (!choices_on) continue;
    auto choices = all_choices(step.choices(), config_.global_batch, model_.world());
    if (*choices_on == model_.world().rank())
      std::move(choices.begin(), choices.end(), std::back_inserter(report.choices));
  }
  model_.forget_expert_tokens();
  const StepTotals totals(sums);
  report.loss = totals.loss_sum / std::max(totals.num_tokens, 1.0);
  report.num_tokens = totals.num_tokens;
  report.answers = totals.answers;
  report.right_tokens = totals.right_tokens;
  report.right_answers = totals.right_answers;
  return report;
}

std::vector<std::string> Training::data_positions() {
  std::vector<std::pair<int, std::string>> own;
  for (const auto& [lane, text] : feed_->positions()) own.emplace_back(lane, text);
  return gathered_texts(own, lanes_, model_.world());
}

TrainingReport Training::step(StepClock& clock, const std::function<StopReason()>& wanted) {
  RunningStep running = {clock, wanted};
  for (const Op& op : plan_.schedule.ranks[static_cast<std::size_t>(model_.world().rank())]) run(op, running);
  next_sample_ += config_.global_batch;
  return running.report;
}

std::optional<std::string> Training::activation_path() {
  if (config_.activation_dir.empty() || steps_begun_++ >= config_.activation_steps) return std::nullopt;
  return fmt::format("{}/iter_{:07}.rank{:05}.safetensors", config_.activation_dir,
                     next_sample_ / config_.global_batch + 1, model_.world().rank());
}

void Training::run(const Op& op, RunningStep& running) {
  if (op.kind == Op::Update) return update(running);
  if (op.computes()) {
    const StepClock::Scope scope = measure_wait(op, running.clock);
    running.step->await(op);
  }
  if (op.kind == Op::Begin) await_readers(running.clock);
  const StepClock::Scope scope = measure(op, running.clock);
  const auto for_optimizers = [&](void (ModuleOptimizer::*call)(int)) {
    for (const Trained& trained : trained_)
      if (trained.module == op.stage.module) (trained.optimizer.get()->*call)(op.stage.index);
  };
  const bool overlaps = plan_.options.overlap_reduce;
  switch (op.kind) {
    case Op::Begin:
      for (const Trained& trained : trained_) trained.optimizer->begin_step();
      if (auto path = activation_path()) running.activations.emplace(*std::move(path));
      running.step.emplace(model_, plan_, feed_->next_step(next_sample_),
                           StepInput{.micro_batch = config_.micro_batch,
                                     .loss_scale = loss_scale_.value(),
                                     .activations = running.activations ? &*running.activations : nullptr});
      return;
    case Op::StartGather: return for_optimizers(&ModuleOptimizer::start_parameters);
    case Op::EndGather: return for_optimizers(&ModuleOptimizer::finish_parameters);
    case Op::StartReduce:
      return for_optimizers(overlaps ? &ModuleOptimizer::announce_gradients : &ModuleOptimizer::start_gradients);
    case Op::EndReduce: return for_optimizers(&ModuleOptimizer::finish_gradients);
    case Op::Backward:
      running.step->run(op);
      // All ranks start the rest at the same op, before they enter a collective of another group.
      if (overlaps && op.microbatch + 1 == plan_.options.microbatches)
        for_optimizers(&ModuleOptimizer::start_gradients);
      return;
    default: running.step->run(op);
  }
}

// The first step waits for its batches at its beginning; each step waits for the next step's batches at its end.
void Training::await_readers(StepClock& clock) {
  const StepClock::Scope scope = clock.measure(Phase::DataWait, "data wait");
  feed_->await_readers();
}

StepClock::Scope Training::measure(const Op& op, StepClock& clock) const {
  for (const auto& [kind, phase, name, of_stage] : kMeasured) {
    if (kind != op.kind) continue;
    if (!of_stage) return clock.measure(phase, name);
    return clock.measure(phase, fmt::format("{} {}", topology_.module(op.stage.module).name, name),
                         {{"microbatch", op.microbatch}, {"stage", op.stage.index}});
  }
  return clock.measure(Phase::PipelineWait, "exchange", {{"microbatch", op.transfers.front().microbatch}});
}

// A forward waits for its stage's input, a backward for the gradient of its stage's output.
StepClock::Scope Training::measure_wait(const Op& op, StepClock& clock) const {
  const bool is_encoder = topology_.module(op.stage.module).is_encoder;
  const bool bridge =
      op.kind == Op::Forward ? !is_encoder && op.stage.index == 0 : is_encoder && is_last(topology_, op.stage);
  return clock.measure(bridge ? Phase::BridgeWait : Phase::PipelineWait, bridge ? "bridge" : "pipeline",
                       {{"microbatch", op.microbatch}});
}

// Everything that ranks must agree on before the update, and the sizes of the next step. One all-reduce over the world
// provides all of it.
struct Training::Agreed {
  StepTotals totals;
  GradientTotals gradients;
  StopReason stop;
};

Training::Agreed Training::agree(RunningStep& running) {
  const at::Tensor stops = stop_terms(running.wanted());
  const int modules = static_cast<int>(topology_.modules().size());
  const at::Tensor totals = running.step->finish();
  const at::Tensor gradients = gradient_terms(updates(), modules, config_.count_zeros);
  await_readers(running.clock);  // last, so that a device computes the other terms during the wait
  const std::vector<std::vector<double>> sums = sum_terms({totals, gradients, stops, feed_->sizes()}, groups_.world());
  feed_->take_sizes(sums[3]);
  return {StepTotals(sums[0]), gradient_totals(sums[1]), largest_stop(sums[2])};
}

void Training::update(RunningStep& running) {
  StepClock& clock = running.clock;
  const Agreed agreed = [&] {
    const auto scope = clock.measure(Phase::PipelineWait, "wait for all ranks");
    return agree(running);
  }();
  // The host has just waited for the sums, which the device computes after everything else.
  clock.synchronised();
  model_.world().meter().synchronised();
  const auto scope = clock.measure(Phase::Optimizer, "optimizer");
  const StepTotals& totals = agreed.totals;
  TrainingReport& report = running.report;
  report = {.stop = agreed.stop,
            .loss = totals.loss_sum / std::max(totals.num_tokens, 1.0),
            .num_tokens = totals.num_tokens,
            .load_balancing_loss = totals.load_balancing_loss};
  if (std::isfinite(report.loss))
    report.update = step_all(updates(), agreed.gradients,
                             {.lr = schedule_.learning_rate(),
                              .weight_decay = schedule_.weight_decay(),
                              .clip_grad = config_.optimizer.clip_grad,
                              .factors = gradient_factors(totals)});
  report.update.stepped ? model_.update_expert_bias() : model_.forget_expert_tokens();
  loss_scale_.update(report.update.stepped);
  if (report.update.stepped) schedule_.step(config_.global_batch);
  report.lr = schedule_.learning_rate();
  report.loss_scale = loss_scale_.value();
}

// Every module has gradients of the same summed loss, so all are divided by the same number: the step's tokens.
std::vector<double> Training::gradient_factors(const StepTotals& totals) const {
  const double scale = 1 / (std::max(totals.num_tokens, 1.0) * loss_scale_.value());
  std::vector<double> factors(topology_.modules().size(), scale);
  for (std::size_t m = 0; m < factors.size(); ++m) {
    const Module& module = topology_.modules()[m];
    if (config_.correct_partial_participation && module.is_encoder && totals.participants[m] > 0)
      factors[m] *= static_cast<double>(module.dense.size_of("dp")) / totals.participants[m];
  }
  return factors;
}

std::vector<ModuleUpdate> Training::updates() const {
  return vector_of<ModuleUpdate>(trained_, [](auto& each) { return ModuleUpdate{each.module, each.optimizer.get()}; });
}

void Training::initialize_weights(const std::vector<std::string>& sets, std::atomic<std::int64_t>& done) {
  for (const auto& set : model_.parameter_sets())
    if (contains(sets, set->name)) set->parameters.initialize(config_.model.seed, &done);
  for (const Trained& trained : trained_)
    if (contains(sets, trained.set->name)) trained.optimizer->take_parameters();
}

std::int64_t Training::elements_of(const std::vector<std::string>& sets) const {
  std::int64_t sum = 0;
  for (const auto& set : model_.parameter_sets())
    if (contains(sets, set->name)) sum += set->parameters.elements();
  return sum;
}

}  // namespace braid
