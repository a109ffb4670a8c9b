// The ways to come to a verdict, each for one kind of end, and what a report explains and advises.
#include <csignal>
#include "base/process.h"
#include "base/strings.h"
#include "cluster/doctor/case.h"
#include "cluster/doctor/line.h"
#include "cluster/doctor/notes.h"
#include "cluster/doctor/report.h"
#include "cluster/doctor/rules.h"
#include "cluster/lines/text.h"

namespace braid {
namespace {

// "It tried to allocate 20.00 GiB on a GPU of 79.11 GiB with 1.20 GiB free and 77.90 GiB in use."; empty when the
// message has no sizes.
std::string gpu_memory_text(std::string_view message) {
  std::string text;
  for (const Rule& row : rows_of("sizes"))
    if (Caught caught; match_inside(row.anchor, message, caught) && (!text.empty() || row.name == "tried"))
      text += fmt::format(fmt::runtime(row.answers[0]), caught.texts[0]);
  if (const std::size_t last = text.rfind(" with "); last != text.find(" with ")) text.replace(last, 6, " and ");
  return text.empty() ? "" : text + ".";
}

// The expert parallel size that would help: "EP 4 puts 64 of 256 experts on each GPU; EP 16 would give 16 experts/GPU."
std::string expert_sizing_text(std::int64_t num_experts, std::int64_t now) {
  std::int64_t more = now;
  // Halving the experts per GPU seldom suffices, so the advice is at least four times the expert parallel size.
  while (more < num_experts && (more < 4 * now || num_experts % more != 0)) more *= 2;
  more = std::min(more, num_experts);
  std::string text = fmt::format("EP {} puts {} of {} experts on each GPU", now, num_experts / now, num_experts);
  if (more > now) text += fmt::format("; EP {} would give {} experts/GPU", more, num_experts / more);
  return text + ".";
}

// "Exit code 137 is SIGKILL (Killed): killed from outside."
std::string exit_code_text(int code) {
  if (const auto signal = signal_of_code(code)) {
    const Rule* const row = row_of_signal(*signal);
    const std::string usual = row ? row->anchor : "a crash in native code";
    return (code < 0 ? "It was ended by " : fmt::format("Exit code {} is ", code)) +
           fmt::format("{}: {}.", describe_signal(*signal), usual);
  }
  for (const Rule& row : rows_of("exit codes"))
    if (row.name == std::to_string(code)) return fmt::format("Exit code {}{}", code, row.anchor);
  return fmt::format("Exit code {} was chosen by the program itself.", code);
}

// "The other 7 ranks ended after it: 7 x SIGTERM."; empty if nothing happened to others.
std::string cascade_text(const Findings& findings, std::optional<int> first_rank) {
  std::set<int> all, timed_out, lost;
  for (const Finding& f : findings.found)
    if (f.rank && f.rank != first_rank && f.role() == Role::Consequence && !f.is(Sign::Stopped))
      (f.is(Sign::ConnectionLost, Sign::NetworkTrouble) ? lost : timed_out).insert(*f.rank);
  for (const int rank : lost) timed_out.erase(rank);  // each is counted once
  std::map<int, std::set<int>> ended;                 // by code
  for (const WorkerExit& exit : findings.exits)
    for (const int rank : exit.ranks)
      if (!exit.local && rank != first_rank) ended[exit.code].insert(rank);
  std::vector<std::string> parts;
  const auto add = [&](const std::set<int>& ranks, const std::string& what) {
    if (!ranks.empty()) parts.push_back(std::to_string(ranks.size()) + what);
    all.insert(ranks.begin(), ranks.end());
  };
  add(lost, " lost a connection");
  add(timed_out, " timed out");
  for (const auto& [code, ranks] : ended) {
    const std::string name = describe_signal(signal_of_code(code).value_or(0));
    add(ranks, signal_of_code(code) ? " x " + name.substr(0, name.find(' ')) : fmt::format(" x exit code {}", code));
  }
  if (all.empty()) return "";
  const std::string who = !first_rank       ? counted(std::ssize(all), "rank") + " ended"
                          : all.size() == 1 ? "Another rank ended after it"
                                            : fmt::format("The other {} ranks ended after it", all.size());
  return fmt::format("{}: {}.", who, joined(parts, ", "));
}

// Adds what the same rank reports right after the error: which weights differ, the exception inside a worker.
void add_details(Case& t, const Finding& cause) {
  for (const Finding* finding : t.live) {
    if (t.result.evidence.size() >= 4) return;
    const bool follows = finding->place.file == cause.place.file && finding->place.line > cause.place.line &&
                         finding->place.line < cause.place.line + 60;
    if (!follows || finding->role() != Role::Cause) continue;
    const bool has_no_rank = !t.result.first_rank && !cause.has_writer;  // workers and libraries print without a prefix
    if (has_no_rank) t.result.first_rank = finding->rank;
    const bool agrees = finding->sign == cause.sign || finding->is(Sign::PythonError) || cause.is(Sign::PythonError) ||
                        cause_of(finding->sign) == t.result.cause;
    if (finding->rank == t.result.first_rank && agrees) t.add_evidence(*finding);
  }
}

void explain_memory(Case& t, const std::string& message) {
  const std::string device = has(message, "TPU|hbm|HBM") ? "TPU" : has(message, "XPU") ? "XPU" : "GPU";
  std::string& text = t.result.explanation;
  t.explain(gpu_memory_text(message));
  for (std::size_t at = 0; (at = text.find("GPU", at)) != npos; ++at) text.replace(at, 3, device);
  if (t.result.cause == Cause::GpuOom && device != "GPU")
    t.fix("Use a smaller batch or sequence, recompute activations, or split the model over more devices.");
}

// Whether no rank can start the program, so that none of them failed first.
bool is_refused_everywhere(const Case& t, const Finding& cause) {
  std::set<int> ranks;
  for (const Finding* finding : t.live)
    if (finding->sign == cause.sign && finding->rank) ranks.insert(*finding->rank);
  for (const WorkerExit& exit : t.findings.exits)
    if (!cause.rank && exit.failed()) ranks.insert(exit.ranks.begin(), exit.ranks.end());
  return cause.is(Sign::NotLaunched, Sign::UvMissing) && ranks.size() > 1;
}

bool diagnose_error(Case& t) {
  const Finding* const cause = t.best_cause();
  if (!cause) return false;
  t.name(*cause, t.refined(*cause));
  if (const Finding* hardware = t.hardware_behind(*cause)) t.add_evidence(*hardware);
  add_details(t, *cause);
  // NCCL's own warnings name a device; if only one rank complains, the device is its own.
  if (!t.result.first_rank && has(cause->text, "NCCL WARN") && t.complained.size() == 1)
    t.result.first_rank = *t.complained.begin();
  if (is_refused_everywhere(t, *cause)) t.blame(std::nullopt);
  if (const Rule* advice = row_for("advice", cause->text, cause->sign)) {
    t.explain(advice->answers.at(0));
    t.fix(advice->answers.at(1));
  }
  if (cause->is(Sign::GpuOom)) explain_memory(t, cause->text);
  if (cause->is(Sign::CollectiveMismatch))  // PyTorch: "Rank 0 is running collective: X, but Rank 1 is running ..."
    if (const std::size_t at = cause->text.find("Rank "); at != npos)
      t.explain("It says: " + cause->text.substr(at, 600));
  if (const std::int64_t experts = t.findings.fact("experts"); t.result.cause == Cause::MoeOom && experts > 0)
    t.fix(expert_sizing_text(experts, std::max<std::int64_t>(t.findings.fact("expert-parallel"), 1)));
  if (rules().kinds[static_cast<std::size_t>(cause->sign)].is_quoted) t.explain("It is: " + cause->text);
  return true;
}

// Parses how Braid says that a process ended: "killed by SIGKILL (Killed)", "SIGBUS (Bus error)", "exited with code 3".
std::optional<int> exit_code_in(std::string_view reason) {
  Caught caught;
  if (match_front("exited with code %c", reason, caught)) return caught.code;
  take(reason, "killed by ");
  return match_front("%S (", reason, caught) ? std::optional(128 + *caught.signal) : std::nullopt;
}

Cause cause_in_reason(std::string_view reason) {
  if (reason == kHostCannotBeReached) return Cause::NodeFailure;
  if (has(reason, "DataError|outside the vocabulary") || reason.starts_with("sample ")) return Cause::DataRankCascade;
  const Cause by_signal = cause_of_signal(signal_of_code(exit_code_in(reason).value_or(0)).value_or(0));
  if (by_signal != Cause::Unknown) return by_signal;
  const auto sign = sign_in(reason);
  return sign && role_of(*sign) == Role::Cause ? cause_of(*sign) : Cause::BraidFailure;
}

bool is_loss_of_peer(const RootCauseLine& line) {
  return has(line.reason, "without finishing|no heartbeat|no sign of life");  // the last by earlier versions
}

// Slurm names the node that failed, by its short name; Braid names the rank on it that was lost first.
std::optional<int> rank_lost_with(const Case& t, const Finding& end) {
  const auto line = t.braid ? parse_root_cause(t.braid->text) : std::nullopt;
  const bool same_node = line && !end.host.empty() && split(line->host, '.')[0] == split(end.host, '.')[0];
  return same_node && is_loss_of_peer(*line) ? std::optional(line->rank) : std::nullopt;
}

bool diagnose_braid_report(Case& t) {
  if (!t.braid) return false;
  const RootCauseLine line = *parse_root_cause(t.braid->text);
  // A node that is gone, or Slurm's end of the job, explains a rank that is gone.
  const auto explains = [](const Finding& f) { return f.role() == Role::Outside && !f.is(Sign::StepCancelled); };
  if (is_loss_of_peer(line) && t.earliest(explains)) return false;
  Cause cause = cause_in_reason(line.reason);
  for (const WorkerExit& exit : t.findings.exits) {
    if (!is_loss_of_peer(line) || !exit.is_of(line.rank)) continue;
    // The failure board only sees that a connection ended; srun reports how the process ended.
    if (exit.was_killed()) cause = cause_of_signal(*exit.signal());
    t.note_exit(exit);
    t.add_evidence(exit);
  }
  t.blame(line.rank, line.host);
  if (!t.result.exit_code) t.result.exit_code = exit_code_in(line.reason);
  t.conclude(cause, *t.braid);
  if (!line.operation.empty())  // a line about a host names none
    t.explain(fmt::format("Rank {} ({}) was in {}: {}", line.rank, line.place_in_grid, line.operation, line.reason));
  return true;
}

// "Node failure on HOST" names the node; the host in "JOB 7 ON HOST CANCELLED ... DUE TO NODE FAILURE" is the batch
// host. Schedulers announce an end by a signal; the signal is not the cause.
const Finding* earliest_end(const Case& t) {
  const Finding* end = t.first(Sign::NodeFailure, Sign::CgroupOom);
  const Finding* const at_host =
      t.earliest([](const Finding& f) { return f.is(Sign::NodeFailure) && !f.host.empty(); });
  if (at_host && end->is(Sign::NodeFailure)) end = at_host;
  // A node that was taken away looks like one that failed; but after a failure, too, a job is put back into the queue,
  // and pods are taken from their node.
  const Finding* const preempted =
      t.earliest([](const Finding& f) { return f.is(Sign::Preempted) && !has(f.text, "REQUEUE|TaintManager"); });
  if (end) return end->is(Sign::NodeFailure) && preempted ? preempted : end;
  return t.first(Sign::TimeLimit, Sign::Preempted, Sign::JobCancelled);
}

// The ranks of a job may report lost peers up to a minute before Slurm logs that the job's time is over.
bool is_limit_logged_late(const Case& t, const Finding& end) {
  constexpr double kLate = 60;  // seconds; a job that failed earlier waits longer for its end
  const auto failure = t.first_failure();
  return end.is(Sign::TimeLimit) && failure && failure->time && end.place.time &&
         seconds_between(*failure->time, *end.place.time) < kLate;
}

bool diagnose_outside_end(Case& t) {
  const Finding* end = earliest_end(t);
  const Finding* const hang = t.first_time_out();
  const bool is_sudden = end && end->is(Sign::NodeFailure, Sign::CgroupOom);
  if (end && !is_sudden && hang && earlier(hang->place, end->place)) return false;
  // After a failure, users cancel the job, or it waits until its time is over.
  const bool may_follow = end && end->is(Sign::JobCancelled, Sign::TimeLimit);
  if (may_follow && t.failed_before(end->place) && !is_limit_logged_late(t, *end)) return false;
  const bool has_codes = t.findings.any_exit([](const WorkerExit& e) { return e.code != 0 && !e.signal(); });
  if (!end && !hang)  // srun cancels the rest of a step after some of its tasks ended with a code of their own
    end = t.earliest([&](const Finding& f) {
      return f.role() == Role::Outside && !(f.is(Sign::StepCancelled) && has_codes) && !t.failed_before(f.place);
    });
  if (!end) return false;
  t.name(*end, cause_of(end->sign));
  if (!is_sudden) t.blame(rank_told_by(end->sign, end->text));  // nothing failed, nowhere
  if (end->is(Sign::NodeFailure) && !t.result.first_rank) t.result.first_rank = rank_lost_with(t, *end);
  // slurmstepd knows the step, srun the task.
  if (!end->is(Sign::CgroupOom) || t.result.first_rank) return true;
  const Finding* const missed = t.earliest([](const Finding& f) { return f.rank && f.is(Sign::NodeFailure); });
  if (t.culprit || missed) t.result.first_rank = t.culprit ? t.rank_of(*t.culprit) : missed->rank;
  return true;
}

bool conclude_success(Case& t) {
  t.result.failed = false;
  return t.conclude_at_end(Cause::Success);
}

const WorkerExit* find_bad_exit(const Case& t) {
  return t.findings.find_exit([](const WorkerExit& e) { return e.code != 0; });
}

// A run that completed may still report connections that its end closed.
bool diagnose_success(Case& t) {
  const auto& files = t.findings.files;
  const auto file =
      std::find_if(files.rbegin(), files.rend(), [](const FileTrace& f) { return f.good_end.place.line > 0; });
  if (file == files.rend() || t.result.exit_code.value_or(0) != 0 || find_bad_exit(t)) return false;
  t.add_evidence(file->good_end);
  return conclude_success(t);
}

// The first process that ended was killed, and no line says why.
bool diagnose_kill(Case& t) {
  const WorkerExit* const signalled =
      t.findings.find_exit([](const WorkerExit& e) { return e.ranks.empty() && e.was_killed(); });
  // DeepSpeed reports a signal without a rank, then srun reports the exit code of the node.
  const bool is_told_later = t.culprit && t.culprit->by_srun && signalled;
  const WorkerExit* const exit = t.culprit && !is_told_later ? t.culprit : signalled;
  const Finding* const hang = t.first_time_out();
  if (!exit || !exit->signal() || exit->was_stopped() || (hang && !exit->root)) return false;
  const int signal = *exit->signal();
  if (signal == SIGABRT && (hang || t.first(Sign::NetworkTrouble, Sign::RendezvousFailed, Sign::ConnectionLost)))
    return false;
  // A rank that reported an exception may crash while it exits.
  if (t.earliest([&](const Finding& f) { return f.is_wait() && f.traceback && exit->is_of(f.rank); })) return false;
  t.blame(exit->ranks.empty() ? std::nullopt : t.rank_of(*exit), exit->host);
  t.note_exit(*exit);
  const Finding* const crash = t.first(Sign::NativeCrash);
  if (exit->ranks.empty() && crash) t.result.first_rank = crash->rank;
  t.conclude(cause_of_signal(signal), *exit);
  t.explain(exit_code_text(exit->code));
  return true;
}

// A process got SIGTERM or crashed, and others may have lost their connection to it.
bool diagnose_crash(Case& t) {
  const Finding *const crash = t.first(Sign::NativeCrash), *const lost = t.first(Sign::ConnectionLost);
  if (t.culprit && t.culprit->root && !t.culprit->local && t.culprit->was_stopped() && (crash || lost)) {
    t.result.first_rank = t.culprit->ranks[0];
    return t.conclude(Cause::Unknown, crash ? *crash : *lost, "asked-to-end");
  }
  // NCCL's watchdog ends its process by an uncaught exception.
  const bool is_end_of_watchdog = crash && lost &&
                                  (earlier(lost->place, crash->place) ||
                                   (has(crash->text, "terminate called") && lost->place.file == crash->place.file));
  return crash && !is_end_of_watchdog && t.name(*crash, Cause::Segfault);
}

bool diagnose_remark(Case& t) {
  for (const Finding& remark : t.findings.remarks) {
    if (says(remark.text, "goes-on-without") || t.findings.survived(remark.place)) continue;
    if (const auto sign = sign_of_words(remark.text)) return t.name(remark, cause_of(*sign));
  }
  return false;
}

// Lines that name a reason take precedence over lost connections and time-outs.
bool diagnose_last_words(Case& t) {
  const auto& all = t.findings.last_words;
  if (all.empty()) return false;
  const auto reason = std::ranges::find_if(all, [](const Finding& f) { return f.role() != Role::Consequence; });
  const Finding& telling = reason == all.end() ? all.front() : *reason;
  t.name(telling, cause_of(telling.sign));
  t.add_last_line();
  return true;
}

// Explains an exit code, and quotes what was said last.
bool explain_exit_code(Case& t, int code) {
  t.explain(exit_code_text(code));
  const auto& remarks = t.findings.remarks;
  for (std::size_t i = remarks.size() - std::min<std::size_t>(remarks.size(), 3); i < remarks.size(); ++i)
    t.add_evidence(remarks[i]);
  return true;
}

bool diagnose_process_end(Case& t) {
  const WorkerExit* const exit = t.culprit ? t.culprit : find_bad_exit(t);
  if (!exit) return false;
  if (t.culprit) t.blame(t.rank_of(*exit), exit->host);
  t.note_exit(*exit);
  // The exit codes of shells and `timeout` have a meaning of their own.
  const bool is_not_started = (exit->code == 126 || exit->code == 127) && exit->place.progress == 0;
  const Cause cause = exit->code == 124 ? Cause::TimeLimit : is_not_started ? Cause::NotLaunched : Cause::Unknown;
  t.conclude(cause, *exit);
  if (cause == Cause::TimeLimit) t.blame(std::nullopt);
  return explain_exit_code(t, exit->code);
}

bool diagnose_refusal(Case& t) {
  if (t.findings.program_spoke || t.findings.refusals.empty()) return false;
  for (const Finding& refusal : t.findings.refusals) t.add_evidence(refusal);
  t.conclude_at_end(Cause::Unknown, "refused");
  t.explain("It says: " + t.findings.refusals.front().text);
  return true;
}

bool diagnose_empty_log(Case& t) {
  const bool is_empty = std::ranges::all_of(t.findings.files, [](const FileTrace& file) { return file.bytes == 0; });
  if (signal_of_code(t.result.exit_code.value_or(0)) || (!is_empty && t.findings.program_spoke))
    return false;  // what a signal ended had started
  t.result.failed = false;
  return t.conclude_at_end(Cause::NotLaunched, is_empty ? "empty-log" : "no-output");
}

bool diagnose_exit_code(Case& t) {
  if (!t.result.exit_code) return false;
  const int code = *t.result.exit_code;
  if (code == 0) return conclude_success(t);
  t.conclude_at_end(cause_of_signal(signal_of_code(code).value_or(0)));
  return explain_exit_code(t, code);
}

bool diagnose_silence(Case& t) {
  const Findings& f = t.findings;
  t.result.failed = false;
  t.conclude_at_end(Cause::Unknown, "no-end");
  if (f.iteration && f.iterations && *f.iteration < *f.iterations)
    t.explain(fmt::format("It stops at iteration {} of {}.", *f.iteration, *f.iterations));
  t.explain("The job is still running, was killed without a message, or ended without a message.");
  return true;
}

// The first way that comes to a verdict counts, so this order is the precedence of causes.
constexpr bool (*kWays[])(Case&) = {
    diagnose_error,         // an error that a line names
    diagnose_braid_report,  // Braid's root cause line
    diagnose_outside_end,   // a scheduler, a node or a terminal ended the job
    diagnose_success,       // the run completed
    diagnose_mismatch,      // ranks called different collectives
    diagnose_kill,          // a signal ended the first process
    diagnose_rendezvous,    // the ranks never met
    diagnose_time_out,      // ranks waited for another one
    diagnose_crash,         // native code crashed
    diagnose_lost_peer,     // a connection was lost
    diagnose_remark,        // an error without a known format
    diagnose_last_words,    // plain words at the end of the log
    diagnose_process_end,   // an exit code that a launcher reports
    diagnose_refusal,       // Slurm refused the job
    diagnose_empty_log,     // the log is empty
    diagnose_exit_code,     // the exit code of the whole job
    diagnose_stall,         // ranks that others wait for when the log ends
    diagnose_silence,       // always comes to a verdict
};

// Adds what launchers and other ranks reported after the cause.
void close_failure(Case& t) {
  const Findings& findings = t.findings;
  std::optional<int>& first_rank = t.result.first_rank;
  std::string& first_host = t.result.first_host;
  const bool of_whole_job = !text_of(t.result.cause).get("of").empty();
  if (t.braid) t.add_evidence(*t.braid);
  if (t.culprit) t.add_evidence(*t.culprit);
  for (const Sign sign :
       {Sign::NodeFailure, Sign::TimeLimit, Sign::CollectiveTimeout, Sign::UniqueIdTimeout, Sign::ConnectionLost})
    if (const Quote* other = t.first(sign); other && t.result.evidence.size() < 5) t.add_evidence(*other);
  if (findings.end_contradicted)
    t.explain(
        "Its script still ended with exit code 0: a pipe has the exit code of its last command, unless the script uses "
        "`set -o pipefail`.");
  if (!first_rank && !of_whole_job) first_rank = findings.named_failed;
  // Whether the log is of a single rank that is not the one that reports for all.
  const auto only = findings.ranks.begin();
  const bool is_of_one = findings.ranks.size() == 1 && only->first > 0 && only->second.lines > 1;
  if (!first_rank && is_of_one && (!of_whole_job || t.result.cause == Cause::Network)) first_rank = only->first;
  if (first_rank && first_host.empty() && findings.hosts.contains(*first_rank))
    first_host = findings.hosts.at(*first_rank);
  // "srun: error: n3: tasks 9-10: Exited with exit code 1"
  const WorkerExit* const shared = findings.find_exit([&](const WorkerExit& e) {
    return first_rank && std::ranges::find(e.ranks, *first_rank) != e.ranks.end() && e.failed() && !e.local;
  });
  for (const WorkerExit* exit : {shared, t.culprit})
    if (exit) t.note_exit(*exit);
  t.result.cascade = cascade_text(findings, first_rank);
}

}  // namespace

bool Case::conclude_at_end(Cause cause, std::string_view variant) {
  if (result.evidence.empty()) add_last_line();
  result.cause = cause;
  const CauseText& text = variant.empty() ? text_of(cause) : text_named(variant);
  explain(fmt::format(fmt::runtime(text.get("meaning")), result.first_rank.value_or(0)));
  if (!text.get("fix").empty() && !variant.empty()) fix(fix_in(text, "fix"));
  return true;
}

bool Case::name(const Finding& finding, Cause cause) {
  blame(finding.rank, finding.host);
  if (!finding.rank && finding.role() != Role::Outside) result.first_rank = culprit_rank();
  const CauseText& text = text_of(cause);
  const bool is_in_step = finding.traceback && !finding.raised("saving");
  if (!text.get("saving").empty() && !is_in_step && came_while_saving(finding)) fix(fix_in(text, "saving"));
  return conclude(cause, finding, finding.is(Sign::WrongArguments) ? "arguments" : "");
}

void Case::add_evidence(const Quote& line) {
  constexpr std::size_t kMostEvidence = 8;
  const std::string& file = findings.file_of(line.place).name;
  const bool there = std::ranges::any_of(
      result.evidence, [&](const Evidence& e) { return e.file == file && e.line == line.place.line; });
  if (!there && result.evidence.size() < kMostEvidence)
    result.evidence.push_back({file, line.place.line, line.shown, line.focus});
}

void Case::add_last_line() {
  const auto file = std::find_if(findings.files.rbegin(), findings.files.rend(), [](auto& f) { return f.last; });
  if (file != findings.files.rend()) add_evidence(*file->last);
}

std::string Case::fix_in(const CauseText& text, std::string_view key) const {
  std::string fix = text.get(key);
  for (const std::string& launcher : findings.launchers) add_sentence(fix, text.get(launcher));
  return fix;
}

Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code) {
  Case t(findings, exit_code);
  std::ranges::any_of(kWays, [&](auto way) { return way(t); });
  if (t.result.failed) close_failure(t);
  const CauseText& text = text_of(t.result.cause);
  if (t.result.fix.empty() || t.result.cause == Cause::MoeOom) {
    const std::string more = std::exchange(t.result.fix, t.fix_in(text, "fix"));
    t.fix(more);
  }
  return std::move(t.result);
}

}  // namespace braid
