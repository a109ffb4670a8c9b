// What went wrong by itself, or by Braid's own word.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "cluster/doctor/events/braid_reason.h"
#include "cluster/doctor/events/mismatch.h"
#include "cluster/doctor/lines/signals.h"
#include "cluster/doctor/lines/text_parts.h"
#include "cluster/doctor/verdict/details.h"
#include "cluster/doctor/verdict/verdicts.h"

namespace braid {
namespace {

bool is_told_in_its_own_words(Sign sign) {
  return sign == Sign::PythonError || sign == Sign::MissingImport || sign == Sign::BraidError ||
         sign == Sign::WrongArguments || sign == Sign::CudaError || sign == Sign::HubUnreachable ||
         sign == Sign::NanLoss;
}

// What the same rank says right after it: which weights, the exception inside a worker.
void add_details(Trial& t, const Finding& cause) {
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

void explain_memory(Trial& t, const std::string& message) {
  t.draft.explain(gpu_memory_text(message));
  const std::string device = device_in(message);
  if (device == "GPU") return;
  for (std::size_t at = 0; (at = t.result.explanation.find("GPU", at)) != std::string::npos; ++at)
    t.result.explanation.replace(at, 3, device);
  if (t.result.cause == Cause::GpuOom)
    t.draft.fix("Use a smaller batch or sequence, recompute activations, or split the model over more devices.");
}

// A program that no rank can start: none of them failed first.
bool is_refused_everywhere(const Trial& t, const Finding& cause) {
  if (cause.sign != Sign::NotLaunched && cause.sign != Sign::UvMissing) return false;
  std::set<int> ranks;
  for (const Finding* finding : t.suspects.live())
    if (finding->sign == cause.sign && finding->rank) ranks.insert(*finding->rank);
  for (const WorkerExit& exit : t.findings.exits)
    if (!cause.rank && exit.code != 0 && signal_of_code(exit.code) != SIGTERM)
      ranks.insert(exit.ranks.begin(), exit.ranks.end());
  return ranks.size() > 1;
}

// The board saw a connection end; srun saw how.
Cause cause_by_exit_of(Trial& t, int rank, Cause cause) {
  for (const WorkerExit& exit : t.findings.exits) {
    if (exit.ranks != std::vector{rank} || t.findings.survived(exit.place)) continue;
    const auto signal = signal_of_code(exit.code);
    if (signal && cause_of_signal(*signal) != Cause::Unknown) cause = cause_of_signal(*signal);
    if (!t.result.exit_code) t.result.exit_code = exit.code;
    t.draft.add_evidence(exit);
  }
  return cause;
}

}  // namespace

Verdict by_cause(Trial& t) {
  const Finding* cause = t.suspects.best_cause();
  if (!cause) return {};
  if (t.braid && !is_loss_of_peer(t.braid->reason) && cause->rank != t.braid->rank) return {};
  if (t.suspects.is_explained_from_outside(*cause) || t.suspects.is_explained_by_others(*cause)) return {};
  const Verdict verdict = t.name(*cause, t.suspects.refined(*cause));
  if (const Finding* hardware = t.suspects.hardware_behind(*cause)) t.draft.add_evidence(*hardware);
  add_details(t, *cause);
  // NCCL's own warnings name a device; the one rank that then complains is the one that had it.
  if (!t.result.first_rank && has_word(cause->text, "NCCL WARN") && t.suspects.complained().size() == 1)
    t.result.first_rank = *t.suspects.complained().begin();
  if (is_refused_everywhere(t, *cause)) t.result.first_rank.reset(), t.result.first_host.clear();
  if (cause->sign == Sign::NotLaunched || cause->sign == Sign::ShellError || cause->sign == Sign::ImageMissing) {
    const StartText start = start_text(cause->text, cause->sign);
    t.draft.explain(start.why);
    t.draft.fix(start.fix);
  }
  if (cause->sign == Sign::WrongArguments) t.draft.fix("Correct the arguments of the program.");
  if (cause->sign == Sign::PythonError) t.draft.fix(storage_fix(cause->text) + lost_loader_fix(cause->text));
  if (cause->sign == Sign::GpuOom) explain_memory(t, cause->text);
  if (cause->sign == Sign::CollectiveMismatch) t.draft.explain(mismatch_told_in(cause->text));
  if (t.result.cause == Cause::MoeOom && t.findings.num_experts)
    t.draft.fix(expert_sizing_text(*t.findings.num_experts, t.findings.expert_parallel));
  if (is_told_in_its_own_words(cause->sign)) t.draft.explain(fmt::format("It is: {}", cause->text));
  return verdict;
}

Verdict by_braid(Trial& t) {
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

}  // namespace braid
