// What happened to a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/doctor/findings.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/suspects.h"

namespace braid {

struct Evidence {
  std::string file;
  std::uint64_t line = 0;
  std::string text;
  std::size_t focus = 0;  // where in it the words are that tell
};

struct Diagnosis {
  Cause cause = Cause::Unknown;
  bool failed = true;  // false: nothing failed here that the log knows of
  std::optional<int> first_rank, exit_code;
  std::string first_host;
  std::vector<Evidence> evidence;  // the most telling first
  std::string explanation, cascade, fix;
};

// Whether a way has come to a verdict; by default it has not.
class Verdict {
 public:
  Verdict() = default;
  explicit operator bool() const { return made_; }

 private:
  friend class Draft;
  explicit Verdict(bool made) : made_(made) {}
  bool made_ = false;
};

class Draft {
 public:
  explicit Draft(const Findings& findings) : findings_(findings) {}

  // Names the cause, with the finding, exit or quoted line that shows it.
  template <class Line>
  Verdict conclude(Cause cause, const Line& shows) {
    add_evidence(shows);
    result.cause = cause;
    return Verdict(true);
  }
  // For what the log does not say: cites its last line. Only an empty log has none.
  Verdict conclude_at_end(Cause cause);

  void add_evidence(const Finding& finding);  // with the innermost frame of its traceback
  void add_evidence(const WorkerExit& exit);
  void add_evidence(const QuotedLine& line);  // a line once, and only so many
  void add_last_line();
  void explain(const std::string& sentence);
  void fix(const std::string& sentence);

  Diagnosis result;

 private:
  const Findings& findings_;
};

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

Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code);

// "It tried to allocate 20.00 GiB on a GPU of 79.11 GiB with 1.20 GiB free and 77.90 GiB in use."; empty when the
// message has no sizes.
std::string device_in(std::string_view message);  // "GPU", or what the message says it is
std::string gpu_memory_text(std::string_view message);

// What EP would have to be: "EP 4 puts 64 of 256 experts on each GPU; EP 16 would give 16 experts/GPU."
std::string expert_sizing_text(std::int64_t num_experts, std::optional<std::int64_t> expert_parallel);

// "Exit code 137 is SIGKILL (Killed): killed from outside."
std::string exit_code_text(int code);

// What to do when memory ran out while weights were collected to be written.
std::string saving_memory_fix(Cause cause, const Launchers& launchers);

// "The other 7 ranks went down after it: 7 x SIGTERM."; empty when nothing happened to others.
std::string cascade_text(const Findings& findings, std::optional<int> first_rank);

}  // namespace braid
