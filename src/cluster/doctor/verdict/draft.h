// A diagnosis while it is made. Only Draft::conclude makes a verdict, and it needs the line that shows the cause.
#pragma once

#include <string>

#include "cluster/doctor/events/findings.h"
#include "cluster/doctor/verdict/diagnosis.h"

namespace braid {

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

}  // namespace braid
