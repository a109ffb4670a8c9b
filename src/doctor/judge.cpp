#include "doctor/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "doctor/braid_reason.h"
#include "doctor/details.h"
#include "doctor/draft.h"
#include "doctor/launcher_lines.h"
#include "doctor/silence.h"
#include "doctor/suspects.h"
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

  Diagnosis diagnose() {
    if (!by_cause() && !by_braid() && !by_outside() && !by_kill() && !by_time_out() && !by_loss()) by_nothing();
    finish();
    return std::move(result_);
  }

 private:
  bool by_cause() {
    const Finding* cause = suspects_.best_cause();
    if (!cause) return false;
    if (braid_ && !is_loss_of_peer(braid_->reason) && cause->rank != braid_->rank) return false;
    if (suspects_.outside_before(*cause)) return false;
    name(*cause, suspects_.refined(*cause));
    add_details(*cause);
    if (cause->sign == Sign::NotLaunched || cause->sign == Sign::ShellError) explain_start(cause->text, cause->sign);
    if (cause->sign == Sign::PythonError && !cause->traceback && has_word(cause->text, ": error: "))
      draft_.fix("Correct the arguments of the program.");
    if (cause->sign == Sign::GpuOom) draft_.explain(gpu_memory_text(cause->text));
    if (result_.cause == Cause::MoeOom && findings_.num_experts)
      draft_.fix(expert_sizing_text(*findings_.num_experts, findings_.expert_parallel));
    if (cause->sign == Sign::PythonError || cause->sign == Sign::MissingImport || cause->sign == Sign::BraidError)
      draft_.explain(fmt::format("It is: {}", cause->text));
    return true;
  }

  void explain_start(std::string_view text, Sign sign) {
    const auto says = [&](std::string_view word) { return text.find(word) != std::string_view::npos; };
    if (says("pyxis")) {
      draft_.explain("Its container did not start.");
      draft_.fix("Check --container-image and --container-mounts; `enroot import` on a login node says more.");
    } else if (says("not found") || says("No such file")) {
      draft_.explain("There is no such program or file where it was started.");
      draft_.fix("Check the path, and that it is mounted into the container and installed on every node.");
    } else if (says("Permission denied")) {
      draft_.explain("The program may not be executed.");
      draft_.fix("`chmod +x` it, and check that its file system is not mounted noexec.");
    } else if (sign == Sign::ShellError) {
      draft_.explain("The script did not get as far as the program.");
      draft_.fix("Correct the script where the line says, or set what it wants, and submit it again.");
    }
  }

  // What the same rank says right after it: which weights, the exception inside a worker.
  void add_details(const Finding& cause) {
    for (const Finding* finding : suspects_.live()) {
      if (result_.evidence.size() >= 4) return;
      const bool follows = finding->place.file == cause.place.file && finding->place.line > cause.place.line &&
                           finding->place.line < cause.place.line + 60;
      if (!follows || role_of(finding->sign) != Role::Cause) continue;
      if (!result_.first_rank) result_.first_rank = finding->rank;  // workers and libraries print without a prefix
      if (finding->rank == result_.first_rank) draft_.add_evidence(*finding);
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
    if (!line.operation.empty())  // a line about a host names none
      draft_.explain(
          fmt::format("Rank {} ({}) was in {}: {}", line.rank, line.place_in_grid, line.operation, line.reason));
    return true;
  }

  // The board saw a connection end; srun saw how.
  void by_exit_of(int rank) {
    for (const WorkerExit& exit : findings_.exits) {
      if (exit.ranks != std::vector{rank} || findings_.survived(exit.place)) continue;
      const auto signal = signal_of_code(exit.code);
      if (signal == SIGKILL) result_.cause = Cause::HostOom;
      if (signal == SIGBUS) result_.cause = Cause::ShmBusError;
      if (!result_.exit_code) result_.exit_code = exit.code;
      draft_.add_evidence(exit.place, exit.text);
    }
  }

  bool by_outside() {
    // "Node failure on HOST" names the node; the host in "JOB 7 ON HOST CANCELLED ... DUE TO NODE FAILURE" is the batch
    // host.
    const Finding* end =
        suspects_.earliest([](const Finding& f) { return f.sign == Sign::NodeFailure && !f.host.empty(); });
    if (!end)
      end =
          suspects_.earliest([](const Finding& f) { return f.sign == Sign::NodeFailure || f.sign == Sign::CgroupOom; });
    if (!end)
      end = suspects_.earliest([](const Finding& f) {
        return f.sign == Sign::TimeLimit || f.sign == Sign::Preempted || f.sign == Sign::JobCancelled;
      });
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

  // The first process to go was killed, and nothing else says why.
  bool by_kill() {
    if (!culprit_) return false;
    const auto signal = signal_of_code(culprit_->code);
    const Finding* hang = suspects_.first_time_out();
    if (!signal || *signal == SIGTERM || (hang && earlier(hang->place, culprit_->place) && !culprit_->root))
      return false;
    if (*signal == SIGABRT && hang) return false;
    result_.cause = *signal == SIGKILL ? Cause::HostOom : *signal == SIGBUS ? Cause::ShmBusError : Cause::Unknown;
    result_.first_rank = culprit_->ranks[0];
    result_.first_host = culprit_->host;
    result_.exit_code = result_.exit_code ? result_.exit_code : std::optional(culprit_->code);
    draft_.add_evidence(culprit_->place, culprit_->text);
    if (*signal != SIGKILL && *signal != SIGBUS)
      draft_.explain(fmt::format("Rank {} crashed in native code.", culprit_->ranks[0]));
    else
      draft_.explain(text_of(result_.cause).meaning);
    draft_.explain(exit_code_text(culprit_->code));
    return true;
  }

  bool by_time_out() {
    const Finding* first = suspects_.first_time_out();
    const Finding* network = suspects_.earliest([](const Finding& f) { return f.sign == Sign::NetworkTrouble; });
    const Finding* unique_id = suspects_.earliest([](const Finding& f) { return f.sign == Sign::UniqueIdTimeout; });
    if (!first && !network) return false;
    const bool saving = findings_.saved_artifacts ||
                        std::any_of(suspects_.live().begin(), suspects_.live().end(), [](const Finding* f) {
                          return is_time_out(f->sign) && f->traceback && f->traceback->in_saving;
                        });
    const Finding* telling = network ? network : unique_id ? unique_id : first;
    const Cause cause = network && !(first && saving) ? Cause::Network
                        : first && saving             ? Cause::ArtifactSaveHang
                                                      : cause_of(telling->sign);
    if (cause == Cause::ArtifactSaveHang) telling = unique_id ? unique_id : first;
    result_.cause = cause;
    draft_.add_evidence(*telling);
    draft_.explain(text_of(cause).meaning);
    if (cause == Cause::Rank0BarrierTimeout || cause == Cause::ArtifactSaveHang) {
      result_.first_rank = 0;
    } else if (cause == Cause::Network) {
      result_.first_rank = telling->rank;
      result_.first_host = telling->host;
      if (telling->text.find("client socket has timed out") != std::string::npos) blame_server(telling->text);
    } else {
      blame_silence();
    }
    return true;
  }

  // "... while trying to connect to (n1, 29500)": rank 0 serves what all the others connect to.
  void blame_server(std::string_view text) {
    result_.first_rank = 0;
    const std::string_view server = behind(text, "connect to (").value_or("");
    result_.first_host = server.substr(0, server.find(','));
    draft_.explain("The node of rank 0 cannot be reached, or nothing came up there.");
  }

  void blame_silence() {
    const Silence silence = find_silent_rank(findings_, suspects_.complained());
    result_.first_rank = silence.rank;
    if (!silence.how.empty()) draft_.explain("The first to fail is the one that went silent: " + silence.how + ".");
  }

  bool by_loss() {
    const Finding* lost = suspects_.earliest([](const Finding& f) { return f.sign == Sign::ConnectionLost; });
    const Finding* crash = suspects_.earliest([](const Finding& f) { return f.sign == Sign::NativeCrash; });
    if (!lost && !crash) return false;
    const Finding* telling = crash ? crash : lost;
    draft_.add_evidence(*telling);
    if (culprit_ && culprit_->root && !culprit_->local && signal_of_code(culprit_->code) == SIGTERM) {
      result_.first_rank = culprit_->ranks[0];
      draft_.explain(fmt::format("Rank {} was told to end (SIGTERM), and nobody says by whom.", culprit_->ranks[0]));
      return true;
    }
    if (crash) {
      result_.first_rank = crash->rank;
      draft_.explain("A process crashed in native code, and the log does not say why.");
      return true;
    }
    const bool by_nccl =
        lost->text.find("network error") != std::string::npos || lost->text.find("NCCL") != std::string::npos;
    result_.cause = by_nccl ? Cause::Network : Cause::Unknown;
    blame_silence();
    draft_.explain(by_nccl ? "A peer went away, or the network between the nodes failed, and no rank says why."
                           : "A peer went away without a word.");
    return true;
  }

  void by_nothing() {
    const bool code_says_so = result_.exit_code.value_or(0) != 0;
    const auto bad_exit = std::find_if(findings_.exits.begin(), findings_.exits.end(),
                                       [&](auto& e) { return e.code != 0 && !findings_.survived(e.place); });
    const bool is_empty = total_bytes() == 0;
    if (culprit_ || bad_exit != findings_.exits.end()) {
      if (culprit_) result_.first_rank = culprit_->ranks[0], result_.first_host = culprit_->host;
      const WorkerExit& exit = culprit_ ? *culprit_ : *bad_exit;
      if (!result_.exit_code) result_.exit_code = exit.code;
      draft_.add_evidence(exit.place, exit.text);
      draft_.explain("The log does not say why.");
      draft_.explain(exit_code_text(exit.code));
      last_remarks();
    } else if (!findings_.program_spoke && !findings_.refusals.empty()) {
      draft_.explain("Slurm refused it, or ended it before any program said a word. It says: " +
                     findings_.refusals.front().text);
      draft_.fix("Correct what Slurm says; `scontrol show partition` and `sacctmgr show qos` list its limits.");
      for (const Finding& refusal : findings_.refusals) draft_.add_evidence(refusal);
    } else if (is_empty || (!findings_.program_spoke && !code_says_so)) {
      result_.cause = Cause::NotLaunched;
      draft_.fix(
          "Ask Slurm how the job is (`squeue -j JOB`, `sacct -j JOB`), and whether its output goes to this file.");
      draft_.explain(is_empty ? "The log is empty: nothing ever started."
                              : "Nothing ever started: no program says anything.");
      result_.failed = false;
    } else if (code_says_so) {
      draft_.explain("The log does not say why. " + exit_code_text(*result_.exit_code));
      last_remarks();
    } else {
      result_.failed = false;
      findings_.ended_well() ? draft_.explain("Nothing failed here: the run came to its end.") : explain_no_end();
    }
  }

  void explain_no_end() {
    draft_.explain("There is no error in the log, and no end of the run either.");
    const bool unfinished = findings_.iteration && findings_.iterations && *findings_.iteration < *findings_.iterations;
    if (unfinished)
      draft_.explain(fmt::format("It stops at iteration {} of {}.", *findings_.iteration, *findings_.iterations));
    draft_.explain("The job still runs, was killed without a word, or ends without saying so.");
    draft_.fix(
        "If it is over, `sacct -j JOB --format=JobID,State,ExitCode` says how it ended; tell me with --exit-code.");
  }

  std::uint64_t total_bytes() const {
    std::uint64_t bytes = 0;
    for (const FileTrace& file : findings_.files) bytes += file.bytes;
    return bytes;
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

  // What launchers and other ranks said, after the cause itself.
  void add_consequences() {
    if (braid_) draft_.add_evidence(braid_->place, braid_->text);
    if (culprit_) draft_.add_evidence(culprit_->place, culprit_->text);
    for (const Sign sign :
         {Sign::NodeFailure, Sign::TimeLimit, Sign::CollectiveTimeout, Sign::UniqueIdTimeout, Sign::ConnectionLost})
      if (const Finding* other = suspects_.earliest([&](const Finding& f) { return f.sign == sign; });
          other && result_.evidence.size() < 5)
        draft_.add_evidence(other->place, other->shown);
  }

  // "srun: error: n3: tasks 9-10: Exited with exit code 1"
  void by_exit_among_others() {
    if (!result_.failed || !result_.first_rank) return;
    for (const WorkerExit& exit : findings_.exits) {
      const bool is_in = std::find(exit.ranks.begin(), exit.ranks.end(), *result_.first_rank) != exit.ranks.end();
      const bool is_own = exit.code != 0 && signal_of_code(exit.code) != SIGTERM;
      if (!is_in || !is_own || exit.local || findings_.survived(exit.place)) continue;
      if (result_.first_host.empty() && exit.host.find('[') == std::string::npos) result_.first_host = exit.host;
      if (!result_.exit_code) result_.exit_code = exit.code;
      return;
    }
  }

  void finish() {
    if (result_.failed) add_consequences();
    if (result_.failed && findings_.end_contradicted)
      draft_.explain(
          "Its script ended with exit code 0 all the same: in a pipe that is the last command's, unless the script "
          "says "
          "`set -o pipefail`.");
    if (result_.first_host.empty() && result_.first_rank)
      if (const auto host = findings_.hosts.find(*result_.first_rank); host != findings_.hosts.end())
        result_.first_host = host->second;
    if (result_.first_host.empty() && culprit_ && result_.first_rank && culprit_->ranks[0] == *result_.first_rank)
      result_.first_host = culprit_->host;
    by_exit_among_others();
    if (!result_.exit_code && culprit_ && result_.failed) result_.exit_code = culprit_->code;
    if (result_.failed) result_.cascade = cascade_text(findings_, result_.first_rank);
    if (result_.fix.empty() || result_.cause == Cause::MoeOom)
      result_.fix = std::string(result_.failed || result_.cause == Cause::NotLaunched ? text_of(result_.cause).fix
                                                                                      : "Nothing to do.") +
                    (result_.fix.empty() ? "" : " ") + result_.fix;
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
