// From findings to a diagnosis: what happened to a job, why, and what to do.
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
  std::size_t focus = 0;  // offset of the decisive words
};

struct Diagnosis {
  Cause cause = Cause::Unknown;
  bool failed = true;  // false: the log shows no failure
  std::optional<int> first_rank, exit_code;
  std::string first_host;
  std::vector<Evidence> evidence;  // the most important first
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
  // For a verdict on what the log does not say: quotes its last line, which only an empty log lacks.
  Verdict conclude_at_end(Cause cause);

  void add_evidence(const Finding& finding);  // and the innermost frame of its traceback
  void add_evidence(const WorkerExit& exit);
  void add_evidence(const QuotedLine& line);  // each line once, up to a limit
  void add_last_line();
  void explain(const std::string& sentence);
  void fix(const std::string& sentence);

  Diagnosis result;

 private:
  const Findings& findings_;
};

// What each way to a verdict reads and writes.
struct DiagnosisContext {
  DiagnosisContext(const Findings& findings, std::optional<int> exit_code);
  DiagnosisContext(const DiagnosisContext&) = delete;

  // Concludes with the rank and host of the finding.
  Verdict name(const Finding& finding, Cause cause);

  const Findings& findings;
  const Suspects suspects;
  const WorkerExit* const culprit;  // of the suspects
  const RootCauseLine* const braid;
  Draft draft;
  Diagnosis& result = draft.result;
};

// Tries the ways to come to a verdict, in their order; the last one always comes to one.
void find_verdict(DiagnosisContext& context);

// Pure: the same findings give the same diagnosis.
Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code);

// "It tried to allocate 20.00 GiB on a GPU of 79.11 GiB with 1.20 GiB free and 77.90 GiB in use."; empty when the
// message has no sizes.
std::string device_in(std::string_view message);  // "GPU", or what the message says it is
std::string gpu_memory_text(std::string_view message);

// The expert parallel size that would help: "EP 4 puts 64 of 256 experts on each GPU; EP 16 would give 16 experts/GPU."
std::string expert_sizing_text(std::int64_t num_experts, std::optional<std::int64_t> expert_parallel);

// "Exit code 137 is SIGKILL (Killed): killed from outside."
std::string exit_code_text(int code);

// What to do if memory ran out while weights were gathered to be saved.
std::string saving_memory_fix(Cause cause, const Launchers& launchers);

// "The other 7 ranks ended after it: 7 x SIGTERM."; empty if nothing happened to others.
std::string cascade_text(const Findings& findings, std::optional<int> first_rank);

}  // namespace braid
