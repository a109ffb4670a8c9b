// The table of rules (rules.txt) and of causes (causes.txt): what single lines of a log mean, and what to do about it.
// Both files explain their format in their first lines. They are compiled in, and parsed once. RuleScan finds the rule
// that a line matches.
#pragma once

#include "base/ranges.h"
#include "cluster/lines/anchor_scan.h"
#include "cluster/lines/rows.h"

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

// A row of rules.txt: what its columns are is said there.
struct Rule : Row {
  Sign sign = Sign::Remark;      // if the name is a kind of line
  Cause cause = Cause::Unknown;  // if it is a cause
};

struct CauseText {
  std::string slug;
  std::map<std::string, std::string, std::less<>> texts;

  std::string get(std::string_view key) const {  // empty if there is no such text
    const auto found = texts.find(key);
    return found == texts.end() ? "" : found->second;
  }
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

inline const Rule* matching_row(std::string_view section, std::string_view text, Caught& caught) {
  return matching_row(rows_of(section), text, caught);
}

// The first row of a section of words that fits the text, maybe among those of one kind; nullptr if there is none.
const Rule* row_for(std::string_view section, std::string_view text, std::optional<Sign> sign = {});

// The meaning of a text that is known to be a message, say the reason in a root cause. Kinds may be left out.
std::optional<Sign> sign_in(
    std::string_view text, const std::function<bool(Sign)>& wanted = [](Sign) { return true; });

// The rank that a message of this kind names itself.
std::optional<int> rank_told_by(Sign sign, std::string_view body);

// Finds the rule that a line matches: first the anchors in it, then the other words of their rules.
class RuleScan {
 public:
  // Calls found(rule) for each occurrence of each rule's anchor, until it returns false.
  template <class Found>
  void each(std::string_view text, Found found) const {
    scan_.each(text, [&](int rule) { return found(rules_[static_cast<std::size_t>(rule)]); });
  }

  // The first fitting rule; nullptr when none does. A rule is tried once, however often its anchor stands in the text.
  const Rule* first_fitting(std::string_view text);

  std::uint64_t tries() const { return tries_; }  // of a rule on a text, so far

 private:
  const std::vector<Rule>& rules_ = rules().lines;
  const AnchorScan scan_{vector_of<std::string>(rules_, &Rule::anchor)};
  std::set<int> candidates_;  // rules whose anchors stand in the text
  std::uint64_t tries_ = 0;
};

}  // namespace braid
