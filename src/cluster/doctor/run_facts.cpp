#include "cluster/doctor/run_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "base/utf8.h"
#include "cluster/doctor/line_marks.h"
#include "cluster/doctor/messages.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/text.h"

namespace braid {

namespace {

constexpr std::size_t kLongestBar = 512;  // bytes

// "/ 100", " of 100", "|100" behind a number.
std::optional<std::int64_t> total_behind(std::string_view rest) {
  rest = trimmed(rest);
  if (!take(rest, "/") && !take(rest, "of ")) return std::nullopt;
  rest = trimmed(rest);
  return take_number(rest);
}

std::optional<Step> step_behind_word(std::string_view line) {
  static const std::vector<std::string> kStepWords = split(words_of("step"), '|');
  for (const std::string& word : kStepWords)
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

// Reads "500/10000", "[  50/1251 (", "100 / 356", but no rates. The largest total counts: others are dates and epochs.
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

// Whether the title of a bar contains a name: "Map", but not "4.2G".
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
  const bool is_training = says(title, "training") && !says(title, "other-work");
  if (is_named && !is_training && !has_word(counts, "loss")) return std::nullopt;
  return fraction_in(counts);
}

// "Epoch [3][50/1000]", "epoch 003:  100 / 356 loss=": the epoch, and the step in it if there is one.
std::optional<Step> step_of_epoch(std::string_view line) {
  if (const auto step = fraction_in(line)) return step;
  const auto epoch = number_after(line, "poch");
  return epoch ? std::optional(Step{epoch, std::nullopt, 0}) : std::nullopt;
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
  if (!says(line, "measure")) return std::nullopt;
  const std::string_view head = line.substr(0, step_by_word ? std::min<std::size_t>(step_by_word->at, 80) : 80);
  if (has_word(head, "alidation") || has_word(head, "eval_") || has_word(head, "Eval")) return std::nullopt;
  if (step_by_word) return step_by_word;
  // Hugging Face reports only fractions of an epoch: {'loss': 0.39, ..., 'epoch': 1.36}
  if (has_word(line, "'loss': ") && has_word(line, "'epoch': ")) return Step{};
  return step_of_epoch(line);
}

namespace {

constexpr std::size_t kFirstLines = 64;
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
    // Several ranks may report the same iteration; a number far back is a run that started again.
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
  return true;
}

namespace {

constexpr std::size_t kMostGroups = 1 << 12, kMostAbsent = 1000;

QuotedLine quoted(const SeenLine& line) { return {line.place, line.shown, line.focus}; }

// Slurm's format: "90" minutes, "30:00", "04:00:00", "1-12", "1-00:00:00"; 0 for anything else.
double seconds_of_limit(std::string_view text) {
  const auto first = take_number(text);
  if (!first) return 0;
  const bool has_days = take(text, "-");
  std::vector<double> parts = {static_cast<double>(has_days ? take_number(text).value_or(0) : *first)};
  while (take(text, ":")) parts.push_back(static_cast<double>(take_number(text).value_or(0)));
  const bool has_hours = has_days || parts.size() > 2;
  parts.resize(3);
  const double seconds = has_hours ? 3600 * parts[0] + 60 * parts[1] + parts[2] : 60 * parts[0] + parts[1];
  return seconds + (has_days ? 86400.0 * static_cast<double>(*first) : 0);
}

// "1, 3-5"
std::vector<int> ranks_in(std::string_view list) {
  std::string plain(list);
  std::erase(plain, ' ');
  return unfold_ranks(plain);
}

}  // namespace

void note_context(std::string_view body, Findings& findings) {
  const auto keep = [&](std::optional<std::int64_t>& where, const char* key) {
    if (const auto number = number_after(body, key); number && !where) where = number;
  };
  if (has_word(body, "xpert")) {
    for (const char* key : {"num_experts", "num-experts", "num_local_experts", "n_routed_experts"})
      keep(findings.num_experts, key);
    for (const char* key : {"expert_model_parallel_size", "expert-model-parallel-size", "expert_parallel_size"})
      keep(findings.expert_parallel, key);
  }
  if (has_word(body, "orld") || has_word(body, "WORLD"))
    for (const char* key : {"world size", "world_size", "WORLD_SIZE"}) keep(findings.world_size, key);
  if (auto member = behind(body, ", MEMBER: "); member && take_number(*member) && take(*member, "/"))  // Lightning
    if (const auto world = take_number(*member); world && !findings.world_size) findings.world_size = world;
  if (mentions_fp8(body) || has_word(body, "scale_inv")) findings.fp8 = true;
  if (has_word(body, "\xe2\x9d\x8c"))
    ++(has_word(body, "expert") ? findings.differing_experts : findings.differing_others);
}

bool note_limit(std::string_view body, const SeenLine& line, Findings& findings) {
  JobLimit limit = {.line = quoted(line)};
  if (const auto end = behind(body, "EndTime=")) limit.end = time_at(*end);
  for (const char* key : {"TimeLimit=", "--time=", "#SBATCH -t ", "ime limit"})
    if (const auto rest = behind(body, key); rest && limit.seconds == 0) {
      const std::size_t at = rest->find_first_not_of(" :=");
      limit.seconds = seconds_of_limit(rest->substr(std::min(at, rest->size())));
    }
  if (limit.seconds == 0 && !limit.end) return false;
  if (limit.seconds == 0 && findings.limit)  // scontrol has a line for each
    limit.seconds = findings.limit->seconds, limit.line = findings.limit->line;
  findings.limit = std::move(limit);
  return true;
}

void note_reached_limit(std::optional<LogTime> first, std::optional<LogTime> last, Findings& findings) {
  constexpr double kShare = 0.05, kLate = 300;  // programs start after their job; Slurm ends jobs a little late
  const bool is_done = findings.iteration && findings.iterations && *findings.iteration >= *findings.iterations;
  if (!findings.limit || !first || !last || findings.files.back().progress == 0 || is_done) return;
  const JobLimit& limit = *findings.limit;
  const double left = limit.end ? seconds_between(*last, *limit.end) : limit.seconds - seconds_between(*first, *last);
  if (left > std::max(kShare * limit.seconds, 60.0) || left < -kLate) return;
  Finding finding;
  finding.sign = Sign::TimeLimit;
  finding.place = limit.line.place;
  finding.text = finding.shown = limit.line.text;
  findings.last_words.push_back(std::move(finding));
}

void note_artifacts(const SeenLine& line, Findings& findings) {
  if (!findings.saved_artifacts && has_one_of(line.text, "save_hf_weights|save_artifacts|save_hf_pretrained"))
    findings.saved_artifacts = quoted(line);
}

// "[PG ID 0 PG GUID 0(default_pg) Rank 1] ... last enqueued NCCL work: 811, last completed NCCL work: 807."
void note_enqueued(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  const std::size_t at = marks.body.find("ast enqueued");
  const auto work = number_after(marks.body.substr(at), "work");
  const auto completed = number_after(behind(marks.body, "ast completed").value_or(""), "work");
  const std::size_t group = marks.body.find("[PG "), end = marks.body.find(" Rank", group);
  if (!work || !marks.rank) return;
  const std::string name(group == npos ? "" : marks.body.substr(group, end - group));
  if (findings.enqueued.size() >= kMostGroups && !findings.enqueued.contains(name)) return;
  const QueuedWork next = {.last = {}, .first = static_cast<int>(findings.enqueued.size()), .least = 0, .line = {}};
  findings.enqueued.try_emplace(name, next)
      .first->second.add(*marks.rank, {*work, completed.value_or(*work)}, quoted(line));
}

// "Rank 1 failed to pass monitoredBarrier", and Gloo's keys in the store, which end with the rank that did not come.
void note_absent(std::string_view body, const SeenLine& line, Findings& findings) {
  const auto add = [&](std::int64_t rank) {
    if (rank < 1 << 20) findings.named_absent.push_back({static_cast<int>(rank), quoted(line)});
  };
  if (findings.named_absent.size() > kMostAbsent) return;
  if (has_word(body, "task at the barrier")) body = behind(body, "task names: ").value_or("");  // JAX: not who came
  if (const auto rank = rank_before_list(body)) add(*rank);                                     // Horovod
  for (const Rule& row : rows_of("absent ranks"))
    if (Caught caught; match_inside(row.anchor, body, caught)) add(*caught.rank);
  if (const std::size_t end = body.find(" failed to pass monitoredBarrier"); end != npos) {
    const std::size_t at = body.substr(0, end).rfind("Rank");
    if (at == npos) return;
    std::string_view list = body.substr(at, end - at);
    take(list, "Rank");
    take(list, "s");
    for (const int rank : ranks_in(list)) add(rank);
  }
}

// "[6] finished collective #182, but didn't join collective #183", "ranks [2, 5] are the lagging ranks", "missing
// ranks: {3}"
void note_lagging(const SeenLine& line, Findings& findings) {
  const std::string_view text = line.text;
  for (const char* words : {"] finished collective #", "] are the lagging ranks", "] joined but didn't finish", "}"}) {
    const std::size_t end = text.find(words), open = text.substr(0, end).find_last_of("[{");
    if (end == npos || open == npos) continue;
    const std::vector<int> ranks = ranks_in(text.substr(open + 1, end - open - 1));
    const bool may_all_be_stuck = has_word(words, "didn't finish");
    if (findings.named_absent.size() > kMostAbsent || (may_all_be_stuck && ranks.size() > 1)) return;
    for (const int rank : ranks) findings.named_absent.push_back({rank, quoted(line)});
  }
}

namespace {

// Lines marked as information or warnings report what went on; only ends from outside are reported in them.
bool is_for_information(std::string_view line) {
  return is_warning(line) || has_one_of(line, "INFO|rWarning|eWarning|nWarning|wandb|[W|WARN ");
}

// "  hang_limit_s: 300   # end the run when a rank makes no progress": a recipe that a run prints.
std::string_view without_comment(std::string_view line) {
  return trimmed(line).starts_with('#') ? "" : line.substr(0, line.find("  # "));
}

// Any launcher may name the rank: "task rank 3 on host n2 failed".
std::optional<int> rank_that_failed(std::string_view line) {
  constexpr std::size_t kNear = 60;
  for (std::size_t at = 1; (at = line.find("ank ", at)) != npos; ++at) {
    Caught caught;
    const auto length = match_front("ank %r", line.substr(at), caught);
    const std::string_view before = trimmed(line.substr(0, at - 1));
    if (!length || (line[at - 1] != 'r' && line[at - 1] != 'R') || before.ends_with("ocal") || before.ends_with("ode"))
      continue;
    const std::string_view near = line.substr(at + *length, kNear);
    const bool is_prefix = near.starts_with(']') || near.starts_with(')');
    if (!is_prefix && has_one_of(near, " failed| died| crashed| exited| was killed| aborted| terminated| lost") &&
        !has_one_of(near, "failed to |exited normally|exited with code 0|exit code 0"))
      return caught.rank;
  }
  return std::nullopt;
}

Place seen_place(std::uint64_t line, const Findings& findings) {
  return {.file = static_cast<int>(findings.files.size()) - 1, .line = line};
}

}  // namespace

std::optional<Sign> sign_of_last_words(std::string_view line) {
  constexpr std::size_t kLongest = 600;
  const std::string low = in_small_letters(without_comment(line).substr(0, kLongest));
  if (says(low, "only-possible") || low.starts_with('{') || low.starts_with('+')) return std::nullopt;
  const auto sign = sign_by_words("last words", low);
  return sign && role_of(*sign) != Role::Outside && is_for_information(line) ? std::nullopt : sign;
}

void note_last_words(std::string_view text, std::uint64_t last, Findings& findings) {
  constexpr std::size_t kLines = 20, kMostKept = 16;
  std::vector<Finding> found;
  for (std::size_t number = 0; number < kLines && !text.empty() && last > number; ++number) {
    const std::string line = clean_text(take_last_line(text));
    auto& last_line = findings.files.back().last;
    if (!last_line && !trimmed(line).empty()) last_line = {seen_place(last - number, findings), line};
    if (!bar_in(line).empty() || step_in(line)) break;  // training went on after what came before
    const LineMarks marks = marks_of(line);
    if (const auto rank = rank_that_failed(marks.body)) findings.named_failed = rank;
    const auto sign = sign_of_last_words(marks.body);
    if (!sign || is_of_the_scheduler(trimmed(marks.body))) continue;  // Slurm's words are known
    if (role_of(*sign) != Role::Outside && (marks.level == 'I' || marks.level == 'W')) continue;
    SeenLine seen;
    seen.text = line;
    seen.shown = line;
    seen.place = seen_place(last - number, findings);
    found.push_back(finding_in(*sign, marks, seen, findings));
  }
  std::reverse(found.begin(), found.end());
  for (Finding& finding : found)
    if (findings.last_words.size() < kMostKept) findings.last_words.push_back(std::move(finding));
}

namespace {

std::string_view value_of(std::string_view text, std::string_view key) {
  const std::string_view rest = behind(text, key).value_or("");
  return rest.substr(0, rest.find_first_of(",) "));
}

// Sends and receives have their own order, and their sizes differ, as do those of uneven all-to-alls.
bool is_comparable(std::string_view operation) {
  return !operation.empty() && !has_one_of(operation, "SEND|RECV|COALESCED|UNKNOWN");
}

bool has_one_size(std::string_view operation) {
  for (const char* word : {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
    if (operation == word) return true;
  return false;
}

}  // namespace

std::optional<CollectiveWork> parse_work(std::string_view body, std::optional<int> rank) {
  const std::string_view number = value_of(body, "SeqNum="), operation = value_of(body, "OpType=");
  std::string_view digits = number;
  const auto sequence = take_number(digits);
  if (!rank || !sequence || !is_comparable(operation)) return std::nullopt;
  CollectiveWork work;
  work.rank = *rank;
  work.sequence = *sequence;
  work.operation = operation;
  if (has_one_size(operation))
    if (const std::string_view size = value_of(body, "NumelIn="); !size.empty())
      work.operation += fmt::format(" of {}", size);
  const std::size_t group = body.find("[PG "), end = body.find(" Rank", group);
  if (group != npos) work.group = body.substr(group, end - group);
  return work;
}

}  // namespace braid
