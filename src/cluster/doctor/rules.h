// The table of rules (rules.txt) and of causes (causes.txt): what single lines of a log mean, and what to do about it.
// Both files explain their format in their first lines. They are compiled in, and parsed once. RuleScan finds the rule
// that a line matches.
#pragma once

#include <bitset>

#include "cluster/doctor/text.h"

namespace braid {

extern const std::string_view kRulesTxt, kCausesTxt;

// The kinds of lines, in the order of [kinds] in rules.txt, which says what each one is.
enum class Sign {
  // clang-format off
  GpuOom, HostOom, DiskFull, SharedMemory, PortInUse, MissingImport, MegatronShadowed, CacheNotShared, ImageMissing,
  WeightsDiffer, StateDictDiffers, NotLaunched, ShellError, GpuSpecMissing, BadPartition, BadAccount, StepConfig,
  UvMissing, Hardware, CudaError, HubUnreachable, NanLoss, TooManyFiles, UnusedParameters, DuplicateGpu,
  CollectiveMismatch, BraidError, WrongArguments, PythonError, KilledByShell, NativeCrash,
  TimeLimit, Preempted, NodeFailure, JobCancelled, StepCancelled, CgroupOom, Interrupted, Hangup, TerminatedFromOutside,
  CollectiveTimeout, UniqueIdTimeout, StoreTimeout, RendezvousFailed, ConnectionLost, NetworkTrouble, Stopped,
  BraidRootCause, WorkerFailed, TaskExit, ProcessEnd, SpawnedProcess, WatchdogDied,
  TracebackStart, AbsentRank, RankBlock, ChainDuring, NotFatal, Progress, EndedWell, SaysDone,
  ScriptEndedWell, RunStarts, JobLimit, JobExit, SaveArtifacts, Saving, Saved, RunFact, BraidSays,
  BraidFix, Remark,
  // clang-format on
};

enum class Role { Cause, Outside, Consequence, Launcher, Context };

// The causes that a diagnosis can name, in the order of causes.txt.
enum class Cause {
  // clang-format off
  GpuOom, HostOom, MoeOom, TimeLimit, Preempted, NodeFailure, Cancelled, PortInUse, ImportError, PythonError,
  Rank0BarrierTimeout, ArtifactSaveHang, DataRankCascade, NcclTimeout, Network, ContainerCacheNotShared, DiskFull,
  ShmBusError, Fp8RoundtripMismatch, NotLaunched, GpuSpecMissing, BadPartition, BadAccount, StepConfig, UvMissing,
  MegatronShadowed, WeightLoadMismatch, CudaError, HubUnreachable, NanLoss, Segfault, TooManyFiles, Hangup,
  UnusedParameters, DuplicateGpu, CollectiveMismatch, Rendezvous, Killed, BraidFailure, Success, Unknown,
  // clang-format on
};

// A row of rules.txt: what its columns are is said there. A text fits it if it contains one alternative of the anchor
// and of each list of `also`, and none of `unless`.
struct Rule {
  std::string name;
  Sign sign = Sign::Remark;       // if the name is a kind of line
  Cause cause = Cause::Unknown;   // if it is a cause
  std::string anchor;             // in [lines] a literal of at least AnchorScan::kShortest bytes, or a pattern
  std::vector<std::string> also;  // alternatives are separated by "|"
  std::string unless;
  std::vector<std::string> answers;  // in [advice]: why it happened, and what to do
  std::vector<std::string> options;

  bool is(std::string_view option) const;  // whether it has the option
  bool fits(std::string_view text) const;  // beyond its anchor
};

struct CauseText {
  std::string slug;
  std::string meaning;  // a sentence; {} is the rank that failed first
  std::string fix;
  std::string slurm, kubernetes;  // what to do besides, where the log is of one of their jobs
  std::string saving;             // what to do if it happened while a model was saved
  std::string of;                 // "the whole job": no rank fails first
};

struct RuleTable {
  struct Kind {
    std::string name;
    Role role = Role::Context;
    Cause cause = Cause::Unknown;  // Unknown where a line alone does not tell
    bool is_quoted = false;        // in an explanation
  };
  std::vector<Kind> kinds;                                         // by Sign
  std::vector<CauseText> causes;                                   // by Cause, then special cases of them
  std::vector<Rule> lines;                                         // where several fit one line, the first is meant
  std::map<std::string, std::vector<Rule>, std::less<>> sections;  // the others
  std::map<std::string, std::string, std::less<>> words;           // lists of alternatives, by name
};

// ConfigError with the line's number where a text is not of the format.
RuleTable parse_rules(std::string_view rules, std::string_view causes);

const RuleTable& rules();  // those that are compiled in
const std::vector<Rule>& rows_of(std::string_view section);

inline Role role_of(Sign sign) { return rules().kinds[static_cast<std::size_t>(sign)].role; }
inline Cause cause_of(Sign sign) { return rules().kinds[static_cast<std::size_t>(sign)].cause; }
inline const CauseText& text_of(Cause cause) { return rules().causes[static_cast<std::size_t>(cause)]; }
const CauseText& text_named(std::string_view slug);  // of a cause, or a special case
inline std::optional<Sign> sign_of(const Rule* row) { return row ? std::optional(row->sign) : std::nullopt; }

// What a signal shows and usually means, unless somebody asked the process to end; nullptr for rare signals.
const Rule* row_of_signal(int signal);
inline Cause cause_of_signal(int signal) {  // Unknown for SIGTERM and others that people send
  const Rule* const row = row_of_signal(signal);
  return row ? row->cause : Cause::Unknown;
}

// A list of [words], and whether one of its words stands in the text.
const std::string& words_of(std::string_view list);
bool says(std::string_view text, std::string_view list);

// The first row of a section of patterns that matches the text: at its beginning if the row says "first", else
// anywhere.
const Rule* matching_row(std::string_view section, std::string_view text, Caught& caught);

// The first row of a section of words that fits the text, maybe among those of one kind; nullptr if there is none.
const Rule* row_for(std::string_view section, std::string_view text, std::optional<Sign> sign = {});

// The meaning of a text that is known to be a message, say the reason in a root cause. Kinds may be left out.
std::optional<Sign> sign_in(
    std::string_view text, const std::function<bool(Sign)>& wanted = [](Sign) { return true; });

// The rank that a message of this kind names itself.
std::optional<int> rank_told_by(Sign sign, std::string_view body);

// Finds any of many short literals in a text. Only where six bytes may begin a literal are they compared with it.
class AnchorScan {
 public:
  static constexpr std::size_t kShortest = 6;  // bytes of an anchor

  explicit AnchorScan(std::vector<std::string> anchors);

  // Calls found(anchor's number) for each occurrence of each anchor, until it returns false.
  template <class Found>
  void each(std::string_view text, Found found) const {
    for (std::size_t at = 0; at + kShortest <= text.size(); ++at) {
      const std::uint32_t slot = slot_of(text.data() + at);
      if (!may_begin_[slot]) continue;
      for (const int anchor : by_slot_.at(slot))
        if (text.substr(at).starts_with(anchors_[static_cast<std::size_t>(anchor)]) && !found(anchor)) return;
    }
  }

 private:
  static std::uint32_t slot_of(const char* text) {  // a hash of six bytes
    std::uint32_t first, last;
    std::memcpy(&first, text, sizeof first);
    std::memcpy(&last, text + kShortest - sizeof last, sizeof last);
    return (first * 2654435761u + last * 2246822519u) >> 16;
  }

  std::vector<std::string> anchors_;
  std::bitset<1 << 16> may_begin_;
  std::unordered_map<std::uint32_t, std::vector<int>> by_slot_;
};

// Finds the rule that a line matches: first the anchors in it, then the other words of their rules.
class RuleScan {
 public:
  RuleScan();

  // Calls found(rule) for each occurrence of each rule's anchor, until it returns false.
  template <class Found>
  void each(std::string_view text, Found found) const {
    scan_.each(text, [&](int rule) { return found(rules_[static_cast<std::size_t>(rule)]); });
  }

  // The first fitting rule; nullptr when none does. A rule is tried once, however often its anchor stands in the text.
  const Rule* first_fitting(std::string_view text);

  std::uint64_t tries() const { return tries_; }  // of a rule on a text, so far

 private:
  const std::vector<Rule>& rules_;
  const AnchorScan scan_;
  std::vector<std::uint64_t> tried_;  // by rule: the number of the text that it was last tried on
  std::uint64_t texts_ = 0, tries_ = 0;
};

}  // namespace braid
