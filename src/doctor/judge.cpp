#include "doctor/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "doctor/braid_reason.h"
#include "doctor/details.h"
#include "doctor/draft.h"
#include "doctor/launcher_lines.h"
#include "doctor/silence.h"
#include "doctor/text_parts.h"

namespace braid {
namespace {

bool is_time_out(Sign sign) {
  return sign == Sign::CollectiveTimeout || sign == Sign::UniqueIdTimeout || sign == Sign::StoreTimeout;
}

class Judge : private Draft {
 public:
  Judge(const Findings& findings, std::optional<int> exit_code) : Draft(findings), findings_(findings) {
    result.exit_code = exit_code ? exit_code : findings.exit_code;
    for (const Finding& finding : findings.found)
      if (!findings.survived(finding.place)) live_.push_back(&finding);
    for (const Finding* finding : live_)
      if (role_of(finding->sign) == Role::Consequence && finding->rank && finding->sign != Sign::Stopped)
        complained_.insert(*finding->rank);
    for (const RootCauseLine& line : findings.braid)
      if (!braid_ && !findings.survived(line.place)) braid_ = &line;
    culprit_ = find_culprit(findings);
  }

  Diagnosis diagnose() {
    if (!by_cause() && !by_braid() && !by_outside() && !by_kill() && !by_time_out() && !by_loss()) by_nothing();
    finish();
    return std::move(result);
  }

 private:
  template <class Wanted>
  const Finding* earliest(Wanted wanted) const {
    const Finding* best = nullptr;
    for (const Finding* finding : live_)
      if (wanted(*finding) && (!best || earlier(finding->place, best->place))) best = finding;
    return best;
  }

  std::optional<int> culprit_rank() const {
    if (braid_) return braid_->rank;
    return culprit_ && signal_of_code(culprit_->code) != SIGTERM ? std::optional(culprit_->ranks[0]) : std::nullopt;
  }

  static bool is_strong_cause(const Finding& finding) {
    return role_of(finding.sign) == Role::Cause && finding.sign != Sign::NativeCrash && !finding.bare;
  }

  const Finding* best_cause() const {
    const auto rank = culprit_rank();
    if (rank)
      if (const Finding* own = earliest([&](const Finding& f) { return is_strong_cause(f) && f.rank == rank; }))
        return own;
    if (const Finding* strong = earliest(is_strong_cause)) return strong;
    const Finding* weak = earliest([](const Finding& f) { return f.bare && !f.traceback; });
    if (!weak) weak = earliest([](const Finding& f) { return f.bare; });
    const Finding* hang = earliest([](const Finding& f) { return is_time_out(f.sign); });
    const bool may_be_consequence = weak && (weak->sign == Sign::HostOom || weak->traceback);
    return may_be_consequence && hang && earlier(hang->place, weak->place) ? nullptr : weak;
  }

  // What came before a cause and explains it: an end from outside makes programs raise all kinds of exceptions.
  const Finding* outside_before(const Finding& cause) const {
    return earliest([&](const Finding& f) {
      return role_of(f.sign) == Role::Outside && f.sign != Sign::StepCancelled && f.sign != Sign::Interrupted &&
             earlier(f.place, cause.place);
    });
  }

  bool by_cause() {
    const Finding* cause = best_cause();
    if (!cause) return false;
    if (braid_ && !is_loss_of_peer(braid_->reason) && cause->rank != braid_->rank) return false;
    if (outside_before(*cause)) return false;
    name(*cause, refined(*cause));
    add_details(*cause);
    if (cause->sign == Sign::NotLaunched) explain_start(cause->text);
    if (cause->sign == Sign::GpuOom) explain(gpu_memory_text(cause->text));
    if (result.cause == Cause::MoeOom && findings_.num_experts)
      fix(expert_sizing_text(*findings_.num_experts, findings_.expert_parallel));
    if (cause->sign == Sign::PythonError || cause->sign == Sign::MissingImport || cause->sign == Sign::BraidError)
      explain(fmt::format("It is: {}", cause->text));
    return true;
  }

  void explain_start(std::string_view text) {
    const auto says = [&](std::string_view word) { return text.find(word) != std::string_view::npos; };
    if (says("pyxis")) {
      explain("Its container did not start.");
      fix("Check --container-image and --container-mounts; `enroot import` on a login node says more.");
    } else if (says("not found") || says("No such file")) {
      explain("There is no such program or file where it was started.");
      fix("Check the path, and that it is mounted into the container and installed on every node.");
    }
  }

  // What the same rank says right after it: which weights, the exception inside a worker.
  void add_details(const Finding& cause) {
    for (const Finding* finding : live_) {
      if (result.evidence.size() >= 4) return;
      const bool follows = finding->place.file == cause.place.file && finding->place.line > cause.place.line &&
                           finding->place.line < cause.place.line + 60;
      if (!follows || role_of(finding->sign) != Role::Cause) continue;
      if (!result.first_rank) result.first_rank = finding->rank;  // workers and libraries print without a prefix
      if (finding->rank == result.first_rank) add_evidence(*finding);
    }
  }

  Cause refined(const Finding& cause) const {
    const bool experts = (cause.traceback && cause.traceback->in_experts) || findings_.num_experts.value_or(0) > 1 ||
                         findings_.expert_parallel.value_or(1) > 1;
    if (cause.sign == Sign::GpuOom && experts) return Cause::MoeOom;
    if (std::string_view said = cause.text; cause.sign == Sign::BraidError && take(said, "braid:")) {
      if (const auto sign = sign_in(said); sign && role_of(*sign) == Role::Cause) return cause_of(*sign);
      if (said.starts_with(" cannot run ")) return Cause::NotLaunched;
    }
    const bool only_experts = findings_.differing_experts > 0 && findings_.differing_others == 0;
    if (cause.sign == Sign::WeightsDiffer && (findings_.fp8 || only_experts)) return Cause::Fp8RoundtripMismatch;
    if (cause.sign == Sign::PythonError && cause.traceback && cause.traceback->in_data && others_waited(cause))
      return Cause::DataRankCascade;
    return cause_of(cause.sign);
  }

  // Ranks that did not fail in their data themselves, but timed out or lost a peer.
  bool others_waited(const Finding& cause) const {
    std::set<int> failed_alike;
    for (const Finding* finding : live_)
      if (finding->sign == Sign::PythonError && finding->rank) failed_alike.insert(*finding->rank);
    return std::any_of(live_.begin(), live_.end(), [&](const Finding* f) {
      return role_of(f->sign) == Role::Consequence && f->sign != Sign::Stopped && f->rank != cause.rank &&
             (!f->rank || !failed_alike.count(*f->rank));
    });
  }

  bool by_braid() {
    if (!braid_) return false;
    const RootCauseLine& line = *braid_;
    if (is_loss_of_peer(line.reason)) {
      // A node that is gone, or Slurm's end of the job, explains a rank that is gone.
      if (earliest([](const Finding& f) { return role_of(f.sign) == Role::Outside && f.sign != Sign::StepCancelled; }))
        return false;
    }
    result.cause = cause_in_reason(line.reason);
    if (is_loss_of_peer(line.reason)) by_exit_of(line.rank);
    result.first_rank = line.rank;
    result.first_host = line.host;
    if (!result.exit_code) result.exit_code = exit_code_in(line.reason);
    add_evidence(line.place, line.text);
    explain(text_of(result.cause).meaning);
    explain(fmt::format("Rank {} ({}) was in {}: {}", line.rank, line.place_in_grid, line.operation, line.reason));
    return true;
  }

  // The board saw a connection end; srun saw how.
  void by_exit_of(int rank) {
    for (const WorkerExit& exit : findings_.exits) {
      if (exit.ranks != std::vector{rank} || findings_.survived(exit.place)) continue;
      const auto signal = signal_of_code(exit.code);
      if (signal == SIGKILL) result.cause = Cause::HostOom;
      if (signal == SIGBUS) result.cause = Cause::ShmBusError;
      if (!result.exit_code) result.exit_code = exit.code;
      add_evidence(exit.place, exit.text);
    }
  }

  bool by_outside() {
    // "Node failure on HOST" names the node; the host in "JOB 7 ON HOST CANCELLED ... DUE TO NODE FAILURE" is the batch
    // host.
    const Finding* end = earliest([](const Finding& f) { return f.sign == Sign::NodeFailure && !f.host.empty(); });
    if (!end) end = earliest([](const Finding& f) { return f.sign == Sign::NodeFailure || f.sign == Sign::CgroupOom; });
    if (!end)
      end = earliest([](const Finding& f) {
        return f.sign == Sign::TimeLimit || f.sign == Sign::Preempted || f.sign == Sign::JobCancelled;
      });
    const Finding* hang = earliest([](const Finding& f) { return is_time_out(f.sign); });
    const bool is_sudden = end && (end->sign == Sign::NodeFailure || end->sign == Sign::CgroupOom);
    if (end && !is_sudden && hang && earlier(hang->place, end->place)) return false;
    if (!end && !hang && !culprit_rank())
      end = earliest([](const Finding& f) { return role_of(f.sign) == Role::Outside; });
    if (!end) return false;
    name(*end, cause_of(end->sign));
    if (!is_sudden) result.first_rank.reset(), result.first_host.clear();  // nothing failed, nowhere
    if (end->sign == Sign::CgroupOom && !result.first_rank) rank_out_of_memory();
    if (end->sign == Sign::NodeFailure) rank_on_dead_node();
    return true;
  }

  // slurmstepd knows the step, srun the task.
  void rank_out_of_memory() {
    if (const Finding* task = earliest([](const Finding& f) { return f.sign == Sign::CgroupOom && f.rank; }))
      result.first_rank = task->rank;
    else if (culprit_ && signal_of_code(culprit_->code) == SIGKILL)
      result.first_rank = culprit_->ranks[0];
  }

  void rank_on_dead_node() {
    if (braid_ && (braid_->host == result.first_host || result.first_host.empty())) {
      result.first_rank = braid_->rank;
      result.first_host = braid_->host;
      add_evidence(braid_->place, braid_->text);
      return;
    }
    if (result.first_host.empty()) return;
    for (const auto& [rank, host] : findings_.hosts)
      if (host == result.first_host && !result.first_rank) result.first_rank = rank;
  }

  // The first process to go was killed, and nothing else says why.
  bool by_kill() {
    if (!culprit_) return false;
    const auto signal = signal_of_code(culprit_->code);
    const Finding* hang = earliest([](const Finding& f) { return is_time_out(f.sign); });
    if (!signal || *signal == SIGTERM || (hang && earlier(hang->place, culprit_->place) && !culprit_->root))
      return false;
    if (*signal == SIGABRT && hang) return false;
    result.cause = *signal == SIGKILL ? Cause::HostOom : *signal == SIGBUS ? Cause::ShmBusError : Cause::Unknown;
    result.first_rank = culprit_->ranks[0];
    result.first_host = culprit_->host;
    result.exit_code = result.exit_code ? result.exit_code : std::optional(culprit_->code);
    add_evidence(culprit_->place, culprit_->text);
    if (*signal != SIGKILL && *signal != SIGBUS)
      explain(fmt::format("Rank {} crashed in native code.", culprit_->ranks[0]));
    else
      explain(text_of(result.cause).meaning);
    explain(exit_code_text(culprit_->code));
    return true;
  }

  bool by_time_out() {
    const Finding* first = earliest([](const Finding& f) { return is_time_out(f.sign); });
    const Finding* network = earliest([](const Finding& f) { return f.sign == Sign::NetworkTrouble; });
    const Finding* unique_id = earliest([](const Finding& f) { return f.sign == Sign::UniqueIdTimeout; });
    if (!first && !network) return false;
    const bool saving = findings_.saved_artifacts || std::any_of(live_.begin(), live_.end(), [](const Finding* f) {
                          return is_time_out(f->sign) && f->traceback && f->traceback->in_saving;
                        });
    const Finding* telling = network ? network : unique_id ? unique_id : first;
    const Cause cause = network && !(first && saving) ? Cause::Network
                        : first && saving             ? Cause::ArtifactSaveHang
                                                      : cause_of(telling->sign);
    if (cause == Cause::ArtifactSaveHang) telling = unique_id ? unique_id : first;
    result.cause = cause;
    add_evidence(*telling);
    explain(text_of(cause).meaning);
    if (cause == Cause::Rank0BarrierTimeout || cause == Cause::ArtifactSaveHang) {
      result.first_rank = 0;
    } else if (cause == Cause::Network) {
      result.first_rank = telling->rank;
      result.first_host = telling->host;
    } else {
      blame_silence();
    }
    return true;
  }

  void blame_silence() {
    const Silence silence = find_silent_rank(findings_, complained_);
    result.first_rank = silence.rank;
    if (!silence.how.empty()) explain("The first to fail is the one that went silent: " + silence.how + ".");
  }

  bool by_loss() {
    const Finding* lost = earliest([](const Finding& f) { return f.sign == Sign::ConnectionLost; });
    const Finding* crash = earliest([](const Finding& f) { return f.sign == Sign::NativeCrash; });
    if (!lost && !crash) return false;
    const Finding* telling = crash ? crash : lost;
    add_evidence(*telling);
    if (culprit_ && culprit_->root && !culprit_->local && signal_of_code(culprit_->code) == SIGTERM) {
      result.first_rank = culprit_->ranks[0];
      explain(fmt::format("Rank {} was told to end (SIGTERM), and nobody says by whom.", culprit_->ranks[0]));
      return true;
    }
    if (crash) {
      result.first_rank = crash->rank;
      explain("A process crashed in native code, and the log does not say why.");
      return true;
    }
    const bool by_nccl =
        lost->text.find("network error") != std::string::npos || lost->text.find("NCCL") != std::string::npos;
    result.cause = by_nccl ? Cause::Network : Cause::Unknown;
    blame_silence();
    explain(by_nccl ? "A peer went away, or the network between the nodes failed, and no rank says why."
                    : "A peer went away without a word.");
    return true;
  }

  void by_nothing() {
    const bool code_says_so = result.exit_code.value_or(0) != 0;
    const auto bad_exit = std::find_if(findings_.exits.begin(), findings_.exits.end(),
                                       [&](auto& e) { return e.code != 0 && !findings_.survived(e.place); });
    const bool is_empty = total_bytes() == 0;
    if (culprit_ || bad_exit != findings_.exits.end()) {
      if (culprit_) result.first_rank = culprit_->ranks[0], result.first_host = culprit_->host;
      const WorkerExit& exit = culprit_ ? *culprit_ : *bad_exit;
      if (!result.exit_code) result.exit_code = exit.code;
      add_evidence(exit.place, exit.text);
      explain("The log does not say why.");
      explain(exit_code_text(exit.code));
      last_remarks();
    } else if (is_empty || (!findings_.program_spoke && !code_says_so)) {
      result.cause = Cause::NotLaunched;
      fix("Ask Slurm how the job is (`squeue -j JOB`, `sacct -j JOB`), and whether its output goes to this file.");
      explain(is_empty ? "The log is empty: nothing ever started." : "Nothing ever started: no program says anything.");
      result.failed = false;
    } else if (code_says_so) {
      explain("The log does not say why. " + exit_code_text(*result.exit_code));
      last_remarks();
    } else {
      result.failed = false;
      explain(findings_.ended_well() ? "Nothing failed here: the run came to its end."
                                     : "Nothing failed here: there is no error in the log.");
      if (!findings_.ended_well() && findings_.iteration && findings_.iterations &&
          *findings_.iteration < *findings_.iterations)
        explain(fmt::format(
            "It ends at iteration {} of {}: the job still runs, was killed without a word, or stopped early.",
            *findings_.iteration, *findings_.iterations));
    }
  }

  std::uint64_t total_bytes() const {
    std::uint64_t bytes = 0;
    for (const FileTrace& file : findings_.files) bytes += file.bytes;
    return bytes;
  }

  void last_remarks() {
    const std::size_t from = findings_.remarks.size() > 3 ? findings_.remarks.size() - 3 : 0;
    for (std::size_t i = from; i < findings_.remarks.size(); ++i) add_evidence(findings_.remarks[i]);
  }

  void name(const Finding& finding, Cause cause) {
    result.cause = cause;
    result.first_rank = finding.rank;
    result.first_host = finding.host;
    if (!finding.rank && culprit_rank() && role_of(finding.sign) != Role::Outside) result.first_rank = culprit_rank();
    add_evidence(finding);
    explain(text_of(cause).meaning);
  }

  // What launchers and other ranks said, after the cause itself.
  void add_consequences() {
    if (braid_) add_evidence(braid_->place, braid_->text);
    if (culprit_) add_evidence(culprit_->place, culprit_->text);
    for (const Sign sign :
         {Sign::NodeFailure, Sign::TimeLimit, Sign::CollectiveTimeout, Sign::UniqueIdTimeout, Sign::ConnectionLost})
      if (const Finding* other = earliest([&](const Finding& f) { return f.sign == sign; });
          other && result.evidence.size() < 5)
        add_evidence(other->place, other->shown);
  }

  void finish() {
    if (result.failed) add_consequences();
    if (result.first_host.empty() && result.first_rank)
      if (const auto host = findings_.hosts.find(*result.first_rank); host != findings_.hosts.end())
        result.first_host = host->second;
    if (result.first_host.empty() && culprit_ && result.first_rank && culprit_->ranks[0] == *result.first_rank)
      result.first_host = culprit_->host;
    if (!result.exit_code && culprit_ && result.failed) result.exit_code = culprit_->code;
    if (result.failed) result.cascade = cascade_text(findings_, result.first_rank);
    if (result.fix.empty() || result.cause == Cause::MoeOom)
      result.fix = std::string(result.failed || result.cause == Cause::NotLaunched ? text_of(result.cause).fix
                                                                                   : "Nothing to do.") +
                   (result.fix.empty() ? "" : " ") + result.fix;
  }

  const Findings& findings_;
  std::vector<const Finding*> live_;
  std::set<int> complained_;
  const WorkerExit* culprit_ = nullptr;
  const RootCauseLine* braid_ = nullptr;
};

}  // namespace

Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code) {
  return Judge(findings, exit_code).diagnose();
}

}  // namespace braid
