// The ways to come to a verdict. Each looks at what was found, and either names a cause in the draft or returns false.
#pragma once

#include <optional>

#include "doctor/verdict/draft.h"
#include "doctor/verdict/suspects.h"

namespace braid {

struct Trial {
  Trial(const Findings& findings, std::optional<int> exit_code);
  Trial(const Trial&) = delete;

  void name(const Finding& finding, Cause cause);  // with its rank and host, as evidence

  const Findings& findings;
  const Suspects suspects;
  const WorkerExit* const culprit;  // of the suspects
  const RootCauseLine* const braid;
  Draft draft;
  Diagnosis& result = draft.result;
};

bool by_cause(Trial& t);    // an error that a line names
bool by_braid(Trial& t);    // Braid's root cause line
bool by_outside(Trial& t);  // a scheduler, a node, a terminal
bool by_good_end(Trial& t);
bool by_mismatch(Trial& t);  // different collectives
bool by_kill(Trial& t);      // a signal
bool by_rendezvous(Trial& t);
bool by_time_out(Trial& t);
bool by_crash(Trial& t);  // in native code
bool by_loss(Trial& t);   // of a connection
bool by_words(Trial& t);  // of errors that have no known format
bool by_last_words(Trial& t);
bool by_exit(Trial& t);       // an exit code that a launcher tells
bool by_refusal(Trial& t);    // Slurm's
bool by_emptiness(Trial& t);  // of the log
bool by_leftovers(Trial& t);
bool by_exit_code(Trial& t);  // of the whole job
bool by_stall(Trial& t);      // ranks that somebody waits for when the log ends
bool by_nothing(Trial& t);    // always comes to a verdict

}  // namespace braid
