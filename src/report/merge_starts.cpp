// Merges the starts of a run that its logs contain.
#include <algorithm>
#include <iterator>

#include "report/read_log.h"

namespace braid {
namespace {

std::int64_t lines_of(const std::vector<LogContents>& log) {
  std::int64_t lines = 0;
  for (const LogContents& start : log) lines += start.iteration_lines;
  return lines;
}

bool is_same_start(const LogContents& a, const LogContents& b) {
  if (a.attempts.empty() || b.attempts.empty()) return false;
  return a.attempts[0].first == b.attempts[0].first && a.attempts[0].began == b.attempts[0].began;
}

// Without what the later start has run again: a point of a log stands for all iterations since the point before it.
void add_later(Curves& curves, Curves&& later, const std::vector<Attempt>& run_again) {
  for (const Attempt& again : run_again)
    for (auto& [name, curve] : curves)
      std::erase_if(curve, [&](const CurvePoint& point) {
        return point.iteration >= again.first && point.iteration <= again.last;
      });
  for (auto& [name, points] : later) {
    Curve& curve = curves[name];
    for (const CurvePoint& point : points) {
      const auto at = std::ranges::lower_bound(curve, point.iteration, {}, &CurvePoint::iteration);
      if (at != curve.end() && at->iteration == point.iteration)
        *at = point;
      else
        curve.insert(at, point);
    }
  }
  std::erase_if(curves, [](const auto& curve) { return curve.second.empty(); });
}

template <class Value>
void take_if_known(Value& value, Value&& later) {
  if (later != Value{}) value = std::move(later);
}

void add_start(LogContents& run, LogContents&& start) {
  add_later(run.curves, std::move(start.curves), start.attempts);
  add_later(run.memory_mb, std::move(start.memory_mb), start.attempts);
  for (auto& [module, times] : start.modules) {
    MeasuredModule& all = run.modules[module];
    add_later(all.phase_ms, std::move(times.phase_ms), start.attempts);
    add_later(all.in_flight_ms, std::move(times.in_flight_ms), start.attempts);
    add_later(all.exposed_ms, std::move(times.exposed_ms), start.attempts);
  }
  std::ranges::move(start.attempts, std::back_inserter(run.attempts));
  std::ranges::move(start.checkpoints, std::back_inserter(run.checkpoints));
  for (std::string& failure : start.failures)
    if (std::ranges::find(run.failures, failure) == run.failures.end()) run.failures.push_back(std::move(failure));
  take_if_known(run.iterations, std::move(start.iterations));
  take_if_known(run.ranks, std::move(start.ranks));
  take_if_known(run.unusable.damaged, std::move(start.unusable.damaged));
  take_if_known(run.unusable.too_long, std::move(start.unusable.too_long));
  take_if_known(run.unusable.cut, std::move(start.unusable.cut));
  take_if_known(run.unusable.without_targets, std::move(start.unusable.without_targets));
  take_if_known(run.layout, std::move(start.layout));
  run.skipped += start.skipped;
  run.nans += start.nans;
  run.iteration_lines += start.iteration_lines;
  // Logs of other ranks have the same start, without its end.
  if (start.since > run.since || !start.ended_by.empty()) run.ended_by = std::move(start.ended_by);
  run.since = start.since;
}

}  // namespace

std::vector<LogContents> starts_of_all(std::vector<std::vector<LogContents>> logs) {
  std::ranges::stable_sort(logs, std::ranges::greater(), lines_of);
  std::vector<LogContents> all;
  for (std::vector<LogContents>& log : logs) {
    std::erase_if(log, [&](const LogContents& start) {
      return std::ranges::any_of(all, [&](const LogContents& known) { return is_same_start(start, known); });
    });
    std::ranges::move(log, std::back_inserter(all));
  }
  std::ranges::stable_sort(all, {}, &LogContents::since);
  return all;
}

LogContents merged(std::vector<LogContents> starts) {
  LogContents run;
  for (LogContents& start : starts) add_start(run, std::move(start));
  return run;
}

}  // namespace braid
