// The ways to come to a verdict, each for one kind of end.
#include "cluster/doctor/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "cluster/doctor/advice.h"
#include "cluster/doctor/messages.h"
#include "cluster/doctor/process_ends.h"
#include "cluster/doctor/suspects.h"
#include "cluster/doctor/text.h"

namespace braid {
namespace {

// What each way to a verdict reads and writes.
struct Case : Suspects {
  Case(const Findings& all, std::optional<int> exit_code) : Suspects(all) {
    result.exit_code = exit_code ? exit_code : all.exit_code;
  }

  // Names the cause, with the finding, exit or quoted line that shows it.
  template <class Line>
  bool conclude(Cause cause, const Line& shows) {
    add_evidence(shows);
    result.cause = cause;
    return true;
  }

  // For a verdict on what the log does not say: quotes its last line, which only an empty log lacks.
  bool conclude_at_end(Cause cause) {
    if (result.evidence.empty()) add_last_line();
    result.cause = cause;
    return true;
  }

  // Concludes with the rank and host of the finding.
  bool name(const Finding& finding, Cause cause) {
    result.first_rank = finding.rank;
    result.first_host = finding.host;
    if (!finding.rank && culprit_rank() && role_of(finding.sign) != Role::Outside) result.first_rank = culprit_rank();
    explain(finding.sign == Sign::WrongArguments ? "The program does not accept its arguments."
                                                 : text_of(cause).meaning);
    const bool is_memory = cause == Cause::GpuOom || cause == Cause::MoeOom || cause == Cause::HostOom;
    const bool is_in_step = finding.traceback && !finding.traceback->in_saving;
    if (is_memory && !is_in_step && came_while_saving(finding)) fix(saving_memory_fix(cause, findings.launchers));
    return conclude(cause, finding);
  }

  void add_evidence(const QuotedLine& line) {  // each line once, up to a limit
    constexpr std::size_t kMostEvidence = 8;
    const std::string& file = findings.files[static_cast<std::size_t>(line.place.file)].name;
    const bool there = std::any_of(result.evidence.begin(), result.evidence.end(),
                                   [&](const Evidence& e) { return e.file == file && e.line == line.place.line; });
    if (!there && result.evidence.size() < kMostEvidence)
      result.evidence.push_back({file, line.place.line, line.text, line.focus});
  }
  void add_evidence(const WorkerExit& exit) { add_evidence(QuotedLine{exit.place, exit.text, exit.focus}); }
  void add_evidence(const Finding& finding) {  // and the innermost frame of its traceback
    add_evidence(QuotedLine{finding.place, finding.shown, finding.focus});
    if (!finding.traceback || finding.traceback->frame_line == 0) return;
    Place frame = finding.place;
    frame.line = finding.traceback->frame_line;
    add_evidence(QuotedLine{frame, finding.traceback->frame});
  }
  void add_last_line() {
    const auto file = std::find_if(findings.files.rbegin(), findings.files.rend(), [](auto& f) { return f.last; });
    if (file != findings.files.rend()) add_evidence(*file->last);
  }

  void explain(const std::string& sentence) { add_sentence(result.explanation, sentence); }
  void fix(const std::string& sentence) { add_sentence(result.fix, sentence); }

  Diagnosis result{};

 private:
  static void add_sentence(std::string& text, const std::string& sentence) {
    if (!sentence.empty()) text += (text.empty() ? "" : " ") + sentence;
  }
};

bool is_told_in_its_own_words(Sign sign) {
  return sign == Sign::PythonError || sign == Sign::MissingImport || sign == Sign::BraidError ||
         sign == Sign::WrongArguments || sign == Sign::CudaError || sign == Sign::HubUnreachable ||
         sign == Sign::NanLoss;
}

// Adds what the same rank reports right after the error: which weights differ, the exception inside a worker.
void add_details(Case& t, const Finding& cause) {
  for (const Finding* finding : t.live) {
    if (t.result.evidence.size() >= 4) return;
    const bool follows = finding->place.file == cause.place.file && finding->place.line > cause.place.line &&
                         finding->place.line < cause.place.line + 60;
    if (!follows || role_of(finding->sign) != Role::Cause) continue;
    const bool has_no_rank = !t.result.first_rank && !cause.has_writer;  // workers and libraries print without a prefix
    if (has_no_rank) t.result.first_rank = finding->rank;
    const bool agrees = finding->sign == cause.sign || finding->sign == Sign::PythonError ||
                        cause_of(finding->sign) == t.result.cause || cause.sign == Sign::PythonError;
    if (finding->rank == t.result.first_rank && agrees) t.add_evidence(*finding);
  }
}

void explain_memory(Case& t, const std::string& message) {
  t.explain(gpu_memory_text(message));
  const std::string device = device_in(message);
  if (device == "GPU") return;
  for (std::size_t at = 0; (at = t.result.explanation.find("GPU", at)) != std::string::npos; ++at)
    t.result.explanation.replace(at, 3, device);
  if (t.result.cause == Cause::GpuOom)
    t.fix("Use a smaller batch or sequence, recompute activations, or split the model over more devices.");
}

// Whether no rank can start the program, so that none of them failed first.
bool is_refused_everywhere(const Case& t, const Finding& cause) {
  if (cause.sign != Sign::NotLaunched && cause.sign != Sign::UvMissing) return false;
  std::set<int> ranks;
  for (const Finding* finding : t.live)
    if (finding->sign == cause.sign && finding->rank) ranks.insert(*finding->rank);
  for (const WorkerExit& exit : t.findings.exits)
    if (!cause.rank && exit.failed()) ranks.insert(exit.ranks.begin(), exit.ranks.end());
  return ranks.size() > 1;
}

// The failure board only sees that a connection ended; srun reports how the process ended.
Cause cause_by_exit_of(Case& t, int rank, Cause cause) {
  for (const WorkerExit& exit : t.findings.exits) {
    if (exit.ranks != std::vector{rank} || t.findings.survived(exit.place)) continue;
    if (exit.was_killed()) cause = cause_of_signal(*exit.signal());
    if (!t.result.exit_code) t.result.exit_code = exit.code;
    t.add_evidence(exit);
  }
  return cause;
}

bool diagnose_error(Case& t) {
  const Finding* cause = t.best_cause();
  if (!cause) return false;
  if (t.is_explained_from_outside(*cause) || t.is_explained_by_others(*cause)) return false;
  t.name(*cause, t.refined(*cause));
  if (const Finding* hardware = t.hardware_behind(*cause)) t.add_evidence(*hardware);
  add_details(t, *cause);
  // NCCL's own warnings name a device; if only one rank complains, the device is its own.
  if (!t.result.first_rank && has_word(cause->text, "NCCL WARN") && t.complained.size() == 1)
    t.result.first_rank = *t.complained.begin();
  if (is_refused_everywhere(t, *cause)) t.result.first_rank.reset(), t.result.first_host.clear();
  if (const Rule* advice = row_for("advice", cause->sign, cause->text)) {
    t.explain(advice->answers.at(0));
    t.fix(advice->answers.at(1));
  }
  if (cause->sign == Sign::GpuOom) explain_memory(t, cause->text);
  if (cause->sign == Sign::CollectiveMismatch) t.explain(mismatch_told_in(cause->text));
  if (t.result.cause == Cause::MoeOom && t.findings.num_experts)
    t.fix(expert_sizing_text(*t.findings.num_experts, t.findings.expert_parallel));
  if (is_told_in_its_own_words(cause->sign)) t.explain(fmt::format("It is: {}", cause->text));
  return true;
}

bool diagnose_braid_report(Case& t) {
  if (!t.braid) return false;
  const RootCauseLine& line = *t.braid;
  if (is_loss_of_peer(line.reason)) {
    // A node that is gone, or Slurm's end of the job, explains a rank that is gone.
    if (t.earliest([](const Finding& f) { return role_of(f.sign) == Role::Outside && f.sign != Sign::StepCancelled; }))
      return false;
  }
  Cause cause = cause_in_reason(line.reason);
  if (is_loss_of_peer(line.reason)) cause = cause_by_exit_of(t, line.rank, cause);
  t.result.first_rank = line.rank;
  t.result.first_host = line.host;
  if (!t.result.exit_code) t.result.exit_code = exit_code_in(line.reason);
  t.explain(text_of(cause).meaning);
  if (!line.operation.empty())  // a line about a host names none
    t.explain(fmt::format("Rank {} ({}) was in {}: {}", line.rank, line.place_in_grid, line.operation, line.reason));
  return t.conclude(cause, QuotedLine{line.place, line.text});
}

// NCCL reports any failed system call so, also if a time-out ended its communicator.
bool is_vague(const Finding& network) { return has_one_of(network.text, "unhandled system error|ncclSystemError"); }

// Names the silent rank; if all ranks complain, the rank that ended or complained first.
void blame_silence(Case& t) {
  const Silence silence = find_silent_rank(t.findings, t.complained);
  t.result.first_rank = silence.rank;
  if (silence.line) t.add_evidence(*silence.line);
  if (!silence.how.empty()) t.explain("The first rank to fail is the one that became silent: " + silence.how + ".");
  if (silence.rank) return;
  // A rank that counts the processes of one node may be another rank of the run.
  const bool is_known = t.culprit && (!t.culprit->local || t.complained.count(t.culprit->ranks[0]));
  if (is_known && t.culprit->root) t.result.first_rank = t.culprit_rank();
  const Finding* first = t.first_of_a_rank(kTimeOuts);
  if (!t.result.first_rank && first) t.result.first_rank = first->rank;
}

bool diagnose_mismatch(Case& t) {
  const auto mismatch = find_mismatch(t.findings);
  if (!mismatch) return false;
  t.result.first_rank = mismatch->odd_rank;
  t.explain(text_of(Cause::CollectiveMismatch).meaning);
  t.explain(mismatch->text);
  for (const CollectiveWork* work : mismatch->works)
    t.conclude(Cause::CollectiveMismatch, QuotedLine{work->place, work->text});
  return true;
}

// The ranks never met. After the start, a store that cannot be reached may have ended with its rank.
bool diagnose_rendezvous(Case& t) {
  const Finding* failed = t.first({Sign::RendezvousFailed});
  const Finding* other = t.earliest([&](const Finding& f) {
    const bool is_loss = f.sign == Sign::ConnectionLost && failed && failed->place.progress > 0;
    return is_time_out(f.sign) || is_loss;
  });
  if (!failed || (other && earlier(other->place, failed->place))) return false;
  return t.name(*failed, Cause::Rendezvous);
}

bool diagnose_time_out(Case& t) {
  const Finding* first = t.first_time_out();
  const Finding* network =
      t.earliest([&](const Finding& f) { return f.sign == Sign::NetworkTrouble && !(first && is_vague(f)); });
  const Finding* unique_id = t.first({Sign::UniqueIdTimeout});
  if (!first && !network) return false;
  const auto& artifacts = t.findings.saved_artifacts;
  const bool saving =
      artifacts || t.earliest([&](const Finding& f) { return is_time_out(f.sign) && t.came_while_saving(f); });
  const Finding* telling = network ? network : unique_id ? unique_id : first;
  const bool hung_while_saving = first && saving && !(network && earlier(network->place, first->place));
  const Cause cause = hung_while_saving ? Cause::ArtifactSaveHang : network ? Cause::Network : cause_of(telling->sign);
  if (cause == Cause::ArtifactSaveHang) telling = unique_id ? unique_id : first;
  t.conclude(cause, *telling);
  t.explain(text_of(cause).meaning);
  if (cause == Cause::ArtifactSaveHang && artifacts) t.add_evidence(*artifacts);
  // Rank 0 saves artifacts, and a task that a launcher saw end waited for it. All ranks may save checkpoints.
  const bool rank0_saves =
      cause == Cause::ArtifactSaveHang && (unique_id || !t.culprit || (artifacts && !t.complained.count(0)));
  if (cause == Cause::Rank0BarrierTimeout || rank0_saves) {
    t.result.first_rank = 0;
    const bool works = telling->traceback && telling->traceback->waits_for_first_process;  // slow, and not what failed
    if (works && t.culprit && t.culprit->root) t.result.first_rank = t.culprit->ranks[0];
  } else if (cause == Cause::Network) {
    t.result.first_rank = telling->rank;
    t.result.first_host = telling->host;
    const bool is_there = t.culprit && !telling->host.empty() && t.culprit->host == telling->host;
    if (!telling->rank && t.culprit && (t.culprit->root || is_there)) t.result.first_rank = t.culprit_rank();
    const Finding* complaint = t.first_of_a_rank({Sign::NetworkTrouble, Sign::ConnectionLost});
    if (!t.result.first_rank && complaint) t.result.first_rank = complaint->rank;
  } else {
    blame_silence(t);
  }
  return true;
}

bool diagnose_stall(Case& t) {
  if (t.findings.named_absent.empty()) return false;
  t.explain(text_of(Cause::NcclTimeout).meaning);
  blame_silence(t);
  return t.conclude(Cause::NcclTimeout, t.findings.named_absent.front().line);
}

bool diagnose_lost_peer(Case& t) {
  const Finding* lost = t.first({Sign::ConnectionLost});
  if (!lost) return false;
  const bool is_worker = t.is_loss_of_worker(*lost);
  t.conclude(is_worker ? Cause::Unknown : Cause::Network, *lost);
  blame_silence(t);
  t.explain(is_worker ? "A process ended without a message, and others lost their connection to it."
                      : "A peer ended, or the network between the nodes failed; no rank reports why.");
  return true;
}

// "Node failure on HOST" names the node; the host in "JOB 7 ON HOST CANCELLED ... DUE TO NODE FAILURE" is the batch
// host. Schedulers announce an end by a signal; the signal is not the cause.
const Finding* earliest_end(const Case& t) {
  const Finding* end =
      t.earliest([](const Finding& f) { return f.sign == Sign::NodeFailure && (!f.host.empty() || f.rank); });
  const Finding* killed = t.first({Sign::CgroupOom});
  if (end && killed && earlier(killed->place, end->place)) return killed;  // its heartbeats are missed later
  if (!end) end = t.first({Sign::NodeFailure, Sign::CgroupOom});
  // A node that was taken away looks like one that failed; but after a failure, too, a job is put back into the queue,
  // and pods are taken from their node.
  const Finding* preempted = t.earliest([](const Finding& f) {
    return f.sign == Sign::Preempted && !has_word(f.text, "REQUEUE") && !has_word(f.text, "TaintManager");
  });
  if (end && end->sign == Sign::NodeFailure && preempted) return preempted;
  if (!end) end = t.first({Sign::TimeLimit, Sign::Preempted, Sign::JobCancelled});
  return end ? end : t.first({Sign::Hangup});
}

// The torchruns of two nodes may both report their local rank 0; the log does not say which one failed first.
std::optional<int> rank_of(const WorkerExit& exit, const Case& t) {
  return is_of_several_nodes(exit, t.findings) ? std::nullopt : std::optional(exit.ranks[0]);
}

// slurmstepd knows the step, srun the task.
void rank_out_of_memory(Case& t) {
  if (t.culprit && t.culprit->signal() == SIGKILL)
    t.result.first_rank = rank_of(*t.culprit, t);
  else if (const Finding* missed = t.first_of_a_rank({Sign::NodeFailure}))
    t.result.first_rank = missed->rank;
}

const WorkerExit* find_bad_exit(const Case& t) {
  const auto bad = std::find_if(t.findings.exits.begin(), t.findings.exits.end(),
                                [&](auto& e) { return e.code != 0 && !t.findings.survived(e.place); });
  return bad == t.findings.exits.end() ? nullptr : &*bad;
}

// Whether srun only cancelled the rest of a step after some of its tasks ended with an exit code of their own.
bool is_rest(const Case& t, const Finding& end) {
  return end.sign == Sign::StepCancelled && t.findings.any_exit([&](const WorkerExit& e) {
    return e.code != 0 && !e.signal() && earlier(e.place, end.place);
  });
}

void succeed(Case& t) {
  t.result.failed = false;
  t.explain(text_of(Cause::Success).meaning);
}

// A process without a rank that a signal ended.
const WorkerExit* find_signalled(const Case& t) {
  for (const WorkerExit& exit : t.findings.exits) {
    if (exit.ranks.empty() && exit.was_killed() && !t.findings.survived(exit.place)) return &exit;
  }
  return nullptr;
}

// The exit codes of shells and `timeout` have a meaning of their own.
Cause cause_of_code(const WorkerExit& exit) {
  constexpr int kTimedOut = 124, kCannotExecute = 126, kNotFound = 127;
  if (exit.code == kTimedOut) return Cause::TimeLimit;
  const bool is_not_started = (exit.code == kCannotExecute || exit.code == kNotFound) && exit.place.progress == 0;
  return is_not_started ? Cause::NotLaunched : Cause::Unknown;
}

void last_remarks(Case& t) {
  const std::size_t from = t.findings.remarks.size() > 3 ? t.findings.remarks.size() - 3 : 0;
  for (std::size_t i = from; i < t.findings.remarks.size(); ++i) t.add_evidence(t.findings.remarks[i]);
}

bool diagnose_outside_end(Case& t) {
  const Finding* end = earliest_end(t);
  const Finding* hang = t.first_time_out();
  const bool is_sudden = end && (end->sign == Sign::NodeFailure || end->sign == Sign::CgroupOom);
  if (end && !is_sudden && hang && earlier(hang->place, end->place)) return false;
  // After a failure, users cancel the job, or it waits until its time is over.
  const bool may_follow = end && (end->sign == Sign::JobCancelled || end->sign == Sign::TimeLimit);
  if (may_follow && t.failed_before(end->place) && !t.is_limit_logged_late(*end)) return false;
  const auto failed = t.culprit_rank();
  const bool was_ended = failed && t.culprit && t.was_told_to_end(*failed, t.culprit->place);
  if (!end && !hang && (!failed || was_ended))
    end = t.earliest([&](const Finding& f) {
      return role_of(f.sign) == Role::Outside && !is_rest(t, f) && !t.failed_before(f.place);
    });
  if (!end) return false;
  t.name(*end, cause_of(end->sign));
  if (!is_sudden) t.result.first_host.clear();  // nothing failed, nowhere
  if (!is_sudden) t.result.first_rank = rank_told_by(end->sign, end->text);
  if (end->sign == Sign::CgroupOom && !t.result.first_rank) rank_out_of_memory(t);
  return true;
}

// A run that completed may still report connections that its end closed.
bool diagnose_success(Case& t) {
  const FileTrace* file = t.findings.good_end();
  const bool code_is_bad = t.result.exit_code.value_or(0) != 0;
  if (!file || code_is_bad || t.culprit || t.first_time_out() || find_bad_exit(t)) return false;
  succeed(t);
  const Place place = {.file = static_cast<int>(file - t.findings.files.data()), .line = file->good_end};
  return t.conclude(Cause::Success, QuotedLine{place, file->end_text});
}

// The first process that ended was killed, and no line says why.
bool diagnose_kill(Case& t) {
  const WorkerExit* const signalled = find_signalled(t);
  // DeepSpeed reports a signal without a rank, then srun reports the exit code of the node.
  const bool is_told_later = t.culprit && t.culprit->by_srun && signalled && !t.culprit->signal() &&
                             earlier(signalled->place, t.culprit->place);
  const WorkerExit* exit = t.culprit && !is_told_later ? t.culprit : signalled;
  if (!exit) return false;
  const auto signal = exit->signal();
  const Finding* hang = t.first_time_out();
  if (!signal || *signal == SIGTERM || (hang && earlier(hang->place, exit->place) && !exit->root)) return false;
  const auto is_loss_before = [&](const Finding& f) {
    return (f.sign == Sign::NetworkTrouble || f.sign == Sign::RendezvousFailed || f.sign == Sign::ConnectionLost) &&
           earlier(f.place, exit->place);
  };
  if (*signal == SIGABRT && (hang || t.earliest(is_loss_before))) return false;
  // A rank that reported an exception may crash while it exits.
  const Finding* said = t.earliest([&](const Finding& f) {
    return role_of(f.sign) == Role::Consequence && f.traceback && exit->ranks == std::vector{f.rank.value_or(-1)};
  });
  if (said && *signal != SIGKILL) return false;
  const Cause cause = cause_of_signal(*signal);
  const Finding* crash = t.first_of_a_rank({Sign::NativeCrash});
  if (!exit->ranks.empty())
    t.result.first_rank = rank_of(*exit, t);
  else if (crash && cause == Cause::Segfault)
    t.result.first_rank = crash->rank;
  t.result.first_host = exit->host;
  t.result.exit_code = t.result.exit_code ? t.result.exit_code : std::optional(exit->code);
  t.explain(text_of(cause).meaning);
  t.explain(exit_code_text(exit->code));
  return t.conclude(cause, *exit);
}

// A process got SIGTERM or crashed, and others may have lost their connection to it.
bool diagnose_crash(Case& t) {
  const Finding* crash = t.first({Sign::NativeCrash});
  const Finding* lost = t.first({Sign::ConnectionLost});
  const bool told_to_end =
      t.culprit && t.culprit->root && !t.culprit->local && t.culprit->was_stopped() && (crash || lost);
  if (told_to_end) {
    t.result.first_rank = t.culprit->ranks[0];
    t.explain(fmt::format("Rank {} was asked to end (SIGTERM); the log does not show by whom.", t.culprit->ranks[0]));
    return t.conclude(Cause::Unknown, crash ? *crash : *lost);
  }
  constexpr std::uint64_t kLinesOfOneEnd = 20;
  // NCCL's watchdog ends its process by an uncaught exception.
  const bool is_end_of_watchdog =
      crash && lost && !has_word(crash->text, "egmentation") && !has_word(crash->text, "SIGSEGV") &&
      (earlier(lost->place, crash->place) ||
       (has_word(crash->text, "terminate called") && lost->place.file == crash->place.file &&
        lost->place.line < crash->place.line + kLinesOfOneEnd));
  if (!crash || is_end_of_watchdog) return false;
  return t.name(*crash, Cause::Segfault);
}

bool diagnose_remark(Case& t) {
  for (const Finding& remark : t.findings.remarks) {
    const bool is_mended = says(remark.text, "goes-on-without");
    if (is_mended || t.findings.survived(remark.place)) continue;
    auto sign = sign_of_words(remark.text);
    if (!sign && has_one_of(remark.text, "Error('|Error(\"")) sign = Sign::PythonError;  // as repr() has it
    if (!sign) continue;
    return t.name(remark, cause_of(*sign));
  }
  return false;
}

// Lines that name a reason take precedence over lost connections and time-outs.
bool diagnose_last_words(Case& t) {
  const Finding* telling = nullptr;
  for (const Finding& words : t.findings.last_words)
    if (!telling || (role_of(telling->sign) == Role::Consequence && role_of(words.sign) != Role::Consequence))
      telling = &words;
  if (!telling) return false;
  t.name(*telling, cause_of(telling->sign));
  t.add_last_line();
  return true;
}

bool diagnose_process_end(Case& t) {
  const WorkerExit* exit = t.culprit ? t.culprit : find_bad_exit(t);
  if (!exit) return false;
  if (t.culprit) t.result.first_rank = rank_of(*t.culprit, t), t.result.first_host = t.culprit->host;
  if (!t.result.exit_code) t.result.exit_code = exit->code;
  const Cause cause = cause_of_code(*exit);
  t.conclude(cause, *exit);
  if (cause == Cause::TimeLimit) t.result.first_rank.reset(), t.result.first_host.clear();
  t.explain(text_of(cause).meaning);
  t.explain(exit_code_text(exit->code));
  last_remarks(t);
  return true;
}

bool diagnose_refusal(Case& t) {
  if (t.findings.program_spoke || t.findings.refusals.empty()) return false;
  t.explain("Slurm refused the job, or ended it before any program printed anything. It says: " +
            t.findings.refusals.front().text);
  t.fix("Correct what Slurm says; `scontrol show partition` and `sacctmgr show qos` list its limits.");
  for (const Finding& refusal : t.findings.refusals) t.conclude(Cause::Unknown, refusal);
  return true;
}

bool diagnose_empty_log(Case& t) {
  const bool code_says_so = t.result.exit_code.value_or(0) != 0;
  if (signal_of_code(t.result.exit_code.value_or(0))) return false;  // what a signal ended had started
  std::uint64_t bytes = 0;
  for (const FileTrace& file : t.findings.files) bytes += file.bytes;
  if (bytes > 0 && (t.findings.program_spoke || code_says_so)) return false;
  t.fix(t.findings.launchers.slurm
            ? "Ask Slurm for the state of the job (`squeue -j JOB`, `sacct -j JOB`), and check whether its "
              "output goes to this file."
            : "Check whether the job is running, whether its output goes to this file, and what started it.");
  t.explain(bytes == 0 ? "The log is empty: no program started."
                       : "No program started: the log contains no output of a program.");
  t.result.failed = false;
  return t.conclude_at_end(Cause::NotLaunched);
}

// Lines that show that something went wrong, but name no cause.
bool diagnose_leftovers(Case& t) {
  const Finding* left = t.earliest([](const Finding& f) { return role_of(f.sign) != Role::Context; });
  if (!left || left->sign == Sign::Stopped) return false;
  return t.name(*left, cause_of(left->sign));
}

bool diagnose_exit_code(Case& t) {
  if (!t.result.exit_code) return false;
  if (*t.result.exit_code == 0) return succeed(t), t.conclude_at_end(Cause::Success);
  const auto signal = signal_of_code(*t.result.exit_code);
  const Cause cause = signal ? cause_of_signal(*signal) : Cause::Unknown;
  t.explain(text_of(cause).meaning);
  t.explain(exit_code_text(*t.result.exit_code));
  last_remarks(t);
  return t.conclude_at_end(cause);
}

bool diagnose_silence(Case& t) {
  t.result.failed = false;
  t.explain("The log contains no error and no end of the run.");
  const bool unfinished =
      t.findings.iteration && t.findings.iterations && *t.findings.iteration < *t.findings.iterations;
  if (unfinished)
    t.explain(fmt::format("It stops at iteration {} of {}.", *t.findings.iteration, *t.findings.iterations));
  t.explain("The job is still running, was killed without a message, or ended without a message.");
  t.fix("If it has ended, give its exit code with --exit-code.");
  if (t.findings.launchers.slurm) t.fix("`sacct -j JOB --format=JobID,State,ExitCode` shows it.");
  if (t.findings.launchers.kubernetes) t.fix("`kubectl describe pod POD` shows it.");
  return t.conclude_at_end(Cause::Unknown);
}

// The first way that comes to a verdict counts, so this order is the precedence of causes.
void find_verdict(Case& t) {
  static constexpr bool (*kWays[])(Case&) = {
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
      diagnose_leftovers,     // lines that tell no cause by themselves
      diagnose_stall,         // ranks that others wait for when the log ends
      diagnose_silence,       // always comes to a verdict
  };
  for (const auto way : kWays)
    if (way(t)) return;
}

// Adds what launchers and other ranks reported after the cause.
void add_consequences(Case& t) {
  if (t.braid) t.add_evidence(QuotedLine{t.braid->place, t.braid->text});
  if (t.culprit) t.add_evidence(*t.culprit);
  for (const Sign sign :
       {Sign::NodeFailure, Sign::TimeLimit, Sign::CollectiveTimeout, Sign::UniqueIdTimeout, Sign::ConnectionLost})
    if (const Finding* other = t.first({sign}); other && t.result.evidence.size() < 5)
      t.add_evidence(QuotedLine{other->place, other->shown, other->focus});
}

// "srun: error: n3: tasks 9-10: Exited with exit code 1"
void take_exit_among_others(Case& t) {
  for (const WorkerExit& exit : t.findings.exits) {
    const bool is_in = std::find(exit.ranks.begin(), exit.ranks.end(), *t.result.first_rank) != exit.ranks.end();
    if (!is_in || !exit.failed() || exit.local || t.findings.survived(exit.place)) continue;
    if (t.result.first_host.empty() && !has_word(exit.host, "[")) t.result.first_host = exit.host;
    if (!t.result.exit_code) t.result.exit_code = exit.code;
    return;
  }
}

void find_host(Case& t) {
  const auto rank = t.result.first_rank;
  if (!t.result.first_host.empty() || !rank) return;
  if (const auto host = t.findings.hosts.find(*rank); host != t.findings.hosts.end())
    t.result.first_host = host->second;
  else if (t.culprit && t.culprit->ranks[0] == *rank)
    t.result.first_host = t.culprit->host;
}

void close_failure(Case& t) {
  const Findings& findings = t.findings;
  const bool of_whole_job = text_of(t.result.cause).of_whole_job;
  add_consequences(t);
  if (findings.end_contradicted)
    t.explain(
        "Its script still ended with exit code 0: a pipe has the exit code of its last command, unless the script uses "
        "`set -o pipefail`.");
  if (!t.result.first_rank && !of_whole_job) t.result.first_rank = findings.named_failed;
  // Whether the log is of a single rank that is not the one that reports for all.
  const auto only = findings.ranks.begin();
  const bool is_of_one = findings.ranks.size() == 1 && only->first > 0 && only->second.lines > 1 && !findings.iteration;
  if (!t.result.first_rank && is_of_one && (!of_whole_job || t.result.cause == Cause::Network))
    t.result.first_rank = only->first;
  find_host(t);
  if (t.result.first_rank) take_exit_among_others(t);
  if (!t.result.exit_code && t.culprit) t.result.exit_code = t.culprit->code;
  t.result.cascade = cascade_text(findings, t.result.first_rank);
}

}  // namespace

Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code) {
  Case t(findings, exit_code);
  find_verdict(t);
  if (t.result.failed) close_failure(t);
  if (t.result.fix.empty() || t.result.cause == Cause::MoeOom)
    t.result.fix = fix_for(t.result.cause, findings.launchers) + (t.result.fix.empty() ? "" : " ") + t.result.fix;
  return std::move(t.result);
}

}  // namespace braid
