#include "cluster/doctor/progress.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "cluster/doctor/text.h"

namespace braid {

namespace {

constexpr std::size_t kLongestBar = 512;  // bytes

// Words before a step's number, the most telling first.
constexpr std::array<std::string_view, 13> kStepWords = {"iteration", "global_step", "num_updates", "step",  "iter",
                                                         "Step",      "Iter",        "Iteration",   "steps", "batch",
                                                         "update",    "Batch",       "on:train"};

// A line of a step tells one of these, too.
constexpr std::array<std::string_view, 14> kMeasures = {
    "elapsed time per", "loss", "Loss", "it/s",      "s/it",  "/step", "SamplesPerSec",
    "samples/sec",      "lr=",  "lr:",  "grad_norm", "time:", "tok/s", "skipped="};
constexpr std::array<std::string_view, 4> kEnough = {"Training: step", "[batch=", "completed step", "[step="};

// Counters of other work than training, at the beginning of a bar or a line.
constexpr std::array<std::string_view, 22> kOtherWork = {
    "valid", "Valid",  "eval",  "Eval",    "test",   "Test",    "Load",    "load",    "Download",  "Fetch",  "Map",
    "map",   "Filter", "Token", "Generat", "Sanity", "Predict", "predict", "Compute", "Resolving", "Saving", "Process"};
constexpr std::array<std::string_view, 7> kTraining = {"poch", "rain", "tep", "ter", "loss", "Loss", "atch"};

template <std::size_t N>
bool has_any(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view w) { return text.find(w) != npos; });
}

// "/ 100", " of 100", "|100" behind a number.
std::optional<std::int64_t> total_behind(std::string_view rest) {
  rest = trimmed(rest);
  if (!take(rest, "/") && !take(rest, "of ")) return std::nullopt;
  rest = trimmed(rest);
  return take_number(rest);
}

std::optional<Step> step_behind_word(std::string_view line) {
  for (const std::string_view word : kStepWords)
    for (std::size_t at = 0; (at = line.find(word, at)) != npos; at += word.size()) {
      if (at > 0 && (is_letter(line[at - 1]) || line[at - 1] == '_')) continue;  // "micro_step", "timestep"
      std::string_view rest = line.substr(at + word.size());
      const std::size_t begin = rest.find_first_not_of(" =:.'\"\t[(#");
      if (begin == npos || begin == 0 || begin > 12) continue;
      rest.remove_prefix(begin);
      const auto number = take_number(rest);
      if (!number || (!rest.empty() && is_letter(rest[0]))) continue;
      return Step{number, total_behind(rest.substr(0, 24)), at};
    }
  return std::nullopt;
}

// "500/10000", "[  50/1251 (", "100 / 356"; no rates. Of several the one with the largest total: others are dates and
// epochs.
std::optional<Step> fraction_in(std::string_view line) {
  std::optional<Step> best;
  for (std::size_t slash = 0; (slash = line.find('/', slash)) != npos; ++slash) {
    std::size_t end = slash;
    while (end > 0 && line[end - 1] == ' ') --end;
    std::size_t begin = end;
    while (begin > 0 && is_digit(line[begin - 1])) --begin;
    std::string_view first = line.substr(begin, end - begin), rest = line.substr(slash + 1);
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    const auto number = take_number(first), total = take_number(rest);
    const bool is_word_before =
        begin > 0 && (is_letter(line[begin - 1]) || line[begin - 1] == '/' || line[begin - 1] == '.');
    const bool goes_on = !rest.empty() && (rest[0] == '/' || rest[0] == '.' || is_letter(rest[0]));
    const bool is_step = number && total && *number <= *total && *total > 1 && !is_word_before && !goes_on;
    if (is_step && (!best || *total > *best->total)) best = Step{number, total, begin};
  }
  return best;
}

// A name of something in the title of a bar: "Map", and not "4.2G".
bool has_name(std::string_view title) {
  std::size_t letters = 0;
  for (const char c : title)
    if (letters = is_letter(c) ? letters + 1 : 0; letters == 3) return true;
  return false;
}

std::optional<Step> step_of_bar(std::string_view bar) {
  const std::size_t percent = bar.find("%|");
  const std::string_view title = bar.substr(0, percent);
  const std::size_t close = bar.find('|', percent + 2);
  if (close == npos) return std::nullopt;
  const std::string_view counts = bar.substr(close + 1);
  const bool is_named = has_name(title);
  const bool is_training = has_any(title, kTraining) && !has_any(title, kOtherWork);
  if (is_named && !is_training && !has_word(counts, "loss")) return std::nullopt;
  auto step = fraction_in(counts);
  if (!step) return std::nullopt;
  // A bar begins again with each epoch.
  if (const auto epoch = number_after(title, "poch"); epoch && *epoch < 1'000'000 && *step->total < 1'000'000'000)
    step->number = *epoch * *step->total + *step->number;
  return step;
}

// "Epoch [3][50/1000]", "epoch 003:  100 / 356 loss=": how far in which epoch; or only which.
std::optional<Step> step_of_epoch(std::string_view line) {
  auto step = fraction_in(line);
  if (!step) {
    const auto epoch = number_after(line, "poch");
    return epoch ? std::optional(Step{epoch, std::nullopt, 0}) : std::nullopt;
  }
  for (const std::string_view word : {"poch(train)", "poch", "Train"})
    if (const auto epoch = number_after(line, word); epoch && *epoch < 1'000'000 && *step->total < 1'000'000'000) {
      step->number = *epoch * *step->total + *step->number;
      step->total.reset();
      break;
    }
  return step;
}

}  // namespace

std::string_view bar_in(std::string_view line) {
  if (line.size() > kLongestBar) line.remove_prefix(line.size() - kLongestBar);
  const char* const end = line.data() + line.size();
  for (const char* at = line.data(); at < end;) {
    at = static_cast<const char*>(std::memchr(at, '%', static_cast<std::size_t>(end - at)));
    if (!at) return {};
    if (++at < end && *at == '|') {
      const std::size_t back = line.rfind('\r');
      const std::string_view last = back == npos ? line : line.substr(back + 1);
      return last.find("%|") != npos ? last : line;
    }
  }
  return {};
}

std::optional<Step> step_in(std::string_view line) {
  line = line.substr(0, 1000);
  if (has_word(line.substr(0, kLongestBar), "%|")) return step_of_bar(line);
  const auto step_by_word = step_behind_word(line);
  if (!has_any(line, kMeasures) && !has_any(line, kEnough)) return std::nullopt;
  const std::string_view head = line.substr(0, step_by_word ? std::min<std::size_t>(step_by_word->at, 80) : 80);
  if (has_word(head, "alidation") || has_word(head, "eval_") || has_word(head, "Eval")) return std::nullopt;
  if (step_by_word) return step_by_word;
  // Hugging Face tells only parts of an epoch: {'loss': 0.39, ..., 'epoch': 1.36}
  if (has_word(line, "'loss': ") && has_word(line, "'epoch': ")) return Step{};
  if (has_word(line, "batch: iter_time")) return Step{};  // ESPnet
  return step_of_epoch(line);
}

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
