#include "cluster/doctor/verdict/judge.h"

#include "cluster/doctor/verdict/closing.h"
#include "cluster/doctor/verdict/details.h"
#include "cluster/doctor/verdict/verdicts.h"

namespace braid {

Trial::Trial(const Findings& all, std::optional<int> exit_code)
    : findings(all), suspects(all), culprit(suspects.culprit()), braid(suspects.braid()), draft(all) {
  result.exit_code = exit_code ? exit_code : all.exit_code;
}

Verdict Trial::name(const Finding& finding, Cause cause) {
  result.first_rank = finding.rank;
  result.first_host = finding.host;
  if (!finding.rank && suspects.culprit_rank() && role_of(finding.sign) != Role::Outside)
    result.first_rank = suspects.culprit_rank();
  draft.explain(finding.sign == Sign::WrongArguments ? "The program does not accept its arguments."
                                                     : text_of(cause).meaning);
  const bool is_memory = cause == Cause::GpuOom || cause == Cause::MoeOom || cause == Cause::HostOom;
  const bool is_in_step = finding.traceback && !finding.traceback->in_saving;
  if (is_memory && !is_in_step && suspects.came_while_saving(finding))
    draft.fix(saving_memory_fix(cause, findings.launchers));
  return draft.conclude(cause, finding);
}

// The first way that comes to a verdict.
Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code) {
  static constexpr Verdict (*kWays[])(Trial&) = {by_cause,     by_braid,      by_outside,  by_good_end, by_mismatch,
                                                 by_kill,      by_rendezvous, by_time_out, by_crash,    by_loss,
                                                 by_words,     by_last_words, by_exit,     by_refusal,  by_emptiness,
                                                 by_exit_code, by_leftovers,  by_stall,    by_nothing};
  Trial trial(findings, exit_code);
  for (const auto way : kWays)
    if (way(trial)) break;
  close_verdict(trial.draft, findings, trial.suspects);
  return std::move(trial.result);
}

}  // namespace braid
