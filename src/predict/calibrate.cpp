#include "predict/calibrate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <numeric>
#include <random>

#include "dist/device_times.h"
#include "dist/store.h"
#include "predict/calibration_cases.h"
#include "predict/small_step.h"
#include "predict/work_time.h"
#include "tensor/deterministic.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(const Clock::time_point& begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// How long this thread has computed, whatever other processes did meanwhile.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

// The cases take turns in random order, as the operators of a step do: training draws as much power as the GPU may,
// which lowers its clock, and a product alone would draw more than one among others. Turns also keep the inputs of one
// case from staying in the GPU's cache until its next run.
class Measurement {
 public:
  Measurement(std::vector<CalibrationCase> cases, const at::Device& device, double seconds)
      : cases_(std::move(cases)), times_(cases_.size()), order_(cases_.size()), device_(device), seconds_(seconds) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  // Seconds of each case.
  std::vector<double> run() {
    if (device_.is_cuda())
      run_on_gpu();
    else
      run_on_cpu();
    return results();
  }

  const std::vector<CalibrationCase>& cases() const { return cases_; }

 private:
  static constexpr int kWarmUp = 3;
  static constexpr int kLeastRounds = 3;
  static constexpr int kRoundsOfShortCases = 30;
  static constexpr double kShort = 1e-4, kShortest = 1e-7;  // seconds

  void run_on_gpu() {
    EventPool events(device_);
    const auto begin = Clock::now();
    for (int round = -kWarmUp; round < kLeastRounds || seconds_since(begin) < seconds_; ++round) {
      const std::vector<c10::Event> marks = run_round(events, /*mark_all=*/true);
      for (std::size_t i = 0; round >= 0 && i < order_.size(); ++i)
        times_[order_[i]].push_back(marks[i].elapsedTime(marks[i + 1]) * 1e-3);
    }
    const double by_marks = seconds_added_by_marks(events);
    for (std::vector<double>& times : times_)
      for (double& time : times) time = std::max(time - by_marks, kShortest);
  }

  // The events of the beginning, of the end of each case, and of the end. They are complete.
  std::vector<c10::Event> run_round(EventPool& events, bool mark_all) {
    std::shuffle(order_.begin(), order_.end(), random_);
    // The host is ahead of the GPU from here on, so that times are those of the GPU.
    for (const CalibrationCase& each : cases_)
      if (each.work.amount > 1e13) each.run();
    std::vector<c10::Event> marks;
    marks.push_back(events.record());
    for (const std::size_t i : order_) {
      cases_[i].run();
      if (mark_all || i == order_.back()) marks.push_back(events.record());
    }
    marks.back().synchronize();
    return marks;
  }

  // In training an operator starts while the one before it ends. An event between them prevents that: short cases take
  // longer with events than without.
  double seconds_added_by_marks(EventPool& events) {
    std::erase_if(order_, [this](std::size_t i) { return quantile(times_[i], 0.5) > kShort; });
    if (order_.empty()) return 0;
    std::vector<double> added;
    for (int round = 0; round < kRoundsOfShortCases; ++round) {
      const std::vector<c10::Event> many = run_round(events, true), few = run_round(events, false);
      added.push_back(many.front().elapsedTime(many.back()) - few.front().elapsedTime(few.back()));
    }
    return quantile(added, 0.5) * 1e-3 / static_cast<double>(order_.size());
  }

  void run_on_cpu() {
    const auto begin = Clock::now();
    for (int round = -1; round < kLeastRounds || seconds_since(begin) < seconds_; ++round)
      for (std::size_t i = 0; i < cases_.size(); ++i) {
        const double start = thread_seconds();
        cases_[i].run();
        if (round >= 0) times_[i].push_back(thread_seconds() - start);
      }
  }

  std::vector<double> results() const {
    std::vector<double> seconds;
    for (const std::vector<double>& times : times_) seconds.push_back(quantile(times, 0.5));
    return seconds;
  }

  const std::vector<CalibrationCase> cases_;
  std::vector<std::vector<double>> times_;
  std::vector<std::size_t> order_;
  std::mt19937 random_{1};
  const at::Device device_;
  const double seconds_;
};

// Without those that fail, for lack of memory for example.
std::vector<CalibrationCase> runnable(const std::vector<CalibrationCase>& cases,
                                      const std::function<void(const std::string&)>& report) {
  std::vector<CalibrationCase> kept;
  for (const CalibrationCase& each : cases) try {
      each.run();
      kept.push_back(each);
    } catch (const std::exception& e) {
      report(fmt::format("left out, {} of {:g} x {:g} x {:g}: {}",
                         operator_names()[static_cast<std::size_t>(each.work.op)], each.work.size[0], each.work.size[1],
                         each.work.size[2], words_of(e)));
    }
  return kept;
}

// A call takes a latency, and its amount at a rate. The latency is what the shortest call takes beyond its amount at
// the highest rate that was seen; the rates of the others follow from it.
OperatorSpeed speed_from(const std::vector<Work>& works, const std::vector<double>& seconds) {
  double best = 0;
  for (std::size_t i = 0; i < works.size(); ++i) best = std::max(best, works[i].amount / seconds[i]);
  const auto shortest = static_cast<std::size_t>(std::min_element(seconds.begin(), seconds.end()) - seconds.begin());
  const double latency = std::max(0.0, seconds[shortest] - works[shortest].amount / best);  // rounding may make it less
  OperatorSpeed speed = {.latency_us = latency * 1e6};
  for (std::size_t i = 0; i < works.size(); ++i) {
    const double rate = works[i].amount / (seconds[i] - latency);
    speed.rates.push_back({works[i].size, std::min(rate, 2 * best) / 1e9});
  }
  return speed;
}

// What starting a kernel takes beyond what was measured of operators alone: autograd, tensors, layers.
double host_us_of(const at::Device& device, const HardwareProfile& profile) {
  constexpr int kWarmUp = 5, kSteps = 40;
  const SmallStep step("M*E-M*E-", /*tokens=*/128, device);
  // A backward of a GPU's tensors is started by another thread.
  const auto now = [&, begin = Clock::now()] { return device.is_cuda() ? seconds_since(begin) : thread_seconds(); };
  std::vector<double> times;
  for (int i = -kWarmUp; i < kSteps; ++i) {
    const double start = now();
    step.run();
    if (i >= 0) times.push_back(now() - start);
  }
  const Works works = step.work();
  double launches = 0, computed = 0;
  for (const Work& work : works) {
    launches += work.count * work.launches;
    if (!device.is_cuda()) computed += seconds_of(work, profile);
  }
  return std::max(quantile(times, 0.5) - computed, 0.0) / launches * 1e6;
}

}  // namespace

HardwareProfile calibrate(const CalibrationOptions& options, const std::function<void(const std::string&)>& report) {
  const at::Device device = options.device == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (device.is_cpu()) at::set_num_threads(1);
  set_deterministic(true);  // as training does by default
  HardwareProfile profile;
  profile.source = "measured";
  profile.device = options.device;
  report("measuring operators");
  {
    const at::NoGradGuard guard;
    Measurement measurement(runnable(calibration_cases(device, report), report), device, options.seconds);
    const std::vector<double> seconds = measurement.run();
    for (int op = 0; op < kOperators; ++op) {
      std::vector<Work> works;
      std::vector<double> times;
      for (std::size_t i = 0; i < seconds.size(); ++i) {
        if (measurement.cases()[i].work.op != static_cast<Operator>(op)) continue;
        works.push_back(measurement.cases()[i].work);
        times.push_back(seconds[i]);
      }
      if (!works.empty()) profile.operators[static_cast<std::size_t>(op)] = speed_from(works, times);
    }
  }
  report("measuring how long the host takes to start kernels");
  profile.host_us = host_us_of(device, profile);
  return profile;
}

}  // namespace braid
