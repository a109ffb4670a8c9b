#include "cluster/doctor/events/progress_watch.h"

#include <algorithm>
#include <functional>

#include "cluster/doctor/events/progress_styles.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

constexpr std::size_t kTimesKept = 4, kFirstLines = 64;
constexpr std::int64_t kStraggling = 10, kFarAhead = 1000;

}  // namespace

// Job scripts print the first losses again at the end of a log: these lines are not progress.
bool ProgressWatch::is_quotation(std::string_view line, const Place& place) {
  if (place.own_time && last_time_ && seconds_between(*last_time_, *place.time) < -1) return true;
  if (place.own_time) last_time_ = place.time;
  if (first_lines_.size() >= kFirstLines && best_iteration_ >= 0 && place.own_time) return false;
  const std::size_t hash = std::hash<std::string_view>()(trimmed(line));
  if (first_lines_.count(hash)) return true;
  if (first_lines_.size() < kFirstLines) first_lines_.insert(hash);
  return false;
}

bool ProgressWatch::take(std::string_view line, const Place& place, Findings& findings) {
  const auto step = step_in(line);
  if (!step) return false;
  if (is_quotation(line.substr(step->at), place)) return true;
  FileTrace& file = findings.files.back();
  if (const auto number = step->number) {
    // Several ranks may tell of the same iteration; a number far back is a run that started again.
    if (*number <= best_iteration_ && *number > best_iteration_ - kStraggling) return true;
    file.iterations +=
        best_iteration_ >= 0 && *number > best_iteration_ ? std::min(*number - best_iteration_, kFarAhead) : 1;
    best_iteration_ = *number;
    findings.iteration = number;
    if (step->total) findings.iterations = step->total;
  } else {
    ++file.iterations;
  }
  ++file.progress;
  if (!place.own_time) return true;
  if (file.progress_times.size() == kTimesKept) file.progress_times.erase(file.progress_times.begin());
  file.progress_times.push_back(*place.time);
  return true;
}

}  // namespace braid
