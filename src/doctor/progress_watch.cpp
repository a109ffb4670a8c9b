#include "doctor/progress_watch.h"

#include <algorithm>
#include <functional>

#include "doctor/text_parts.h"

namespace braid {
namespace {

constexpr std::size_t kTimesKept = 4, kFirstLines = 64;
constexpr std::int64_t kStraggling = 10, kFarAhead = 1000;

}  // namespace

// Job scripts print the first losses again at the end of a log: that is no training.
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
  std::size_t at = std::string_view::npos;
  std::optional<std::int64_t> number;
  for (const std::string_view word : {"iteration", "global_step", "step"}) {
    at = line.find(word);
    if (at != std::string_view::npos && (number = number_after(line.substr(at), word))) break;
  }
  if (!number || (!has_word(line, "loss") && !has_word(line, "elapsed time per"))) return false;
  if (is_quotation(line.substr(at), place)) return true;
  // Several ranks may tell of the same iteration; a number far back is a run that started again.
  if (*number <= best_iteration_ && *number > best_iteration_ - kStraggling) return true;
  FileTrace& file = findings.files.back();
  ++file.progress;
  file.iterations +=
      best_iteration_ >= 0 && *number > best_iteration_ ? std::min(*number - best_iteration_, kFarAhead) : 1;
  best_iteration_ = *number;
  findings.iteration = number;
  const std::string_view rest = line.substr(at, 60);
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    std::string_view total_text = trimmed(rest.substr(slash + 1));
    if (const auto total = take_number(total_text)) findings.iterations = total;
  }
  if (!place.own_time) return true;
  if (file.progress_times.size() == kTimesKept) file.progress_times.erase(file.progress_times.begin());
  file.progress_times.push_back(*place.time);
  return true;
}

}  // namespace braid
