// How a run ended: from outside, well, by a signal, or without a word.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "cluster/doctor/events/exception_signs.h"
#include "cluster/doctor/events/launcher_lines.h"
#include "cluster/doctor/lines/signals.h"
#include "cluster/doctor/lines/text_parts.h"
#include "cluster/doctor/verdict/culprit.h"
#include "cluster/doctor/verdict/details.h"
#include "cluster/doctor/verdict/verdicts.h"

namespace braid {
namespace {

// "Node failure on HOST" names the node; the host in "JOB 7 ON HOST CANCELLED ... DUE TO NODE FAILURE" is the batch
// host. Schedulers announce an end by a signal; the signal is not the cause.
const Finding* earliest_end(const Trial& t) {
  const auto first = [&](auto wanted) { return t.suspects.earliest(wanted); };
  const Finding* end =
      first([](const Finding& f) { return f.sign == Sign::NodeFailure && (!f.host.empty() || f.rank); });
  const Finding* killed = first([](const Finding& f) { return f.sign == Sign::CgroupOom; });
  if (end && killed && earlier(killed->place, end->place)) return killed;  // its heartbeats are missed later
  if (!end) end = first([](const Finding& f) { return f.sign == Sign::NodeFailure || f.sign == Sign::CgroupOom; });
  // A node that was taken away looks like one that failed; but after a failure, too, a job is put back into the queue,
  // and pods are taken from their node.
  const Finding* preempted = first([](const Finding& f) {
    return f.sign == Sign::Preempted && !has_word(f.text, "REQUEUE") && !has_word(f.text, "TaintManager");
  });
  if (end && end->sign == Sign::NodeFailure && preempted) return preempted;
  if (!end)
    end = first([](const Finding& f) {
      return f.sign == Sign::TimeLimit || f.sign == Sign::Preempted || f.sign == Sign::JobCancelled;
    });
  return end ? end : first([](const Finding& f) { return f.sign == Sign::Hangup; });
}

// The torchruns of two nodes may both report their local rank 0; the log does not say which one failed first.
std::optional<int> rank_of(const WorkerExit& exit, const Trial& t) {
  return is_of_several_nodes(exit, t.findings) ? std::nullopt : std::optional(exit.ranks[0]);
}

// slurmstepd knows the step, srun the task.
void rank_out_of_memory(Trial& t) {
  if (const Finding* task = t.suspects.earliest([](const Finding& f) { return f.sign == Sign::CgroupOom && f.rank; }))
    t.result.first_rank = task->rank;
  else if (t.culprit && signal_of_code(t.culprit->code) == SIGKILL)
    t.result.first_rank = rank_of(*t.culprit, t);
  else if (const Finding* missed =
               t.suspects.earliest([](const Finding& f) { return f.sign == Sign::NodeFailure && f.rank; }))
    t.result.first_rank = missed->rank;
}

void rank_on_dead_node(Trial& t) {
  if (t.braid && (t.braid->host == t.result.first_host || t.result.first_host.empty())) {
    t.result.first_rank = t.braid->rank;
    t.result.first_host = t.braid->host;
    t.draft.add_evidence(QuotedLine{t.braid->place, t.braid->text});
    return;
  }
  if (t.result.first_host.empty()) return;
  for (const auto& [rank, host] : t.findings.hosts)
    if (host == t.result.first_host && !t.result.first_rank) t.result.first_rank = rank;
}

const WorkerExit* find_bad_exit(const Trial& t) {
  const auto bad = std::find_if(t.findings.exits.begin(), t.findings.exits.end(),
                                [&](auto& e) { return e.code != 0 && !t.findings.survived(e.place); });
  return bad == t.findings.exits.end() ? nullptr : &*bad;
}

// A daemon or a heartbeat that others miss, after a process that ended by a signal or had trouble with its network.
bool is_explained(const Trial& t, const Finding& loss) {
  if (loss.sign != Sign::NodeFailure || (!has_word(loss.text, "daemon") && !has_word(loss.text, "eartbeat")))
    return false;
  const bool is_daemon = has_word(loss.text, "daemon");
  const Finding* crash = t.suspects.earliest([&](const Finding& f) {
    return f.sign == Sign::NativeCrash || (is_daemon && f.sign == Sign::NetworkTrouble && f.rank);
  });
  if (crash && earlier(crash->place, loss.place)) return true;
  return std::any_of(t.findings.exits.begin(), t.findings.exits.end(), [&](const WorkerExit& e) {
    const auto signal = signal_of_code(e.code);
    return signal && cause_of_signal(*signal) != Cause::Unknown && earlier(e.place, loss.place);
  });
}

// What srun does to a step after some of its tasks ended with an exit code of their own.
bool is_rest(const Trial& t, const Finding& end) {
  return end.sign == Sign::StepCancelled &&
         std::any_of(t.findings.exits.begin(), t.findings.exits.end(), [&](const WorkerExit& e) {
           return e.code != 0 && !signal_of_code(e.code) && earlier(e.place, end.place);
         });
}

void succeed(Trial& t) {
  t.result.failed = false;
  t.draft.explain(text_of(Cause::Success).meaning);
}

// A process without a rank that a signal ended.
const WorkerExit* find_signalled(const Trial& t) {
  for (const WorkerExit& exit : t.findings.exits) {
    const auto signal = signal_of_code(exit.code);
    if (exit.ranks.empty() && signal && cause_of_signal(*signal) != Cause::Unknown && !t.findings.survived(exit.place))
      return &exit;
  }
  return nullptr;
}

// What shells and `timeout` say by their own exit codes.
Cause cause_of_code(const WorkerExit& exit) {
  constexpr int kTimedOut = 124, kCannotExecute = 126, kNotFound = 127;
  if (exit.code == kTimedOut) return Cause::TimeLimit;
  const bool is_not_started = (exit.code == kCannotExecute || exit.code == kNotFound) && exit.place.progress == 0;
  return is_not_started ? Cause::NotLaunched : Cause::Unknown;
}

void last_remarks(Trial& t) {
  const std::size_t from = t.findings.remarks.size() > 3 ? t.findings.remarks.size() - 3 : 0;
  for (std::size_t i = from; i < t.findings.remarks.size(); ++i) t.draft.add_evidence(t.findings.remarks[i]);
}

}  // namespace

Verdict by_outside(Trial& t) {
  const Finding* end = earliest_end(t);
  if (end && is_explained(t, *end)) return {};
  const Finding* hang = t.suspects.first_time_out();
  const bool is_sudden = end && (end->sign == Sign::NodeFailure || end->sign == Sign::CgroupOom);
  if (end && !is_sudden && hang && earlier(hang->place, end->place)) return {};
  // Who sees that a run failed cancels the job, or lets it wait until its time is over.
  const bool may_follow = end && (end->sign == Sign::JobCancelled || end->sign == Sign::TimeLimit);
  if (may_follow && t.suspects.failed_before(end->place) && !t.suspects.is_limit_logged_late(*end)) return {};
  const auto failed = t.suspects.culprit_rank();
  const bool was_ended = failed && t.culprit && t.suspects.was_told_to_end(*failed, t.culprit->place);
  if (!end && !hang && (!failed || was_ended))
    end = t.suspects.earliest([&](const Finding& f) {
      return role_of(f.sign) == Role::Outside && !is_rest(t, f) && !t.suspects.failed_before(f.place);
    });
  if (!end) return {};
  if (cause_of(end->sign) == Cause::Cancelled)  // by whom, others may say in words of their own
    for (const Finding& words : t.findings.last_words)
      if (words.sign == Sign::TimeLimit || words.sign == Sign::Preempted || words.sign == Sign::NodeFailure) {
        end = &words;
        break;
      }
  const Verdict verdict = t.name(*end, cause_of(end->sign));
  if (!is_sudden) t.result.first_host.clear();  // nothing failed, nowhere
  if (!is_sudden) t.result.first_rank = rank_told_by(end->sign, end->text);
  if (end->sign == Sign::CgroupOom && !t.result.first_rank) rank_out_of_memory(t);
  if (end->sign == Sign::NodeFailure) rank_on_dead_node(t);
  return verdict;
}

// What is left of a run that came to its end are connections that went with it.
Verdict by_good_end(Trial& t) {
  const FileTrace* file = t.findings.good_end();
  const bool code_is_bad = t.result.exit_code.value_or(0) != 0;
  if (!file || code_is_bad || t.culprit || t.suspects.first_time_out() || find_bad_exit(t)) return {};
  if (t.suspects.earliest([](const Finding& f) { return role_of(f.sign) == Role::Cause; })) return {};
  succeed(t);
  const Place place = {.file = static_cast<int>(file - t.findings.files.data()), .line = file->good_end};
  return t.draft.conclude(Cause::Success, QuotedLine{place, file->end_text});
}

// The first process to go was killed, and nothing else says why.
Verdict by_kill(Trial& t) {
  const WorkerExit* const signalled = find_signalled(t);
  // DeepSpeed tells of a signal but not of a rank, then srun of its node's exit code.
  const bool is_told_later = t.culprit && t.culprit->by_srun && signalled && !signal_of_code(t.culprit->code) &&
                             earlier(signalled->place, t.culprit->place);
  const WorkerExit* exit = t.culprit && !is_told_later ? t.culprit : signalled;
  if (!exit) return {};
  const auto signal = signal_of_code(exit->code);
  const Finding* hang = t.suspects.first_time_out();
  if (!signal || *signal == SIGTERM || (hang && earlier(hang->place, exit->place) && !exit->root)) return {};
  const auto is_loss_before = [&](const Finding& f) {
    return (f.sign == Sign::NetworkTrouble || f.sign == Sign::RendezvousFailed || f.sign == Sign::ConnectionLost) &&
           earlier(f.place, exit->place);
  };
  if (*signal == SIGABRT && (hang || t.suspects.earliest(is_loss_before))) return {};
  // What a rank said before it crashed on its way out.
  const Finding* said = t.suspects.earliest([&](const Finding& f) {
    return role_of(f.sign) == Role::Consequence && f.traceback && exit->ranks == std::vector{f.rank.value_or(-1)};
  });
  if (said && *signal != SIGKILL) return {};
  Cause cause = cause_of_signal(*signal);
  for (const Finding& words : t.findings.last_words)
    if (cause == Cause::Killed && words.sign == Sign::CgroupOom) {
      cause = Cause::HostOom;
      t.draft.add_evidence(words);
    }
  const Finding* crash = t.suspects.earliest([](const Finding& f) { return f.sign == Sign::NativeCrash && f.rank; });
  if (!exit->ranks.empty())
    t.result.first_rank = rank_of(*exit, t);
  else if (crash && cause == Cause::Segfault)
    t.result.first_rank = crash->rank;
  t.result.first_host = exit->host;
  t.result.exit_code = t.result.exit_code ? t.result.exit_code : std::optional(exit->code);
  t.draft.explain(text_of(cause).meaning);
  t.draft.explain(exit_code_text(exit->code));
  return t.draft.conclude(cause, *exit);
}

// A process was told to end, or crashed, and others may have lost it.
Verdict by_crash(Trial& t) {
  const Finding* crash = t.suspects.earliest([](const Finding& f) { return f.sign == Sign::NativeCrash; });
  const Finding* lost = t.suspects.earliest([](const Finding& f) { return f.sign == Sign::ConnectionLost; });
  const bool told_to_end = t.culprit && t.culprit->root && !t.culprit->local &&
                           signal_of_code(t.culprit->code) == SIGTERM && (crash || lost);
  if (told_to_end) {
    t.result.first_rank = t.culprit->ranks[0];
    t.draft.explain(
        fmt::format("Rank {} was asked to end (SIGTERM); the log does not show by whom.", t.culprit->ranks[0]));
    return t.draft.conclude(Cause::Unknown, crash ? *crash : *lost);
  }
  constexpr std::uint64_t kLinesOfOneEnd = 20;
  // NCCL's watchdog ends its process by an uncaught exception.
  const bool is_end_of_watchdog =
      crash && lost && !has_word(crash->text, "egmentation") && !has_word(crash->text, "SIGSEGV") &&
      (earlier(lost->place, crash->place) ||
       (has_word(crash->text, "terminate called") && lost->place.file == crash->place.file &&
        lost->place.line < crash->place.line + kLinesOfOneEnd));
  if (!crash || is_end_of_watchdog) return {};
  return t.name(*crash, Cause::Segfault);
}

Verdict by_words(Trial& t) {
  for (const Finding& remark : t.findings.remarks) {
    const bool is_mended =
        has_one_of(remark.text, " instead|alling back|gnoring|kipping|tensorboard|wandb");  // it goes on without
    if (is_mended || t.findings.survived(remark)) continue;
    auto sign = sign_of_words(remark.text);
    if (!sign && has_one_of(remark.text, "Error('|Error(\"")) sign = Sign::PythonError;  // as repr() has it
    if (!sign) continue;
    return t.name(remark, cause_of(*sign));
  }
  return {};
}

// What tells of a reason goes before what lost or waited for something.
Verdict by_last_words(Trial& t) {
  const Finding* telling = nullptr;
  for (const Finding& words : t.findings.last_words)
    if (!telling || (role_of(telling->sign) == Role::Consequence && role_of(words.sign) != Role::Consequence))
      telling = &words;
  if (!telling) return {};
  const Verdict verdict = t.name(*telling, cause_of(telling->sign));
  t.draft.add_last_line();
  return verdict;
}

Verdict by_exit(Trial& t) {
  const WorkerExit* exit = t.culprit ? t.culprit : find_bad_exit(t);
  if (!exit) return {};
  if (t.culprit) t.result.first_rank = rank_of(*t.culprit, t), t.result.first_host = t.culprit->host;
  if (!t.result.exit_code) t.result.exit_code = exit->code;
  const Cause cause = cause_of_code(*exit);
  const Verdict verdict = t.draft.conclude(cause, *exit);
  if (cause == Cause::TimeLimit) t.result.first_rank.reset(), t.result.first_host.clear();
  t.draft.explain(text_of(cause).meaning);
  t.draft.explain(exit_code_text(exit->code));
  last_remarks(t);
  return verdict;
}

Verdict by_refusal(Trial& t) {
  if (t.findings.program_spoke || t.findings.refusals.empty()) return {};
  t.draft.explain("Slurm refused the job, or ended it before any program printed anything. It says: " +
                  t.findings.refusals.front().text);
  t.draft.fix("Correct what Slurm says; `scontrol show partition` and `sacctmgr show qos` list its limits.");
  Verdict verdict;
  for (const Finding& refusal : t.findings.refusals) verdict = t.draft.conclude(Cause::Unknown, refusal);
  return verdict;
}

Verdict by_emptiness(Trial& t) {
  const bool code_says_so = t.result.exit_code.value_or(0) != 0;
  if (signal_of_code(t.result.exit_code.value_or(0))) return {};  // what a signal ended had started
  std::uint64_t bytes = 0;
  for (const FileTrace& file : t.findings.files) bytes += file.bytes;
  if (bytes > 0 && (t.findings.program_spoke || code_says_so)) return {};
  t.draft.fix(t.findings.launchers.slurm
                  ? "Ask Slurm for the state of the job (`squeue -j JOB`, `sacct -j JOB`), and check whether its "
                    "output goes to this file."
                  : "Check whether the job is running, whether its output goes to this file, and what started it.");
  t.draft.explain(bytes == 0 ? "The log is empty: no program started."
                             : "No program started: the log contains no output of a program.");
  t.result.failed = false;
  return t.draft.conclude_at_end(Cause::NotLaunched);
}

// Signs that alone tell no cause, but that something went wrong.
Verdict by_leftovers(Trial& t) {
  const Finding* left = t.suspects.earliest([](const Finding& f) { return role_of(f.sign) != Role::Context; });
  if (!left || left->sign == Sign::Stopped) return {};
  return t.name(*left, cause_of(left->sign));
}

Verdict by_exit_code(Trial& t) {
  if (!t.result.exit_code) return {};
  if (*t.result.exit_code == 0) return succeed(t), t.draft.conclude_at_end(Cause::Success);
  const auto signal = signal_of_code(*t.result.exit_code);
  const Cause cause = signal ? cause_of_signal(*signal) : Cause::Unknown;
  t.draft.explain(text_of(cause).meaning);
  t.draft.explain(exit_code_text(*t.result.exit_code));
  last_remarks(t);
  return t.draft.conclude_at_end(cause);
}

Verdict by_nothing(Trial& t) {
  t.result.failed = false;
  t.draft.explain("The log contains no error and no end of the run.");
  const bool unfinished =
      t.findings.iteration && t.findings.iterations && *t.findings.iteration < *t.findings.iterations;
  if (unfinished)
    t.draft.explain(fmt::format("It stops at iteration {} of {}.", *t.findings.iteration, *t.findings.iterations));
  t.draft.explain("The job is still running, was killed without a message, or ended without a message.");
  t.draft.fix("If it has ended, give its exit code with --exit-code.");
  if (t.findings.launchers.slurm) t.draft.fix("`sacct -j JOB --format=JobID,State,ExitCode` shows it.");
  if (t.findings.launchers.kubernetes) t.draft.fix("`kubectl describe pod POD` shows it.");
  return t.draft.conclude_at_end(Cause::Unknown);
}

}  // namespace braid
