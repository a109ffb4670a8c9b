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
  if (match_inside("braid: root cause: host%1 (rank%2) cannot be reached from host ", body, caught)) {
    take(what, "s");
    const std::vector<int> ranks = unfold_ranks(what.substr(0, what.find(')')));
    if (ranks.empty()) return std::nullopt;
    line.rank = ranks.front();
    line.host = behind(who, " ").value_or("");
    line.reason = kHostCannotBeReached;
    return line;
  }
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
  constexpr std::size_t kMostRootCauses = 64;
  auto cause = parse_root_cause(line.body());
  if (!cause) return;
  static_cast<Quote&>(*cause) = line;
  if (!cause->host.empty()) findings.hosts[cause->rank] = cause->host;  // a run that starts again may be elsewhere
  std::vector<RootCauseLine>& all = findings.braid;
  const bool is_told =
      !all.empty() && all.back().place.run == line.place.run && all.back().place.progress + 1 >= line.place.progress;
  if (!is_told && all.size() < kMostRootCauses) all.push_back(std::move(*cause));
}

void note_exit(WorkerExit exit, const Line& line, Findings& findings) {
  const LineMarks& marks = line.marks;
  const bool is_labelled = marks.labelled && !exit.root;  // a launcher's own list has ranks in brackets, too
  if (exit.by_torchrun && marks.labelled) exit.node = marks.rank;
  if (exit.ranks.empty() && marks.rank && !is_labelled && !marks.by_name) exit.ranks = {*marks.rank};
  if (exit.code != 0) findings.add_exit(std::move(exit), line);
}

std::optional<int> note_spawned_exit(std::string_view body, const Line& line, Findings& findings) {
  Caught caught, end;
  if (!match_inside("rocess %r ", body, caught)) return std::nullopt;
  WorkerExit exit;
  exit.ranks = {*caught.rank};
  exit.code = 1;  // "with the following error"
  exit.root = true;
  if (match_inside("with signal %S", body, end)) exit.code = -*end.signal;
  if (match_inside("with exit code %c", body, end)) exit.code = *end.code;
  note_exit(std::move(exit), line, findings);
  return caught.rank;
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

// Whether the title of a bar contains a name: "Map", but not "4.2G".
bool has_name(std::string_view title) {
  std::size_t letters = 0;
  return std::ranges::any_of(title, [&](char c) { return (letters = is_letter(c) ? letters + 1 : 0) == 3; });
}

std::optional<Step> step_of_bar(std::string_view bar) {
  const std::string_view title = take_until(bar, "%|");
  take_until(bar, "|");
  const bool is_training = says(title, "training") && !says(title, "other-work");
  return has_name(title) && !is_training && !has(bar, "loss") ? std::nullopt : fraction_in(bar);
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
  // Hugging Face reports only fractions of an epoch: {'loss': 0.39, ..., 'epoch': 1.36}
  if (has(line, "'loss': ") && has(line, "'epoch': ")) return Step{};
  // "Epoch [3][50/1000]", "epoch 003:  100 / 356 loss=": the epoch, and the step in it if there is one.
  if (const auto step = fraction_in(line)) return step;
  const auto epoch = number_after(line, "poch");
  return epoch ? std::optional(Step{epoch, std::nullopt}) : std::nullopt;
}

// Job scripts print the first losses again at the end of a log: these lines are not progress.
bool ProgressWatch::is_quotation(std::string_view line) {
  constexpr std::size_t kFirstLines = 64;
  const std::size_t hash = std::hash<std::string_view>()(trimmed(line));
  return first_lines_.size() < kFirstLines ? !first_lines_.insert(hash).second : first_lines_.contains(hash);
}

bool ProgressWatch::take(std::string_view line, Findings& findings) {
  constexpr std::int64_t kStraggling = 10, kFarAhead = 1000;
  const auto step = step_in(line);
  if (!step) return false;
  if (is_quotation(line)) return true;
  FileTrace& file = findings.files.back();
  if (const auto number = step->number) {
    // Several ranks may report the same iteration; a number far back is a run that started again.
    if (*number <= best_iteration_ && *number > best_iteration_ - kStraggling) return true;
    const bool goes_on = best_iteration_ >= 0 && *number > best_iteration_;
    file.iterations += goes_on ? std::min(*number - best_iteration_, kFarAhead) : 1;
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

}  // namespace

void note_context(std::string_view body, Findings& findings) {
  const std::map<std::string_view, std::optional<std::int64_t>*> numbers = {
      {"experts", &findings.num_experts},
      {"expert-parallel", &findings.expert_parallel},
      {"world", &findings.world_size}};
  for (const Rule& row : rows_of("facts"))
    if (auto& number = *numbers.at(row.name); !number) number = number_after(body, row.anchor);
  if (Caught caught; !findings.world_size && match_inside(", MEMBER: %n%N", body, caught))  // Lightning
    findings.world_size = caught.number;
  if (mentions_fp8(body) || has(body, "scale_inv")) findings.fp8 = true;
}

void note_limit(const Line& line, Findings& findings) {
  double seconds = 0;
  for (const char* key : {"TimeLimit=", "--time=", "#SBATCH -t ", "ime limit"})
    if (auto rest = behind(line.body(), key); rest && seconds == 0) {
      take_while(*rest, [](char c) { return is_one_of(" :=", c); });
      seconds = seconds_of_limit(*rest);
    }
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
  constexpr std::size_t kMostAbsent = 1000;
  if (has(body, "task at the barrier")) body = behind(body, "task names: ").value_or("");  // JAX: not who came
  for (const Rule& row : rows_of(section))
    if (Caught caught; match_inside(row.anchor, body, caught))
      for (const int rank : caught.rank ? std::vector{*caught.rank} : unfold_ranks(caught.ranks)) {
        if (findings.named_absent.size() == kMostAbsent) return;
        findings.named_absent.push_back(findings.finding_in(Sign::AbsentRank, line));
        findings.named_absent.back().rank = rank;
      }
}

// "[PG ID 0 PG GUID 0(default_pg) Rank 1] ... last enqueued NCCL work: 811, last completed NCCL work: 807." or
// "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1024, ...)". Sends and
// receives have their own order, and their sizes differ, as do those of uneven all-to-alls.
void note_work(const Line& line, Findings& findings) {
  const std::string_view body = line.body();
  if (!line.marks.rank) return;
  const std::size_t begin = body.find("[PG "), end = body.find(" Rank", begin);
  CollectiveWork work = {line, *line.marks.rank, std::string(begin == npos ? "" : body.substr(begin, end - begin))};
  if (const auto queued = number_after(behind(body, "ast enqueued").value_or(""), "work")) {
    work.queued = *queued;
    work.completed = number_after(behind(body, "ast completed").value_or(""), "work").value_or(*queued);
    return findings.add_work(work);
  }
  const auto sequence = number_after(body, "SeqNum");
  Caught operation, size;
  if (!sequence || !match_inside("OpType=%1,", body, operation) || says(operation.texts[0], "of-two-ranks")) return;
  work.operation = operation.texts[0];
  work.queued = *sequence;
  work.completed = *sequence - 1;
  if (contains(split(words_of("of-one-size"), '|'), work.operation) && match_inside("NumelIn=%1,", body, size))
    work.operation += " of " + std::string(size.texts[0]);
  findings.add_work(work);
}

namespace {

// Any launcher may name the rank: "task rank 3 on host n2 failed".
std::optional<int> rank_that_failed(std::string_view line) {
  constexpr std::size_t kNear = 60;
  for (std::size_t at = 1; (at = line.find("ank ", at)) != npos; ++at) {
    Caught caught;
    const auto length = match_front("ank %r", line.substr(at), caught);
    const std::string_view near = line.substr(at + length.value_or(0), kNear);
    if (length && !trimmed(line.substr(0, at - 1)).ends_with("ocal") && !begins(near, "]|)") &&
        says(near, "rank-ended"))
      return caught.rank;
  }
  return std::nullopt;
}

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
    if (const auto rank = rank_that_failed(line.body())) findings.named_failed = rank;
    if (const auto sign = sign_of_last_words(line.marks)) found.push_back(findings.finding_in(*sign, line));
  }
  for (; !found.empty() && findings.last_words.size() < kMostKept; found.pop_back())
    findings.last_words.push_back(std::move(found.back()));
}

}  // namespace braid
