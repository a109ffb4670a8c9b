// A diagnosis while it is made.
#pragma once

#include <string>

#include "doctor/events/findings.h"
#include "doctor/verdict/diagnosis.h"

namespace braid {

class Draft {
 public:
  explicit Draft(const Findings& findings) : findings_(findings) {}

  void add_evidence(const Finding& finding);  // with the innermost frame of its traceback
  void add_evidence(const WorkerExit& exit);
  void add_evidence(const Place& place, const std::string& text,
                    std::size_t focus = 0);  // a line once, and only so many
  void explain(const std::string& sentence);
  void fix(const std::string& sentence);

  Diagnosis result;

 private:
  const Findings& findings_;
};

}  // namespace braid
