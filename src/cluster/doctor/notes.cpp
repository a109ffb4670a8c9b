#include "cluster/doctor/notes.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace braid {

std::optional<WorkerExit> ProcessEnds::feed(std::string_view body) {
  Caught caught, code;
  const Rule* const row = matching_row("process ends", body, caught);
  if (!row) return std::nullopt;
  if (row->name == "block") listed_ = {}, listed_.by_torchrun = true, listed_.root = row->is("root");
  if (row->name == "host") listed_.host = caught.host;
  if (row->name == "listed") listed_.ranks = {*caught.rank}, listed_.local_rank = caught.local_rank;
  if (row->name == "code" && listed_.by_torchrun && !listed_.ranks.empty()) {
    WorkerExit exit = listed_;
    exit.code = *caught.code;
    listed_.ranks.clear();
    return exit;
  }
  if (row->is("torchrun")) return std::nullopt;
  for (const std::string& option : row->options)
    if (match_front("code=%c", option, code)) caught.code = code.code;
  WorkerExit exit;
  if (caught.rank) exit.ranks = {*caught.rank};
  exit.host = caught.host;
  exit.code = caught.signal ? -*caught.signal : caught.code.value_or(0);
  exit.root = row->name != "end" && row->name != "tasks";
  exit.by_torchrun = exit.local = row->name == "local";
  if (exit.local) exit.ranks = {*caught.local_rank};
  if (row->is("raw-kill") && exit.code == SIGKILL) exit.code = -SIGKILL;
  if (row->name == "tasks") {
    exit.host = caught.texts[0];
    take(caught.texts[1], "s");
    exit.ranks = unfold_ranks(caught.texts[1]);
    exit.by_srun = true;
  }
  if (row->name == "named") {
    named_ = std::move(exit);
    return std::nullopt;
  }
  if (!named_ || !exit.ranks.empty()) return exit;
  named_->code = exit.code;
  return std::exchange(named_, std::nullopt);
}

std::optional<RootCauseLine> parse_root_cause(std::string_view body) {
  RootCauseLine line;
  Caught caught;
  auto& [who, what, reason] = caught.texts;
  // "braid: root cause: host b7 (ranks 8-15) cannot be reached from host a12: ...". The first of several hosts counts.
  if (match_inside("braid: root cause: host%* %h (rank%* %r", body, caught))
    return RootCauseLine{.rank = *caught.rank, .host = std::string(caught.host), .reason = kHostCannotBeReached};
  if (!match_inside("braid: root cause: rank %r (host %1) failed in %2: %3", body, caught)) return std::nullopt;
  line.rank = *caught.rank;
  line.host = take_until(who, ", ");
  line.place_in_grid = who;
  line.operation = what;
  line.reason = reason;
  if (line.host == "unknown") line.host.clear();
  return line;
}

// Every rank prints the line; a run that was started again may print another one.
void note_root_cause(const Line& line, Findings& findings) {
  const auto cause = parse_root_cause(line.body());
  if (!cause) return;
  if (!cause->host.empty()) findings.hosts[cause->rank] = cause->host;  // a run that starts again may be elsewhere
  const auto& found = findings.found;
  const auto last = std::find_if(found.rbegin(), found.rend(), [](auto& f) { return f.is(Sign::BraidRootCause); });
  const bool is_told =
      last != found.rend() && last->place.run == line.place.run && last->place.progress + 1 >= line.place.progress;
  if (!is_told) findings.add({line, Sign::BraidRootCause, cause->rank, cause->host, std::string(line.body())});
}

void note_exit(WorkerExit exit, const Line& line, Findings& findings) {
  constexpr std::size_t kMostExits = 4096;
  const LineMarks& marks = line.marks;
  const bool is_labelled = marks.labelled && !exit.root;  // a launcher's own list has ranks in brackets, too
  if (exit.by_torchrun && marks.labelled) exit.node = marks.rank;
  if (exit.ranks.empty() && marks.rank && !is_labelled && !marks.by_name) exit.ranks = {*marks.rank};
  static_cast<Quote&>(exit) = line;
  if (exit.code != 0 && findings.exits.size() < kMostExits) findings.exits.push_back(std::move(exit));
}

namespace {

constexpr std::size_t kLongestBar = 512;  // bytes

// Reads "500/10000", "[  50/1251 (", "100 / 356", but no rates. The largest total counts: others are dates and epochs.
std::optional<Step> fraction_in(std::string_view line) {
  std::optional<Step> best;
  for (std::size_t slash = 0; (slash = line.find('/', slash)) != npos; ++slash) {
    const std::string_view before = trimmed(line.substr(0, slash));
    const std::size_t begin = before.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
    std::string_view first = before.substr(begin), rest = trimmed(line.substr(slash + 1));
    const auto number = take_number(first), total = take_number(rest);
    const bool is_inside =
        (begin > 0 && is_one_of("/.", before[begin - 1])) || (!rest.empty() && is_one_of("/.", rest[0]));
    if (number && total && !is_inside && *number <= *total && *total > 1 && (!best || *total > *best->total))
      best = Step{number, total};
  }
  return best;
}

std::optional<Step> step_of_bar(std::string_view bar) {
  const std::string_view title = take_until(bar, "%|");
  take_until(bar, "|");
  const bool is_training = says(title, "training") && !says(title, "other-work");
  const bool has_name = std::ranges::count_if(title, is_letter) > 2;  // "Map", but not "4.2G"
  return has_name && !is_training && !has(bar, "loss") ? std::nullopt : fraction_in(bar);
}

}  // namespace

std::string_view bar_in(std::string_view line) {
  if (line.size() > kLongestBar) line.remove_prefix(line.size() - kLongestBar);
  for (std::size_t at = 0; (at = line.find('%', at)) != npos; ++at)
    if (line.substr(at + 1).starts_with('|')) {
      const std::string_view last = line.substr(line.rfind('\r') + 1);  // npos + 1 is 0
      return last.find("%|") != npos ? last : line;
    }
  return {};
}

std::optional<Step> step_in(std::string_view line) {
  line = line.substr(0, 1000);
  if (line.substr(0, kLongestBar).find("%|") != npos) return step_of_bar(line);
  if (!says(line, "measure")) return std::nullopt;
  if (Caught caught; matching_row("steps", line, caught)) return Step{caught.number, caught.total};
  // "Epoch [3][50/1000]", "epoch 003:  100 / 356 loss=": the epoch, and the step in it if there is one.
  if (const auto step = fraction_in(line)) return step;
  const auto epoch = number_after(line, "poch");
  return epoch ? std::optional(Step{epoch, std::nullopt}) : std::nullopt;
}

namespace {

// Job scripts print the first losses again at the end of a log: these lines are not progress.
bool is_quotation(std::string_view line, std::set<std::size_t>& first_lines) {
  constexpr std::size_t kFirstLines = 64;
  const std::size_t hash = std::hash<std::string_view>()(trimmed(line));
  return first_lines.size() < kFirstLines ? !first_lines.insert(hash).second : first_lines.contains(hash);
}

}  // namespace

bool note_progress(std::string_view line, Findings& findings) {
  constexpr std::int64_t kStraggling = 10, kFarAhead = 1000;
  const auto step = step_in(line);
  if (!step) return false;
  FileTrace& file = findings.files.back();
  if (is_quotation(line, file.first_steps)) return true;
  if (const auto number = step->number) {
    // Several ranks may report the same iteration; a number far back is a run that started again.
    if (*number <= file.best_iteration && *number > file.best_iteration - kStraggling) return true;
    const bool goes_on = file.best_iteration >= 0 && *number > file.best_iteration;
    file.iterations += goes_on ? std::min(*number - file.best_iteration, kFarAhead) : 1;
    file.best_iteration = *number;
    findings.iteration = number;
    if (step->total) findings.iterations = step->total;
  } else {
    ++file.iterations;
  }
  ++file.progress;
  return true;
}

namespace {

// Slurm's format: "90" minutes, "30:00", "04:00:00", "1-12", "1-00:00:00"; 0 for anything else.
double seconds_of_limit(std::string_view text) {
  const std::string written(take_while(
      text, [](char c) { return is_digit(c) || is_one_of(":-", c); }, 40));
  int days = 0, a = 0, b = 0, c = 0;
  if (std::sscanf(written.c_str(), "%4d-%9d:%9d:%9d", &days, &a, &b, &c) > 1)
    return 86400.0 * days + 3600.0 * a + 60.0 * b + c;
  const int parts = std::sscanf(written.c_str(), "%9d:%9d:%9d", &a, &b, &c);
  return parts == 3 ? 3600.0 * a + 60.0 * b + c : 60.0 * a + b;
}

}  // namespace

void note_context(std::string_view body, Findings& findings) {
  for (const Rule& row : rows_of("facts"))
    if (Caught caught; match_inside(row.anchor, body, caught)) findings.facts.try_emplace(row.name, *caught.number);
  if (mentions_fp8(body) || has(body, "scale_inv")) findings.fp8 = true;
}

void note_limit(const Line& line, Findings& findings) {
  Caught caught;
  const Rule* const row = matching_row("limits", line.body(), caught);
  const double seconds = row ? seconds_of_limit(caught.texts[0]) : 0;
  const auto end = time_at(behind(line.body(), "EndTime=").value_or(""));
  if (seconds == 0 && !end) return;
  if (seconds != 0 || !findings.limit) {  // scontrol has a line for each
    findings.limit = findings.finding_in(Sign::TimeLimit, line);
    findings.limit_s = seconds;
  }
  findings.limit_end = end;
}

void note_reached_limit(std::optional<LogTime> first, std::optional<LogTime> last, Findings& findings) {
  constexpr double kShare = 0.05, kLate = 300;  // programs start after their job; Slurm ends jobs a little late
  if (!findings.limit || !first || !last || findings.files.back().progress == 0) return;
  const double left = findings.limit_end ? seconds_between(*last, *findings.limit_end)
                                         : findings.limit_s - seconds_between(*first, *last);
  if (left <= std::max(kShare * findings.limit_s, 60.0) && left >= -kLate)
    findings.last_words.push_back(*findings.limit);
}

void note_artifacts(const Line& line, Findings& findings) {
  if (!findings.saved_artifacts && has(line.text, "save_hf_weights|save_artifacts|save_hf_pretrained"))
    findings.saved_artifacts = line;
}

void note_absent(std::string_view section, std::string_view body, const Line& line, Findings& findings) {
  if (has(body, "task at the barrier")) body = behind(body, "task names: ").value_or("");  // JAX: not who came
  for (const Rule& row : rows_of(section))
    if (Caught caught; match_inside(row.anchor, body, caught))
      for (const int rank : caught.rank ? std::vector{*caught.rank} : unfold_ranks(caught.ranks))
        findings.add({line, Sign::AbsentRank, rank});
}

// "[PG ID 0 PG GUID 0(default_pg) Rank 1] ... last enqueued NCCL work: 811, last completed NCCL work: 807." or
// "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1024, ...)". Sends and
// receives have their own order, and their sizes differ, as do those of uneven all-to-alls.
void note_work(const Line& line, Findings& findings) {
  const std::string_view body = line.body();
  Caught group, caught, size;
  if (!line.marks.rank) return;
  match_inside("[PG %1 Rank", body, group);
  CollectiveWork work = {line, *line.marks.rank, std::string(group.texts[0])};
  if (match_inside("ast enqueued%*work%N", body, caught)) {
    work.queued = *caught.number;
    work.completed = match_inside("ast completed%*work%N", body, caught) ? *caught.number : work.queued;
    return findings.add_work(work);
  }
  const auto sequence = number_after(body, "SeqNum");
  if (!sequence || !match_inside("OpType=%1,", body, caught) || says(caught.texts[0], "of-two-ranks")) return;
  work.operation = caught.texts[0];
  work.queued = *sequence;
  work.completed = *sequence - 1;
  if (contains(split(words_of("of-one-size"), '|'), work.operation) && match_inside("NumelIn=%1,", body, size))
    work.operation += " of " + std::string(size.texts[0]);
  findings.add_work(work);
}

namespace {

// Lines marked as information or warnings report what went on; only ends from outside are reported in them.
std::optional<Sign> sign_of_last_words(const LineMarks& marks) {
  constexpr std::size_t kLongest = 600;
  const std::string_view line = marks.body, text = trimmed(line);
  // "  hang_limit_s: 300   # end the run when a rank makes no progress": a recipe that a run prints.
  const std::string low = in_small_letters(line.substr(0, line.find("  # ")).substr(0, kLongest));
  const auto sign =
      says(low, "only-possible") || begins(text, "#|{|+") ? std::nullopt : sign_of(row_for("last words", low));
  const bool is_for_information = is_warning(line) || is_information(marks) || has(line, "nWarning|wandb|WARN ");
  const bool is_known = is_of_the_scheduler(text);  // Slurm's words are
  return sign && (is_known || (role_of(*sign) != Role::Outside && is_for_information)) ? std::nullopt : sign;
}

}  // namespace

void note_last_words(std::string_view text, std::uint64_t last, Findings& findings) {
  constexpr std::size_t kLines = 20, kMostKept = 16;
  std::vector<Finding> found;
  for (std::size_t number = 0; number < kLines && !text.empty() && last > number; ++number) {
    Line line;
    line.shown = clean_text(take_last_line(text));
    line.place = {.file = static_cast<int>(findings.files.size()) - 1, .line = last - number};
    line.text = line.shown;
    line.marks = marks_of(line.text);
    auto& last_line = findings.files.back().last;
    if (!last_line && !trimmed(line.text).empty()) last_line = line;
    if (!bar_in(line.text).empty() || step_in(line.text)) break;  // training went on after what came before
    if (Caught caught; matching_row("failed ranks", line.body(), caught)) findings.named_failed = caught.rank;
    if (const auto sign = sign_of_last_words(line.marks)) found.push_back(findings.finding_in(*sign, line));
  }
  for (; !found.empty() && findings.last_words.size() < kMostKept; found.pop_back())
    findings.last_words.push_back(std::move(found.back()));
}

}  // namespace braid
