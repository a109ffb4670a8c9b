#include "predict/calibrate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <numeric>
#include <random>

#include "comm/comm_meter.h"
#include "comm/store.h"
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

// CPU time of this thread, which other processes do not affect.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

std::vector<double> medians_of(const std::vector<std::vector<double>>& times) {
  std::vector<double> medians;
  for (const std::vector<double>& of_one : times) medians.push_back(median(of_one));
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

  // In training an operator starts while the one before it ends. An event between them prevents that, so short cases
  // take longer with events than without.
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

// CPU seconds of each of `runs`. They take turns for about `seconds`, so that a change of the machine's speed affects
// all of them.
std::vector<double> cpu_seconds_of(const std::vector<std::function<void()>>& runs, double seconds,
                                   const TellProgress& tell) {
  std::vector<std::vector<double>> times(runs.size());
  const auto begin = Clock::now();
  for (int round = -1; round < kLeastRounds || seconds_since(begin) < seconds; ++round)  // the first one warms up
    for (std::size_t i = 0; i < runs.size(); ++i) {
      tell(kMeasuring, std::min(seconds_since(begin) / seconds,
                                share_of((round + 1) * runs.size() + i, (kLeastRounds + 1) * runs.size())));
      const double start = thread_seconds();
      runs[i]();
      if (round >= 0) times[i].push_back(thread_seconds() - start);
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
OperatorSpeed speed_from(const std::vector<TimedWork>& timed) {
  double best = 0;
  for (const auto& [seconds, work] : timed) best = std::max(best, work.amount / seconds);
  const TimedWork& shortest = *std::ranges::min_element(timed, {}, &TimedWork::seconds);
  const double latency = std::max(0.0, shortest.seconds - shortest.work.amount / best);  // rounding may make it less
  OperatorSpeed speed = {.latency_us = latency * 1e6};
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
  double launches = 0;
  for (const Work& work : works) launches += work.count * work.launches;
  return launches;
}

// The host's time to start a kernel, in microseconds.
double host_us_of_gpu(const at::Device& device) {
  constexpr int kWarmUp = 5, kSteps = 40;
  const SmallStep step("M*E-M*E-", /*tokens=*/128, device);
  std::vector<double> times;
  for (int i = -kWarmUp; i < kSteps; ++i) {
    const auto begin = Clock::now();
    step.run();
    if (i >= 0) times.push_back(seconds_since(begin));
  }
  return median(times) / launches_of(step.work()) * 1e6;
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

// In a model, autograd and the handling of tensors make an operator slower than alone. A step of few tokens shows by
// how much.
void measure_cpu(HardwareProfile& profile, const CalibrationOptions& options, const Report& report,
                 const TellProgress& tell) {
  at::set_num_threads(1);
  const at::NoGradGuard guard;
  const std::vector<CalibrationCase> cases = runnable(calibration_cases(at::kCPU, report), report, tell);
  std::vector<std::function<void()>> runs;
  for (const CalibrationCase& each : cases) runs.push_back(each.run);
  const SmallStep step("M*E-M*E-M*E-M*E-", /*tokens=*/64, at::kCPU);
  runs.push_back([&] {
    const at::AutoGradMode with_backward(true);
    step.run();
  });
  const std::vector<double> seconds = cpu_seconds_of(runs, options.seconds, tell);
  set_operators(profile, cases, seconds);
  const Works works = step.work();
  double beyond_operators = seconds.back();
  for (const Work& work : works) beyond_operators -= seconds_of(work, profile);
  profile.host_us = std::max(beyond_operators, 0.0) / launches_of(works) * 1e6;
}

}  // namespace

HardwareProfile calibrate(const CalibrationOptions& options, const Report& report, const TellProgress& tell) {
  set_deterministic(true);  // as training does by default
  HardwareProfile profile;
  profile.source = "measured";
  profile.device = options.device;
  report("measuring operators");
  if (options.device == "cuda")
    measure_gpu(profile, options, report, tell);
  else
    measure_cpu(profile, options, report, tell);
  return profile;
}

}  // namespace braid
