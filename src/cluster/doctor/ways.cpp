// The ways to come to a verdict, each for one kind of end.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "cluster/doctor/messages.h"
#include "cluster/doctor/process_ends.h"
#include "cluster/doctor/suspects.h"
#include "cluster/doctor/text.h"
#include "cluster/doctor/verdict.h"

namespace braid {
namespace {

bool is_told_in_its_own_words(Sign sign) {
  return sign == Sign::PythonError || sign == Sign::MissingImport || sign == Sign::BraidError ||
         sign == Sign::WrongArguments || sign == Sign::CudaError || sign == Sign::HubUnreachable ||
         sign == Sign::NanLoss;
}

// Adds what the same rank reports right after the error: which weights differ, the exception inside a worker.
void add_details(DiagnosisContext& t, const Finding& cause) {
  for (const Finding* finding : t.suspects.live()) {
    if (t.result.evidence.size() >= 4) return;
    const bool follows = finding->place.file == cause.place.file && finding->place.line > cause.place.line &&
                         finding->place.line < cause.place.line + 60;
    if (!follows || role_of(finding->sign) != Role::Cause) continue;
    const bool has_no_rank = !t.result.first_rank && !cause.has_writer;  // workers and libraries print without a prefix
    if (has_no_rank) t.result.first_rank = finding->rank;
    const bool agrees = finding->sign == cause.sign || finding->sign == Sign::PythonError ||
                        cause_of(finding->sign) == t.result.cause || cause.sign == Sign::PythonError;
    if (finding->rank == t.result.first_rank && agrees) t.draft.add_evidence(*finding);
  }
}

void explain_memory(DiagnosisContext& t, const std::string& message) {
  t.draft.explain(gpu_memory_text(message));
  const std::string device = device_in(message);
  if (device == "GPU") return;
  for (std::size_t at = 0; (at = t.result.explanation.find("GPU", at)) != std::string::npos; ++at)
    t.result.explanation.replace(at, 3, device);
  if (t.result.cause == Cause::GpuOom)
    t.draft.fix("Use a smaller batch or sequence, recompute activations, or split the model over more devices.");
}

// Whether no rank can start the program, so that none of them failed first.
bool is_refused_everywhere(const DiagnosisContext& t, const Finding& cause) {
  if (cause.sign != Sign::NotLaunched && cause.sign != Sign::UvMissing) return false;
  std::set<int> ranks;
  for (const Finding* finding : t.suspects.live())
    if (finding->sign == cause.sign && finding->rank) ranks.insert(*finding->rank);
  for (const WorkerExit& exit : t.findings.exits)
    if (!cause.rank && exit.failed()) ranks.insert(exit.ranks.begin(), exit.ranks.end());
  return ranks.size() > 1;
}

// The failure board only sees that a connection ended; srun reports how the process ended.
Cause cause_by_exit_of(DiagnosisContext& t, int rank, Cause cause) {
  for (const WorkerExit& exit : t.findings.exits) {
    if (exit.ranks != std::vector{rank} || t.findings.survived(exit.place)) continue;
    if (exit.was_killed()) cause = cause_of_signal(*exit.signal());
    if (!t.result.exit_code) t.result.exit_code = exit.code;
    t.draft.add_evidence(exit);
  }
  return cause;
}

Verdict diagnose_error(DiagnosisContext& t) {
  const Finding* cause = t.suspects.best_cause();
  if (!cause) return {};
  if (t.braid && !is_loss_of_peer(t.braid->reason) && cause->rank != t.braid->rank) return {};
  if (t.suspects.is_explained_from_outside(*cause) || t.suspects.is_explained_by_others(*cause)) return {};
  const Verdict verdict = t.name(*cause, t.suspects.refined(*cause));
  if (const Finding* hardware = t.suspects.hardware_behind(*cause)) t.draft.add_evidence(*hardware);
  add_details(t, *cause);
  // NCCL's own warnings name a device; if only one rank complains, the device is its own.
  if (!t.result.first_rank && has_word(cause->text, "NCCL WARN") && t.suspects.complained().size() == 1)
    t.result.first_rank = *t.suspects.complained().begin();
  if (is_refused_everywhere(t, *cause)) t.result.first_rank.reset(), t.result.first_host.clear();
  if (const Rule* advice = row_for(rules().advice, cause->sign, cause->text)) {
    t.draft.explain(advice->answers.at(0));
    t.draft.fix(advice->answers.at(1));
  }
  if (cause->sign == Sign::GpuOom) explain_memory(t, cause->text);
  if (cause->sign == Sign::CollectiveMismatch) t.draft.explain(mismatch_told_in(cause->text));
  if (t.result.cause == Cause::MoeOom && t.findings.num_experts)
    t.draft.fix(expert_sizing_text(*t.findings.num_experts, t.findings.expert_parallel));
  if (is_told_in_its_own_words(cause->sign)) t.draft.explain(fmt::format("It is: {}", cause->text));
  return verdict;
}

Verdict diagnose_braid_report(DiagnosisContext& t) {
  if (!t.braid) return {};
  const RootCauseLine& line = *t.braid;
  if (is_loss_of_peer(line.reason)) {
    // A node that is gone, or Slurm's end of the job, explains a rank that is gone.
    if (t.suspects.earliest(
            [](const Finding& f) { return role_of(f.sign) == Role::Outside && f.sign != Sign::StepCancelled; }))
      return {};
  }
  Cause cause = cause_in_reason(line.reason);
  if (is_loss_of_peer(line.reason)) cause = cause_by_exit_of(t, line.rank, cause);
  t.result.first_rank = line.rank;
  t.result.first_host = line.host;
  if (!t.result.exit_code) t.result.exit_code = exit_code_in(line.reason);
  t.draft.explain(text_of(cause).meaning);
  if (!line.operation.empty())  // a line about a host names none
    t.draft.explain(
        fmt::format("Rank {} ({}) was in {}: {}", line.rank, line.place_in_grid, line.operation, line.reason));
  return t.draft.conclude(cause, QuotedLine{line.place, line.text});
}

// NCCL reports any failed system call so, also if a time-out ended its communicator.
bool is_vague(const Finding& network) { return has_one_of(network.text, "unhandled system error|ncclSystemError"); }

// Names the silent rank; if all ranks complain, the rank that ended or complained first.
void blame_silence(DiagnosisContext& t) {
  const Silence silence = find_silent_rank(t.findings, t.suspects.complained());
  t.result.first_rank = silence.rank;
  if (silence.line) t.draft.add_evidence(*silence.line);
  if (!silence.how.empty())
    t.draft.explain("The first rank to fail is the one that became silent: " + silence.how + ".");
  if (silence.rank) return;
  // A rank that counts the processes of one node may be another rank of the run.
  const bool is_known = t.culprit && (!t.culprit->local || t.suspects.complained().count(t.culprit->ranks[0]));
  if (is_known && t.culprit->root) t.result.first_rank = t.suspects.culprit_rank();
  const Finding* first = t.suspects.earliest([](const Finding& f) { return is_time_out(f.sign) && f.rank; });
  if (!t.result.first_rank && first) t.result.first_rank = first->rank;
}

Verdict diagnose_mismatch(DiagnosisContext& t) {
  const auto mismatch = find_mismatch(t.findings);
  if (!mismatch) return {};
  t.result.first_rank = mismatch->odd_rank;
  t.draft.explain(text_of(Cause::CollectiveMismatch).meaning);
  t.draft.explain(mismatch->text);
  Verdict verdict;
  for (const CollectiveWork* work : mismatch->works)
    verdict = t.draft.conclude(Cause::CollectiveMismatch, QuotedLine{work->place, work->text});
  return verdict;
}

// The ranks never met. After the start, a store that cannot be reached may have ended with its rank.
Verdict diagnose_rendezvous(DiagnosisContext& t) {
  const Finding* failed = t.suspects.first({Sign::RendezvousFailed});
  const Finding* other = t.suspects.earliest([&](const Finding& f) {
    const bool is_loss = f.sign == Sign::ConnectionLost && failed && failed->place.progress > 0;
    return is_time_out(f.sign) || is_loss;
  });
  if (!failed || (other && earlier(other->place, failed->place))) return {};
  return t.name(*failed, Cause::Rendezvous);
}

Verdict diagnose_time_out(DiagnosisContext& t) {
  const Finding* first = t.suspects.first_time_out();
  const Finding* network =
      t.suspects.earliest([&](const Finding& f) { return f.sign == Sign::NetworkTrouble && !(first && is_vague(f)); });
  const Finding* unique_id = t.suspects.first({Sign::UniqueIdTimeout});
  if (!first && !network) return {};
  const auto& artifacts = t.findings.saved_artifacts;
  const bool saving = artifacts || t.suspects.earliest([&](const Finding& f) {
    return is_time_out(f.sign) && t.suspects.came_while_saving(f);
  });
  const Finding* telling = network ? network : unique_id ? unique_id : first;
  const bool hung_while_saving = first && saving && !(network && earlier(network->place, first->place));
  const Cause cause = hung_while_saving ? Cause::ArtifactSaveHang : network ? Cause::Network : cause_of(telling->sign);
  if (cause == Cause::ArtifactSaveHang) telling = unique_id ? unique_id : first;
  const Verdict verdict = t.draft.conclude(cause, *telling);
  t.draft.explain(text_of(cause).meaning);
  if (cause == Cause::ArtifactSaveHang && artifacts) t.draft.add_evidence(*artifacts);
  // Rank 0 saves artifacts, and a task that a launcher saw end waited for it. All ranks may save checkpoints.
  const bool rank0_saves =
      cause == Cause::ArtifactSaveHang && (unique_id || !t.culprit || (artifacts && !t.suspects.complained().count(0)));
  if (cause == Cause::Rank0BarrierTimeout || rank0_saves) {
    t.result.first_rank = 0;
    const bool works = telling->traceback && telling->traceback->waits_for_first_process;  // slow, and not what failed
    if (works && t.culprit && t.culprit->root) t.result.first_rank = t.culprit->ranks[0];
  } else if (cause == Cause::Network) {
    t.result.first_rank = telling->rank;
    t.result.first_host = telling->host;
    const bool is_there = t.culprit && !telling->host.empty() && t.culprit->host == telling->host;
    if (!telling->rank && t.culprit && (t.culprit->root || is_there)) t.result.first_rank = t.suspects.culprit_rank();
    const Finding* complaint = t.suspects.earliest(
        [](const Finding& f) { return f.rank && (f.sign == Sign::NetworkTrouble || f.sign == Sign::ConnectionLost); });
    if (!t.result.first_rank && complaint) t.result.first_rank = complaint->rank;
  } else {
    blame_silence(t);
  }
  return verdict;
}

Verdict diagnose_stall(DiagnosisContext& t) {
  if (t.findings.named_absent.empty()) return {};
  t.draft.explain(text_of(Cause::NcclTimeout).meaning);
  blame_silence(t);
  return t.draft.conclude(Cause::NcclTimeout, t.findings.named_absent.front().line);
}

Verdict diagnose_lost_peer(DiagnosisContext& t) {
  const Finding* lost = t.suspects.first({Sign::ConnectionLost});
  if (!lost) return {};
  const bool is_worker = t.suspects.is_loss_of_worker(*lost);
  const Verdict verdict = t.draft.conclude(is_worker ? Cause::Unknown : Cause::Network, *lost);
  blame_silence(t);
  t.draft.explain(is_worker ? "A process ended without a message, and others lost their connection to it."
                            : "A peer ended, or the network between the nodes failed; no rank reports why.");
  return verdict;
}

// "Node failure on HOST" names the node; the host in "JOB 7 ON HOST CANCELLED ... DUE TO NODE FAILURE" is the batch
// host. Schedulers announce an end by a signal; the signal is not the cause.
const Finding* earliest_end(const DiagnosisContext& t) {
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
std::optional<int> rank_of(const WorkerExit& exit, const DiagnosisContext& t) {
  return is_of_several_nodes(exit, t.findings) ? std::nullopt : std::optional(exit.ranks[0]);
}

// slurmstepd knows the step, srun the task.
void rank_out_of_memory(DiagnosisContext& t) {
  if (const Finding* task = t.suspects.earliest([](const Finding& f) { return f.sign == Sign::CgroupOom && f.rank; }))
    t.result.first_rank = task->rank;
  else if (t.culprit && t.culprit->signal() == SIGKILL)
    t.result.first_rank = rank_of(*t.culprit, t);
  else if (const Finding* missed =
               t.suspects.earliest([](const Finding& f) { return f.sign == Sign::NodeFailure && f.rank; }))
    t.result.first_rank = missed->rank;
}

void rank_on_dead_node(DiagnosisContext& t) {
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

const WorkerExit* find_bad_exit(const DiagnosisContext& t) {
  const auto bad = std::find_if(t.findings.exits.begin(), t.findings.exits.end(),
                                [&](auto& e) { return e.code != 0 && !t.findings.survived(e.place); });
  return bad == t.findings.exits.end() ? nullptr : &*bad;
}

// Whether others miss a daemon or a heartbeat because a process had crashed or lost its network before.
bool is_explained(const DiagnosisContext& t, const Finding& loss) {
  if (loss.sign != Sign::NodeFailure || (!has_word(loss.text, "daemon") && !has_word(loss.text, "eartbeat")))
    return false;
  const bool is_daemon = has_word(loss.text, "daemon");
  const Finding* crash = t.suspects.earliest([&](const Finding& f) {
    return f.sign == Sign::NativeCrash || (is_daemon && f.sign == Sign::NetworkTrouble && f.rank);
  });
  if (crash && earlier(crash->place, loss.place)) return true;
  return t.findings.any_exit([&](const WorkerExit& e) { return e.was_killed() && earlier(e.place, loss.place); });
}

// Whether srun only cancelled the rest of a step after some of its tasks ended with an exit code of their own.
bool is_rest(const DiagnosisContext& t, const Finding& end) {
  return end.sign == Sign::StepCancelled && t.findings.any_exit([&](const WorkerExit& e) {
    return e.code != 0 && !e.signal() && earlier(e.place, end.place);
  });
}

void succeed(DiagnosisContext& t) {
  t.result.failed = false;
  t.draft.explain(text_of(Cause::Success).meaning);
}

// A process without a rank that a signal ended.
const WorkerExit* find_signalled(const DiagnosisContext& t) {
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

void last_remarks(DiagnosisContext& t) {
  const std::size_t from = t.findings.remarks.size() > 3 ? t.findings.remarks.size() - 3 : 0;
  for (std::size_t i = from; i < t.findings.remarks.size(); ++i) t.draft.add_evidence(t.findings.remarks[i]);
}

Verdict diagnose_outside_end(DiagnosisContext& t) {
  const Finding* end = earliest_end(t);
  if (end && is_explained(t, *end)) return {};
  const Finding* hang = t.suspects.first_time_out();
  const bool is_sudden = end && (end->sign == Sign::NodeFailure || end->sign == Sign::CgroupOom);
  if (end && !is_sudden && hang && earlier(hang->place, end->place)) return {};
  // After a failure, users cancel the job, or it waits until its time is over.
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

// A run that completed may still report connections that its end closed.
Verdict diagnose_success(DiagnosisContext& t) {
  const FileTrace* file = t.findings.good_end();
  const bool code_is_bad = t.result.exit_code.value_or(0) != 0;
  if (!file || code_is_bad || t.culprit || t.suspects.first_time_out() || find_bad_exit(t)) return {};
  if (t.suspects.earliest([](const Finding& f) { return role_of(f.sign) == Role::Cause; })) return {};
  succeed(t);
  const Place place = {.file = static_cast<int>(file - t.findings.files.data()), .line = file->good_end};
  return t.draft.conclude(Cause::Success, QuotedLine{place, file->end_text});
}

// The first process that ended was killed, and no line says why.
Verdict diagnose_kill(DiagnosisContext& t) {
  const WorkerExit* const signalled = find_signalled(t);
  // DeepSpeed reports a signal without a rank, then srun reports the exit code of the node.
  const bool is_told_later = t.culprit && t.culprit->by_srun && signalled && !t.culprit->signal() &&
                             earlier(signalled->place, t.culprit->place);
  const WorkerExit* exit = t.culprit && !is_told_later ? t.culprit : signalled;
  if (!exit) return {};
  const auto signal = exit->signal();
  const Finding* hang = t.suspects.first_time_out();
  if (!signal || *signal == SIGTERM || (hang && earlier(hang->place, exit->place) && !exit->root)) return {};
  const auto is_loss_before = [&](const Finding& f) {
    return (f.sign == Sign::NetworkTrouble || f.sign == Sign::RendezvousFailed || f.sign == Sign::ConnectionLost) &&
           earlier(f.place, exit->place);
  };
  if (*signal == SIGABRT && (hang || t.suspects.earliest(is_loss_before))) return {};
  // A rank that reported an exception may crash while it exits.
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

// A process got SIGTERM or crashed, and others may have lost their connection to it.
Verdict diagnose_crash(DiagnosisContext& t) {
  const Finding* crash = t.suspects.first({Sign::NativeCrash});
  const Finding* lost = t.suspects.first({Sign::ConnectionLost});
  const bool told_to_end =
      t.culprit && t.culprit->root && !t.culprit->local && t.culprit->was_stopped() && (crash || lost);
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

Verdict diagnose_remark(DiagnosisContext& t) {
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

// Lines that name a reason take precedence over lost connections and time-outs.
Verdict diagnose_last_words(DiagnosisContext& t) {
  const Finding* telling = nullptr;
  for (const Finding& words : t.findings.last_words)
    if (!telling || (role_of(telling->sign) == Role::Consequence && role_of(words.sign) != Role::Consequence))
      telling = &words;
  if (!telling) return {};
  const Verdict verdict = t.name(*telling, cause_of(telling->sign));
  t.draft.add_last_line();
  return verdict;
}

Verdict diagnose_process_end(DiagnosisContext& t) {
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

Verdict diagnose_refusal(DiagnosisContext& t) {
  if (t.findings.program_spoke || t.findings.refusals.empty()) return {};
  t.draft.explain("Slurm refused the job, or ended it before any program printed anything. It says: " +
                  t.findings.refusals.front().text);
  t.draft.fix("Correct what Slurm says; `scontrol show partition` and `sacctmgr show qos` list its limits.");
  Verdict verdict;
  for (const Finding& refusal : t.findings.refusals) verdict = t.draft.conclude(Cause::Unknown, refusal);
  return verdict;
}

Verdict diagnose_empty_log(DiagnosisContext& t) {
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

// Lines that show that something went wrong, but name no cause.
Verdict diagnose_leftovers(DiagnosisContext& t) {
  const Finding* left = t.suspects.earliest([](const Finding& f) { return role_of(f.sign) != Role::Context; });
  if (!left || left->sign == Sign::Stopped) return {};
  return t.name(*left, cause_of(left->sign));
}

Verdict diagnose_exit_code(DiagnosisContext& t) {
  if (!t.result.exit_code) return {};
  if (*t.result.exit_code == 0) return succeed(t), t.draft.conclude_at_end(Cause::Success);
  const auto signal = signal_of_code(*t.result.exit_code);
  const Cause cause = signal ? cause_of_signal(*signal) : Cause::Unknown;
  t.draft.explain(text_of(cause).meaning);
  t.draft.explain(exit_code_text(*t.result.exit_code));
  last_remarks(t);
  return t.draft.conclude_at_end(cause);
}

Verdict diagnose_silence(DiagnosisContext& t) {
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

}  // namespace

// The first way that comes to a verdict counts, so this order is the precedence of causes.
void find_verdict(DiagnosisContext& context) {
  static constexpr Verdict (*kWays[])(DiagnosisContext&) = {
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
    if (way(context)) return;
}

}  // namespace braid
