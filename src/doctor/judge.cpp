#include "doctor/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "doctor/braid_reason.h"
#include "doctor/closing.h"
#include "doctor/details.h"
#include "doctor/launcher_lines.h"
#include "doctor/mismatch.h"
#include "doctor/silence.h"
#include "doctor/text_parts.h"

namespace braid {
namespace {

class Judge {
 public:
  Judge(const Findings& findings, std::optional<int> exit_code)
      : findings_(findings),
        suspects_(findings),
        culprit_(suspects_.culprit()),
        braid_(suspects_.braid()),
        draft_(findings) {
    result_.exit_code = exit_code ? exit_code : findings.exit_code;
  }

  // The first step that comes to a verdict.
  Diagnosis diagnose() {
    static constexpr bool (Judge::*kSteps[])() = {
        &Judge::by_cause, &Judge::by_braid,      &Judge::by_outside,   &Judge::by_good_end,  &Judge::by_mismatch,
        &Judge::by_kill,  &Judge::by_rendezvous, &Judge::by_time_out,  &Judge::by_crash,     &Judge::by_loss,
        &Judge::by_exit,  &Judge::by_refusal,    &Judge::by_emptiness, &Judge::by_exit_code, &Judge::by_nothing};
    for (const auto step : kSteps)
      if ((this->*step)()) break;
    close_verdict(draft_, findings_, suspects_);
    return std::move(result_);
  }

 private:
  bool by_cause() {
    const Finding* cause = suspects_.best_cause();
    if (!cause) return false;
    if (braid_ && !is_loss_of_peer(braid_->reason) && cause->rank != braid_->rank) return false;
    if (suspects_.outside_before(*cause)) return false;
    name(*cause, suspects_.refined(*cause));
    if (const Finding* hardware = suspects_.hardware_behind(*cause)) draft_.add_evidence(*hardware);
    add_details(*cause);
    if (cause->sign == Sign::NotLaunched || cause->sign == Sign::ShellError) {
      const StartText start = start_text(cause->text, cause->sign);
      draft_.explain(start.why);
      draft_.fix(start.fix);
    }
    if (cause->sign == Sign::PythonError && !cause->traceback && has_word(cause->text, ": error: "))
      draft_.fix("Correct the arguments of the program.");
    if (cause->sign == Sign::GpuOom) draft_.explain(gpu_memory_text(cause->text));
    if (cause->sign == Sign::CollectiveMismatch) draft_.explain(mismatch_told_in(cause->text));
    if (result_.cause == Cause::MoeOom && findings_.num_experts)
      draft_.fix(expert_sizing_text(*findings_.num_experts, findings_.expert_parallel));
    if (is_told_in_its_own_words(cause->sign)) draft_.explain(fmt::format("It is: {}", cause->text));
    return true;
  }

  static bool is_told_in_its_own_words(Sign sign) {
    return sign == Sign::PythonError || sign == Sign::MissingImport || sign == Sign::BraidError ||
           sign == Sign::CudaError || sign == Sign::HubUnreachable || sign == Sign::NanLoss;
  }

  // What the same rank says right after it: which weights, the exception inside a worker.
  void add_details(const Finding& cause) {
    for (const Finding* finding : suspects_.live()) {
      if (result_.evidence.size() >= 4) return;
      const bool follows = finding->place.file == cause.place.file && finding->place.line > cause.place.line &&
                           finding->place.line < cause.place.line + 60;
      if (!follows || role_of(finding->sign) != Role::Cause) continue;
      if (!result_.first_rank) result_.first_rank = finding->rank;  // workers and libraries print without a prefix
      const bool agrees = finding->sign == cause.sign || finding->sign == Sign::PythonError ||
                          cause_of(finding->sign) == result_.cause || cause.sign == Sign::PythonError;
      if (finding->rank == result_.first_rank && agrees) draft_.add_evidence(*finding);
    }
  }

  bool by_braid() {
    if (!braid_) return false;
    const RootCauseLine& line = *braid_;
    if (is_loss_of_peer(line.reason)) {
      // A node that is gone, or Slurm's end of the job, explains a rank that is gone.
      if (suspects_.earliest(
              [](const Finding& f) { return role_of(f.sign) == Role::Outside && f.sign != Sign::StepCancelled; }))
        return false;
    }
    result_.cause = cause_in_reason(line.reason);
    if (is_loss_of_peer(line.reason)) by_exit_of(line.rank);
    result_.first_rank = line.rank;
    result_.first_host = line.host;
    if (!result_.exit_code) result_.exit_code = exit_code_in(line.reason);
    draft_.add_evidence(line.place, line.text);
    draft_.explain(text_of(result_.cause).meaning);
    draft_.explain(
        fmt::format("Rank {} ({}) was in {}: {}", line.rank, line.place_in_grid, line.operation, line.reason));
    return true;
  }

  // The board saw a connection end; srun saw how.
  void by_exit_of(int rank) {
    for (const WorkerExit& exit : findings_.exits) {
      if (exit.ranks != std::vector{rank} || findings_.survived(exit.place)) continue;
      const auto signal = signal_of_code(exit.code);
      if (signal && cause_of_signal(*signal) != Cause::Unknown) result_.cause = cause_of_signal(*signal);
      if (!result_.exit_code) result_.exit_code = exit.code;
      draft_.add_evidence(exit);
    }
  }

  bool by_outside() {
    const Finding* end = earliest_end();
    const Finding* hang = suspects_.first_time_out();
    const bool is_sudden = end && (end->sign == Sign::NodeFailure || end->sign == Sign::CgroupOom);
    if (end && !is_sudden && hang && earlier(hang->place, end->place)) return false;
    if (!end && !hang && !suspects_.culprit_rank())
      end = suspects_.earliest([](const Finding& f) { return role_of(f.sign) == Role::Outside; });
    if (!end) return false;
    name(*end, cause_of(end->sign));
    if (!is_sudden) result_.first_rank.reset(), result_.first_host.clear();  // nothing failed, nowhere
    if (end->sign == Sign::CgroupOom && !result_.first_rank) rank_out_of_memory();
    if (end->sign == Sign::NodeFailure) rank_on_dead_node();
    return true;
  }

  // "Node failure on HOST" names the node; the host in "JOB 7 ON HOST CANCELLED ... DUE TO NODE FAILURE" is the batch
  // host. Schedulers announce an end by a signal, which is no cause of its own.
  const Finding* earliest_end() const {
    const auto first = [&](auto wanted) { return suspects_.earliest(wanted); };
    const Finding* end =
        first([](const Finding& f) { return f.sign == Sign::NodeFailure && (!f.host.empty() || f.rank); });
    if (!end) end = first([](const Finding& f) { return f.sign == Sign::NodeFailure || f.sign == Sign::CgroupOom; });
    if (!end)
      end = first([](const Finding& f) {
        return f.sign == Sign::TimeLimit || f.sign == Sign::Preempted || f.sign == Sign::JobCancelled;
      });
    return end ? end : first([](const Finding& f) { return f.sign == Sign::Hangup; });
  }

  // slurmstepd knows the step, srun the task.
  void rank_out_of_memory() {
    if (const Finding* task = suspects_.earliest([](const Finding& f) { return f.sign == Sign::CgroupOom && f.rank; }))
      result_.first_rank = task->rank;
    else if (culprit_ && signal_of_code(culprit_->code) == SIGKILL)
      result_.first_rank = culprit_->ranks[0];
  }

  void rank_on_dead_node() {
    if (braid_ && (braid_->host == result_.first_host || result_.first_host.empty())) {
      result_.first_rank = braid_->rank;
      result_.first_host = braid_->host;
      draft_.add_evidence(braid_->place, braid_->text);
      return;
    }
    if (result_.first_host.empty()) return;
    for (const auto& [rank, host] : findings_.hosts)
      if (host == result_.first_host && !result_.first_rank) result_.first_rank = rank;
  }

  // What is left of a run that came to its end are connections that went with it.
  bool by_good_end() {
    const FileTrace* file = findings_.good_end();
    const bool code_is_bad = result_.exit_code.value_or(0) != 0;
    if (!file || code_is_bad || culprit_ || suspects_.first_time_out() || find_bad_exit()) return false;
    if (suspects_.earliest([](const Finding& f) { return role_of(f.sign) == Role::Cause; })) return false;
    succeed();
    draft_.add_evidence({.file = static_cast<int>(file - findings_.files.data()), .line = file->good_end},
                        file->end_text);
    return true;
  }

  void succeed() {
    result_.failed = false;
    result_.cause = Cause::Success;
    draft_.explain(text_of(Cause::Success).meaning);
  }

  bool by_mismatch() {
    const auto mismatch = find_mismatch(findings_);
    if (!mismatch) return false;
    result_.cause = Cause::CollectiveMismatch;
    result_.first_rank = mismatch->odd_rank;
    draft_.explain(text_of(result_.cause).meaning);
    draft_.explain(mismatch->text);
    for (const CollectiveWork* work : mismatch->works) draft_.add_evidence(work->place, work->text);
    return true;
  }

  // The first process to go was killed, and nothing else says why.
  bool by_kill() {
    const WorkerExit* exit = culprit_ ? culprit_ : find_signalled();
    if (!exit) return false;
    const auto signal = signal_of_code(exit->code);
    const Finding* hang = suspects_.first_time_out();
    if (!signal || *signal == SIGTERM || (hang && earlier(hang->place, exit->place) && !exit->root)) return false;
    if (*signal == SIGABRT && (hang || suspects_.earliest([](const Finding& f) {
          return f.sign == Sign::NetworkTrouble || f.sign == Sign::RendezvousFailed || f.sign == Sign::ConnectionLost;
        })))
      return false;
    result_.cause = cause_of_signal(*signal);
    if (!exit->ranks.empty()) result_.first_rank = exit->ranks[0];
    result_.first_host = exit->host;
    result_.exit_code = result_.exit_code ? result_.exit_code : std::optional(exit->code);
    draft_.add_evidence(*exit);
    draft_.explain(text_of(result_.cause).meaning);
    draft_.explain(exit_code_text(exit->code));
    return true;
  }

  // A process without a rank that a signal ended.
  const WorkerExit* find_signalled() const {
    for (const WorkerExit& exit : findings_.exits) {
      const auto signal = signal_of_code(exit.code);
      if (exit.ranks.empty() && signal && cause_of_signal(*signal) != Cause::Unknown && !findings_.survived(exit.place))
        return &exit;
    }
    return nullptr;
  }

  // They never met. Later on a store that cannot be reached is one that went away.
  bool by_rendezvous() {
    const Finding* failed =
        suspects_.earliest([](const Finding& f) { return f.sign == Sign::RendezvousFailed && f.place.progress == 0; });
    const Finding* hang = suspects_.first_time_out();
    if (!failed || (hang && earlier(hang->place, failed->place))) return false;
    name(*failed, Cause::Rendezvous);
    return true;
  }

  bool by_time_out() {
    const Finding* first = suspects_.first_time_out();
    const Finding* network = suspects_.earliest([](const Finding& f) { return f.sign == Sign::NetworkTrouble; });
    const Finding* unique_id = suspects_.earliest([](const Finding& f) { return f.sign == Sign::UniqueIdTimeout; });
    if (!first && !network) return false;
    const bool saving = findings_.saved_artifacts || suspects_.timed_out_while_saving();
    const Finding* telling = network ? network : unique_id ? unique_id : first;
    const Cause cause = network && !(first && saving) ? Cause::Network
                        : first && saving             ? Cause::ArtifactSaveHang
                                                      : cause_of(telling->sign);
    if (cause == Cause::ArtifactSaveHang) telling = unique_id ? unique_id : first;
    result_.cause = cause;
    draft_.add_evidence(*telling);
    draft_.explain(text_of(cause).meaning);
    if (cause == Cause::Rank0BarrierTimeout || (cause == Cause::ArtifactSaveHang && !culprit_)) {
      result_.first_rank = 0;
    } else if (cause == Cause::Network) {
      result_.first_rank = telling->rank;
      result_.first_host = telling->host;
      if (!telling->rank && culprit_ && culprit_->root) result_.first_rank = suspects_.culprit_rank();
    } else {
      blame_silence();
    }
    return true;
  }

  // Where all complain, the one that was first to end, or to complain.
  void blame_silence() {
    const Silence silence = find_silent_rank(findings_, suspects_.complained());
    result_.first_rank = silence.rank;
    if (!silence.how.empty()) draft_.explain("The first to fail is the one that went silent: " + silence.how + ".");
    if (silence.rank) return;
    if (culprit_ && culprit_->root) result_.first_rank = suspects_.culprit_rank();
    const Finding* first = suspects_.first_time_out();
    if (!result_.first_rank && first) result_.first_rank = first->rank;
  }

  // A process was told to end, or crashed, and others may have lost it.
  bool by_crash() {
    const Finding* crash = suspects_.earliest([](const Finding& f) { return f.sign == Sign::NativeCrash; });
    const Finding* lost = suspects_.earliest([](const Finding& f) { return f.sign == Sign::ConnectionLost; });
    const bool told_to_end =
        culprit_ && culprit_->root && !culprit_->local && signal_of_code(culprit_->code) == SIGTERM && (crash || lost);
    if (told_to_end) {
      result_.first_rank = culprit_->ranks[0];
      draft_.add_evidence(crash ? *crash : *lost);
      draft_.explain(fmt::format("Rank {} was told to end (SIGTERM), and nobody says by whom.", culprit_->ranks[0]));
      return true;
    }
    if (!crash) return false;
    name(*crash, Cause::Segfault);
    return true;
  }

  bool by_loss() {
    const Finding* lost = suspects_.earliest([](const Finding& f) { return f.sign == Sign::ConnectionLost; });
    if (!lost) return false;
    draft_.add_evidence(*lost);
    blame_silence();
    if (suspects_.is_loss_of_worker(*lost)) {
      draft_.explain("A process went away without a word, and others lost their connection to it.");
      return true;
    }
    result_.cause = Cause::Network;
    draft_.explain("A peer went away, or the network between the nodes failed, and no rank says why.");
    return true;
  }

  const WorkerExit* find_bad_exit() const {
    const auto bad = std::find_if(findings_.exits.begin(), findings_.exits.end(),
                                  [&](auto& e) { return e.code != 0 && !findings_.survived(e.place); });
    return bad == findings_.exits.end() ? nullptr : &*bad;
  }

  bool by_exit() {
    const WorkerExit* exit = culprit_ ? culprit_ : find_bad_exit();
    if (!exit) return false;
    if (culprit_) result_.first_rank = culprit_->ranks[0], result_.first_host = culprit_->host;
    if (!result_.exit_code) result_.exit_code = exit->code;
    draft_.add_evidence(*exit);
    draft_.explain("The log does not say why.");
    draft_.explain(exit_code_text(exit->code));
    last_remarks();
    return true;
  }

  bool by_refusal() {
    if (findings_.program_spoke || findings_.refusals.empty()) return false;
    draft_.explain("Slurm refused it, or ended it before any program said a word. It says: " +
                   findings_.refusals.front().text);
    draft_.fix("Correct what Slurm says; `scontrol show partition` and `sacctmgr show qos` list its limits.");
    for (const Finding& refusal : findings_.refusals) draft_.add_evidence(refusal);
    return true;
  }

  bool by_emptiness() {
    const bool code_says_so = result_.exit_code.value_or(0) != 0;
    std::uint64_t bytes = 0;
    for (const FileTrace& file : findings_.files) bytes += file.bytes;
    if (bytes > 0 && (findings_.program_spoke || code_says_so)) return false;
    result_.cause = Cause::NotLaunched;
    draft_.fix(findings_.launchers.slurm
                   ? "Ask Slurm how the job is (`squeue -j JOB`, `sacct -j JOB`), and whether its output goes to this "
                     "file."
                   : "Look whether it runs at all, whether its output goes to this file, and what started it.");
    draft_.explain(bytes == 0 ? "The log is empty: nothing ever started."
                              : "Nothing ever started: no program says anything.");
    result_.failed = false;
    return true;
  }

  bool by_exit_code() {
    if (!result_.exit_code) return false;
    if (*result_.exit_code == 0) return succeed(), true;
    const auto signal = signal_of_code(*result_.exit_code);
    if (signal) result_.cause = cause_of_signal(*signal);
    draft_.explain(text_of(result_.cause).meaning);
    draft_.explain(exit_code_text(*result_.exit_code));
    last_remarks();
    return true;
  }

  bool by_nothing() {
    result_.failed = false;
    draft_.explain("There is no error in the log, and no end of the run either.");
    const bool unfinished = findings_.iteration && findings_.iterations && *findings_.iteration < *findings_.iterations;
    if (unfinished)
      draft_.explain(fmt::format("It stops at iteration {} of {}.", *findings_.iteration, *findings_.iterations));
    draft_.explain("The job still runs, was killed without a word, or ends without saying so.");
    draft_.fix("If it is over, tell me its exit code with --exit-code.");
    if (findings_.launchers.slurm) draft_.fix("`sacct -j JOB --format=JobID,State,ExitCode` says it.");
    if (findings_.launchers.kubernetes) draft_.fix("`kubectl describe pod POD` says it.");
    return true;
  }

  void last_remarks() {
    const std::size_t from = findings_.remarks.size() > 3 ? findings_.remarks.size() - 3 : 0;
    for (std::size_t i = from; i < findings_.remarks.size(); ++i) draft_.add_evidence(findings_.remarks[i]);
  }

  void name(const Finding& finding, Cause cause) {
    result_.cause = cause;
    result_.first_rank = finding.rank;
    result_.first_host = finding.host;
    if (!finding.rank && suspects_.culprit_rank() && role_of(finding.sign) != Role::Outside)
      result_.first_rank = suspects_.culprit_rank();
    draft_.add_evidence(finding);
    draft_.explain(text_of(cause).meaning);
  }

  const Findings& findings_;
  const Suspects suspects_;
  const WorkerExit* const culprit_;
  const RootCauseLine* const braid_;
  Draft draft_;
  Diagnosis& result_ = draft_.result;
};

}  // namespace

Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code) {
  return Judge(findings, exit_code).diagnose();
}

}  // namespace braid
