// The ways to come to a verdict. Each looks at what was found, and either concludes in the draft or returns no verdict.
#pragma once

#include <optional>

#include "cluster/doctor/verdict/draft.h"
#include "cluster/doctor/verdict/suspects.h"

namespace braid {

struct Trial {
  Trial(const Findings& findings, std::optional<int> exit_code);
  Trial(const Trial&) = delete;

  Verdict name(const Finding& finding, Cause cause);  // with its rank and host

  const Findings& findings;
  const Suspects suspects;
  const WorkerExit* const culprit;  // of the suspects
  const RootCauseLine* const braid;
  Draft draft;
  Diagnosis& result = draft.result;
};

Verdict by_cause(Trial& t);    // an error that a line names
Verdict by_braid(Trial& t);    // Braid's root cause line
Verdict by_outside(Trial& t);  // a scheduler, a node, a terminal
Verdict by_good_end(Trial& t);
Verdict by_mismatch(Trial& t);  // different collectives
Verdict by_kill(Trial& t);      // a signal
Verdict by_rendezvous(Trial& t);
Verdict by_time_out(Trial& t);
Verdict by_crash(Trial& t);  // in native code
Verdict by_loss(Trial& t);   // of a connection
Verdict by_words(Trial& t);  // of errors that have no known format
Verdict by_last_words(Trial& t);
Verdict by_exit(Trial& t);       // an exit code that a launcher tells
Verdict by_refusal(Trial& t);    // Slurm's
Verdict by_emptiness(Trial& t);  // of the log
Verdict by_leftovers(Trial& t);
Verdict by_exit_code(Trial& t);  // of the whole job
Verdict by_stall(Trial& t);      // ranks that somebody waits for when the log ends
Verdict by_nothing(Trial& t);    // always comes to a verdict

}  // namespace braid
