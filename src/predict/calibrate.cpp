#include "predict/calibrate.h"
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include "comm/comm_meter.h"
#include "comm/control_line.h"
#include "comm/run_as_rank.h"
#include "comm/store.h"
#include "comm/world.h"
#include "ops/attention.h"
#include "predict/calibration_cases.h"
#include "predict/op_time.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
using Report = std::function<void(const std::string&)>;

double seconds_since(const Clock::time_point& begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// CPU time, which other processes do not affect.
double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double nth_smallest(std::vector<double> values, std::size_t n) {
  std::ranges::sort(values);
  return values[n];
}
double median(const std::vector<double>& values) { return nth_smallest(values, (values.size() - 1) / 2); }

std::vector<double> medians_of(const std::vector<std::vector<double>>& times) {
  std::vector<double> medians(times.size());
  std::ranges::transform(times, medians.begin(), median);
  return medians;
}

constexpr int kLeastRounds = 3;
constexpr const char* kMeasuring = "measuring operators";

double share_of(std::ptrdiff_t done, std::ptrdiff_t all) { return static_cast<double>(done) / all; }

// The cases take turns in random order to imitate a training step. Training runs at the GPU's power limit, which lowers
// its clock, and a product that is repeated alone would draw more power than one among other operators. Turns also
// evict a case's inputs from the GPU's cache before its next run.
class GpuMeasurement {
 public:
  GpuMeasurement(const std::vector<CalibrationCase>& cases, const at::Device& device)
      : cases_(cases), times_(cases.size()), order_(cases.size()), events_(device) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  // Seconds of each case, measured for about `seconds`.
  std::vector<double> run(double seconds, const TellProgress& tell) {
    const auto begin = Clock::now();
    for (int round = -kWarmUp; round < kLeastRounds || seconds_since(begin) < seconds; ++round) {
      tell(kMeasuring, std::min(seconds_since(begin) / seconds, share_of(round + kWarmUp, kWarmUp + kLeastRounds)));
      const std::vector<c10::Event> marks = run_round(/*mark_all=*/true);
      for (std::size_t i = 0; round >= 0 && i < order_.size(); ++i)
        times_[order_[i]].push_back(marks[i].elapsedTime(marks[i + 1]) * 1e-3);
    }
    std::vector<double> medians = medians_of(times_);
    const double by_marks = seconds_added_by_marks();
    for (double& median : medians) median = std::max(median - by_marks, kShortest);
    return medians;
  }

 private:
  static constexpr int kWarmUp = 3;
  static constexpr int kRoundsOfShortCases = 30;
  static constexpr double kShort = 1e-4, kShortest = 1e-7;  // seconds

  // Returns completed events for the beginning, the end of each case, and the end.
  std::vector<c10::Event> run_round(bool mark_all) {
    std::shuffle(order_.begin(), order_.end(), random_);
    // Long cases put the host ahead of the GPU, so that the GPU alone determines the times that follow.
    for (const CalibrationCase& each : cases_)
      if (each.work.amount > 1e13) each.run();
    std::vector<c10::Event> marks;
    marks.push_back(events_.record());
    for (const std::size_t i : order_) {
      cases_[i].run();
      if (mark_all || i == order_.back()) marks.push_back(events_.record());
    }
    marks.back().synchronize();
    return marks;
  }

  // In training an operator starts while the one before it ends, which an event between them prevents.
  double seconds_added_by_marks() {
    std::erase_if(order_, [this](std::size_t i) { return median(times_[i]) > kShort; });
    if (order_.empty()) return 0;
    std::vector<double> added;
    for (int round = 0; round < kRoundsOfShortCases; ++round) {
      const std::vector<c10::Event> many = run_round(true), few = run_round(false);
      added.push_back(many.front().elapsedTime(many.back()) - few.front().elapsedTime(few.back()));
    }
    return median(added) * 1e-3 / static_cast<double>(order_.size());
  }

  const std::vector<CalibrationCase>& cases_;
  std::vector<std::vector<double>> times_;
  std::vector<std::size_t> order_;
  std::mt19937 random_{1};
  EventPool events_;
};

// CPU seconds of each run. They take turns, so that a change of the machine's speed affects all of them.
std::vector<double> cpu_seconds_of(const std::vector<std::function<void()>>& runs, double seconds,
                                   const TellProgress& tell) {
  std::vector<std::vector<double>> times(runs.size());
  const auto begin = Clock::now();
  for (int round = -1; round < kLeastRounds || seconds_since(begin) < seconds; ++round)  // the first one warms up
    for (std::size_t i = 0; i < runs.size(); ++i) {
      tell(kMeasuring, std::min(seconds_since(begin) / seconds,
                                share_of((round + 1) * runs.size() + i, (kLeastRounds + 1) * runs.size())));
      const double start = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
      runs[i]();
      if (round >= 0) times[i].push_back(cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - start);
    }
  return medians_of(times);
}

// Leaves out cases that fail, for example for lack of memory.
std::vector<CalibrationCase> runnable(const std::vector<CalibrationCase>& cases, const Report& report,
                                      const TellProgress& tell) {
  std::vector<CalibrationCase> kept;
  for (const CalibrationCase& each : cases) try {
      tell("trying each operator", share_of(&each - cases.data(), cases.size()));
      each.run();
      kept.push_back(each);
    } catch (const std::exception& e) {
      report(fmt::format("left out, {} of {:g} x {:g} x {:g}: {}", operator_names()[static_cast<int>(each.work.op)],
                         each.work.size[0], each.work.size[1], each.work.size[2], words_of(e)));
    }
  return kept;
}

struct TimedWork {
  double seconds = 0;
  Work work{};
};

// A call takes a latency plus its amount divided by a rate. The latency is what the shortest call takes in excess of
// its amount at the highest observed rate; the rates of all calls follow from it.
Speed speed_from(const std::vector<TimedWork>& timed) {
  double best = 0;
  for (const auto& [seconds, work] : timed) best = std::max(best, work.amount / seconds);
  const TimedWork& shortest = *std::ranges::min_element(timed, {}, &TimedWork::seconds);
  const double latency = std::max(0.0, shortest.seconds - shortest.work.amount / best);  // rounding may make it less
  Speed speed = {.latency_us = latency * 1e6};
  for (const auto& [seconds, work] : timed)
    speed.rates.push_back({work.size, std::min(work.amount / (seconds - latency), 2 * best) / 1e9});
  return speed;
}

void set_operators(HardwareProfile& profile, const std::vector<CalibrationCase>& cases,
                   const std::vector<double>& seconds) {
  std::map<Operator, std::vector<TimedWork>> by_operator;
  for (std::size_t i = 0; i < cases.size(); ++i) by_operator[cases[i].work.op].push_back({seconds[i], cases[i].work});
  for (const auto& [op, timed] : by_operator) profile.operators[static_cast<int>(op)] = speed_from(timed);
}

double launches_of(const Works& works) {
  return sum_of<double>(works, [](const Work& work) { return work.count * work.launches; });
}

// The host's time to start a kernel, in microseconds.
double host_us_of_gpu(const at::Device& device) {
  constexpr int kWarmUp = 5, kSteps = 40, kTokens = 128;
  const std::string pattern = "M*E-M*E-";
  const SmallStep step = small_step(pattern, kTokens, device);
  std::vector<double> times;
  for (int i = -kWarmUp; i < kSteps; ++i) {
    const auto begin = Clock::now();
    step().backward();
    if (i >= 0) times.push_back(seconds_since(begin));
  }
  return median(times) / launches_of(small_step_work(pattern, kTokens, device)) * 1e6;
}

void measure_gpu(HardwareProfile& profile, const CalibrationOptions& options, const Report& report,
                 const TellProgress& tell) {
  const at::Device device(at::kCUDA, 0);
  {
    const at::NoGradGuard guard;
    const std::vector<CalibrationCase> cases = runnable(calibration_cases(device, report), report, tell);
    set_operators(profile, cases, GpuMeasurement(cases, device).run(options.seconds, tell));
  }
  report("measuring how long the host takes to start kernels");
  profile.host_us = host_us_of_gpu(device);
}

// Autograd and tensors make an operator slower in a model than alone; a step of few tokens shows by how much.
void measure_cpu(HardwareProfile& profile, const CalibrationOptions& options, const Report& report,
                 const TellProgress& tell) {
  at::set_num_threads(1);
  const at::NoGradGuard guard;
  const std::vector<CalibrationCase> cases = runnable(calibration_cases(at::kCPU, report), report, tell);
  auto runs = vector_of<std::function<void()>>(cases, &CalibrationCase::run);
  const std::string pattern = "M*E-M*E-M*E-M*E-";
  constexpr int kTokens = 64;
  runs.push_back([step = small_step(pattern, kTokens, at::kCPU)] {
    const at::AutoGradMode with_backward(true);
    step().backward();
  });
  const std::vector<double> seconds = cpu_seconds_of(runs, options.seconds, tell);
  set_operators(profile, cases, seconds);
  const Works works = small_step_work(pattern, kTokens, at::kCPU);
  double beyond_operators = seconds.back();
  for (const Work& work : works) beyond_operators -= seconds_of(work, profile);
  profile.host_us = std::max(beyond_operators, 0.0) / launches_of(works) * 1e6;
}

using Seconds = CollectiveRuns::Seconds;
using Call = std::function<void()>;

Call call_of(const CollectiveCase& each, const Group& group) {
  const std::int64_t n = group.size(), part = each.bytes / 4 / n;
  const auto values = [](std::int64_t count) { return at::zeros({count}); };
  const std::map<std::string, Call> calls = {
      {"all_reduce", [&group, x = values(n * part)]() mutable { group.all_reduce(x); }},
      {"all_gather",
       [&group, whole = values(n * part), own = values(part)]() mutable { group.all_gather(whole, own); }},
      {"reduce_scatter",
       [&group, whole = values(n * part), own = values(part)]() mutable { group.reduce_scatter(own, whole); }},
      {"all_to_all", [&group, out = values(n * part), in = values(n * part),
                      rows = std::vector<std::int64_t>(n, part)]() mutable { group.all_to_all(out, in, rows, rows); }},
      {"broadcast", [&group, x = values(n * part)]() mutable { group.broadcast(x, 0); }},
      {"reduce", [&group, x = values(n * part)]() mutable { group.reduce(x, 0); }}};
  return calls.at(each.operation);
}

// The layers that ranks compute between their calls. There are several of each kind because, in a model, the other
// layers evict a layer's memory from the caches before its turn.
constexpr int kOfEachKind = 3;
constexpr std::int64_t kTokens = 256;

using Layers = std::vector<SmallStep>;

Layers some_layers() {
  Layers layers;
  for (int i = 0; i < kOfEachKind; ++i)
    for (const char letter : kLayerLetters) layers.push_back(small_step({letter}, kTokens, at::kCPU));
  return layers;
}

double seconds_of_layers(const HardwareProfile& profile) {
  double seconds = 0;
  for (const char letter : kLayerLetters)
    seconds += kOfEachKind * seconds_of(small_step_work({letter}, kTokens, at::kCPU), profile);
  return seconds;
}

// Runs forward and backward of each layer on this rank, with a call after each.
Seconds run(const Layers& layers, const Call& call, const Group& group) {
  group.barrier();
  const auto start = Clock::now();
  const double begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  for (const SmallStep& layer : layers) {
    const at::Tensor loss = layer();
    call();
    loss.backward();
    call();
  }
  group.barrier();
  return {cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - begin, seconds_since(start)};
}

double upper_median(const std::vector<double>& values) { return nth_smallest(values, values.size() / 2); }

double crowding_of(const CollectiveRuns& runs) {
  if (runs.ranks <= runs.cores) return 1;
  std::vector<double> ratios;
  for (const auto& round : runs.rounds) ratios.push_back(round.all.computed / round.few.computed);
  return std::max(upper_median(ratios), 1.0);
}

constexpr std::int64_t kSmall = 128;  // bytes whose transfer time is negligible beside the latency

double seconds_over(const Speed& link, const CollectiveCase& call) {
  HardwareProfile profile;
  profile.inside_node = link;
  return seconds_of(call.operation, static_cast<double>(call.bytes), {call.ranks, 1, call.ranks}, profile);
}

// The number of messages that follow each other in a call.
double messages_of(const CollectiveCase& call) { return seconds_over({.latency_us = 1e6, .rates = {{1, 1e12}}}, call); }

// The bytes that each rank's link moves.
double volume_of(const CollectiveCase& call) { return seconds_over({.latency_us = 0, .rates = {{1, 1e-9}}}, call); }

struct Latencies {
  double call = 0, message = 0;  // seconds
};

// The least sum of squared errors of call + messages x message, neither of them negative.
Latencies latencies_of(const std::vector<MeasuredCollective>& measured) {
  double cases = 0, messages = 0, squares = 0, seconds = 0, products = 0;
  for (const MeasuredCollective& each : measured) {
    if (each.call.bytes > kSmall) continue;
    const double count = messages_of(each.call);
    ++cases;
    messages += count;
    squares += count * count;
    seconds += each.seconds;
    products += count * each.seconds;
  }
  const double determinant = cases * squares - messages * messages;
  BRAID_CHECK(determinant > 0, "operations with different numbers of messages must have been measured");
  const double message = std::max(0.0, (cases * products - messages * seconds) / determinant);
  const double call = std::max(0.0, (seconds - messages * message) / cases);
  return {call, call > 0 ? message : products / squares};
}

// The share of CPU time in a call's wall time, in groups where each rank has a core.
double computed_share(const std::vector<MeasuredCollective>& measured, int cores) {
  double seconds = 0, elapsed = 0;
  for (const MeasuredCollective& each : measured) {
    if (each.call.ranks > cores || each.call.bytes > kSmall) continue;
    seconds += each.seconds;
    elapsed += each.elapsed;
  }
  return elapsed > seconds ? seconds / elapsed : 1;
}

// Rates from the additional time of a larger message over a small one of the same operation.
std::vector<Rate> rates_of(const std::vector<MeasuredCollective>& measured) {
  std::vector<Rate> rates;
  for (const MeasuredCollective& each : measured) {
    const CollectiveCase& call = each.call;
    if (call.bytes <= kSmall) continue;
    const auto is_small = [&](const MeasuredCollective& other) {
      return other.call.operation == call.operation && other.call.ranks == call.ranks && other.call.bytes <= kSmall;
    };
    const auto small = std::ranges::find_if(measured, is_small);
    BRAID_CHECK(small != measured.end(), "no small message of {} between {} ranks", call.operation, call.ranks);
    const double longer = std::max(each.seconds - small->seconds, 0.1 * each.seconds);  // a smaller difference is noise
    rates.push_back({static_cast<double>(call.bytes), volume_of(call) / longer / 1e9});
  }
  std::ranges::sort(rates, {}, &Rate::size);
  return rates;
}

}  // namespace

HardwareProfile calibrate(const CalibrationOptions& options, const Report& report, const TellProgress& tell) {
  set_deterministic(true);  // as training does by default
  HardwareProfile profile;
  profile.source = Source::Measured;
  profile.device = options.device;
  report("measuring operators");
  if (options.device == DeviceChoice::Cuda)
    measure_gpu(profile, options, report, tell);
  else
    measure_cpu(profile, options, report, tell);
  return profile;
}

CollectiveRuns measure_collectives(World& world, int cores, const std::vector<CollectiveCase>& cases, int rounds,
                                   const std::function<void()>& after_round) {
  at::set_num_threads(1);
  const Group& group = world.everyone();
  const Layers layers = some_layers(), none;
  const Call no_call = [] {};
  CollectiveRuns runs = {
      .ranks = world.size(), .cores = cores, .calls = 2 * static_cast<int>(layers.size()), .cases = cases};
  for (int i = -1; i < rounds; ++i) {  // the first one warms up
    CollectiveRuns::Round round;
    round.few = run(world.rank() < cores ? layers : none, no_call, group);
    round.all = run(layers, no_call, group);
    for (const CollectiveCase& each : cases) {
      const Seconds without = run(layers, no_call, group), with = run(layers, call_of(each, group), group);
      round.cases.push_back({without, with});
    }
    if (i >= 0) runs.rounds.push_back(std::move(round));
    after_round();
  }
  return runs;
}

void measure_collectives_as_rank(const std::string& path, int cores) {
  constexpr int kRounds = 12;
  run_as_rank(*world_spec_from(process_env()), {.device = DeviceChoice::Cpu}, {}, [&](World& world) {
    const auto start = Clock::now();
    int done = 0;
    const auto tell_launcher = [&] {
      if (world.rank() > 0) return;
      const double seconds = seconds_since(start);
      ++done;
      const double left = seconds * (kRounds + 1 - done) / done;
      fmt::print("{}",
                 to_control_line(RunProgress{.iteration = done, .iterations = kRounds + 1, .seconds_left = left}));
      std::fflush(stdout);
    };
    const CollectiveRuns runs =
        measure_collectives(world, cores, collective_cases(world.size()), kRounds, tell_launcher);
    if (world.rank() > 0) return;
    const CollectiveTimes measured = times_of(runs);
    std::ofstream file(path);
    file << fmt::format("{} {}\n", measured.layers_s, measured.crowding);
    for (const auto& [call, seconds, elapsed] : measured.calls)
      file << fmt::format("{} {} {} {} {}\n", call.operation, call.ranks, call.bytes, seconds, elapsed);
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
  });
}

CollectiveTimes read_collectives(const std::string& path) {
  std::ifstream file(path);
  CollectiveTimes measured;
  file >> measured.layers_s >> measured.crowding;
  for (MeasuredCollective each;
       file >> each.call.operation >> each.call.ranks >> each.call.bytes >> each.seconds >> each.elapsed;)
    measured.calls.push_back(each);
  return measured;
}

std::vector<MeasuredCollective> at_speed_of(const HardwareProfile& profile, const CollectiveTimes& times) {
  std::vector<MeasuredCollective> scaled = times.calls;
  const double scale = seconds_of_layers(profile) / times.layers_s;
  for (MeasuredCollective& each : scaled) {
    each.seconds *= scale;
    each.elapsed *= scale;
  }
  return scaled;
}

CollectiveTimes times_of(const CollectiveRuns& runs) {
  std::vector<double> of_layers;
  for (const auto& round : runs.rounds)
    for (const auto& [without, with] : round.cases) of_layers.push_back(without.computed);
  CollectiveTimes times = {.layers_s = upper_median(of_layers), .crowding = crowding_of(runs)};
  // Without calls, wall time is CPU time if each rank has a core; fit_collectives() uses `elapsed` of such groups only.
  const auto seconds_of_call = [&](std::size_t i, double Seconds::*kind) {
    std::vector<double> shares;
    for (const auto& round : runs.rounds)
      shares.push_back(round.cases[i].with.*kind / round.cases[i].without.*kind - 1);
    return upper_median(shares) * (times.layers_s / runs.calls);
  };
  for (std::size_t i = 0; i < runs.cases.size(); ++i)
    times.calls.push_back(
        {runs.cases[i], seconds_of_call(i, &Seconds::computed), seconds_of_call(i, &Seconds::elapsed)});
  return times;
}

std::vector<CollectiveCase> collective_cases(int ranks) {
  std::vector<CollectiveCase> cases;
  for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"})
    cases.push_back({operation, ranks, kSmall});
  if (ranks == 2)
    for (const std::int64_t bytes : {1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 23})
      cases.push_back({"all_gather", ranks, bytes});
  return cases;
}

void fit_collectives(const std::vector<MeasuredCollective>& measured, HardwareProfile& profile) {
  std::vector<MeasuredCollective> usable = measured;
  for (MeasuredCollective& each : usable)
    each.seconds = std::max(each.seconds, 1e-7);  // a difference of two noisy times
  profile.collective_cpu = computed_share(usable, profile.cores);
  for (MeasuredCollective& each : usable) each.seconds /= profile.collective_cpu;  // wall time from here on
  const Latencies latencies = latencies_of(usable);
  profile.collective_us = latencies.call * 1e6;
  profile.inside_node = {.latency_us = latencies.message * 1e6, .rates = rates_of(usable)};
  profile.between_nodes = profile.inside_node;
}

}  // namespace braid
