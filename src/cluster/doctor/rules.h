// The table of rules (rules.txt) and of causes (causes.txt): what single lines of a log mean, and what to do about it.
// Both files explain their format in their first lines. They are compiled in, and parsed once. RuleScan finds the rule
// that a line matches.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  BraidRootCause, WorkerFailed, TaskExit, ProcessEnd, SpawnedProcess, WatchdogDied, MonitoredBarrier,
  TracebackStart, AbsentRank, RankBlock, ChainDuring, NotFatal, FailureBlock, Progress, EndedWell, SaysDone,
  ScriptEndedWell, RunStarts, JobLimit, JobExit, SaveArtifacts, Saving, Saved, RunFact, LastEnqueued, BraidSays,
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
  std::string meaning;  // a sentence
  std::string fix;
  std::string slurm, kubernetes;  // what to do besides, where the log is of one of their jobs
  bool of_whole_job = false;      // no rank fails first
};

struct RuleTable {
  struct Kind {
    std::string name;
    Role role = Role::Context;
    Cause cause = Cause::Unknown;  // Unknown where a line alone does not tell
  };
  struct Signal {
    Cause cause = Cause::Unknown;  // what it shows, unless somebody asked the process to end
    std::string usual;             // what it usually means
  };
  std::vector<Kind> kinds;        // by Sign
  std::vector<CauseText> causes;  // by Cause
  std::vector<Rule> lines;        // where several fit one line, the first is meant
  std::map<int, Signal> signals;
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
Cause cause_of_signal(int signal);  // Unknown for SIGTERM and others that people send

// A list of [words], and whether one of its words stands in the text.
const std::string& words_of(std::string_view list);
bool says(std::string_view text, std::string_view list);

// The first row of a section of words that fits the text, maybe among those of one kind; nullptr if there is none.
const Rule* row_for(std::string_view section, std::string_view text, std::optional<Sign> sign = {});
std::optional<Sign> sign_by_words(std::string_view section, std::string_view text);

// The meaning of a text that is known to be a message, say the reason in a root cause. Kinds may be left out.
std::optional<Sign> sign_in(
    std::string_view text, const std::function<bool(Sign)>& wanted = [](Sign) { return true; });

// The rank that a message of this kind names itself.
std::optional<int> rank_told_by(Sign sign, std::string_view body);

// Finds any of many short literals in a text in one pass (Wu-Manber, blocks of three bytes): most steps skip several
// bytes. With blocks of two, hundreds of anchors would leave hardly a pair of letters that none of them has.
class AnchorScan {
 public:
  static constexpr std::size_t kShortest = 6;  // bytes of an anchor; the longest skip is two less

  // `usual` is what most text looks like. Of each anchor those kShortest bytes are searched for that are the least
  // usual, so that usual text is skipped fast.
  AnchorScan(std::vector<std::string> anchors, std::string_view usual);

  // Calls found(anchor's number) for each occurrence of each anchor, until it returns false.
  template <class Found>
  void each(std::string_view text, Found found) const;

 private:
  static constexpr std::size_t kBlock = 3, kLastBlock = kShortest - kBlock;
  static constexpr std::uint8_t kMostShift = kLastBlock + 1;
  static_assert(kMostShift == 4, "a bit of its own, which no smaller shift has");

  // Texts are nearly all letters, whose highest bits are 0: the third byte is laid over those of the other two.
  static std::uint16_t block_at(const char* text) {
    std::uint16_t two;
    std::memcpy(&two, text, sizeof two);
    return static_cast<std::uint16_t>(two ^ (static_cast<unsigned char>(text[2]) << 7));
  }
  static std::vector<int> weights_of_blocks(std::string_view usual);

  struct Entry {
    std::uint32_t head;    // the first four bytes that are searched for
    std::uint16_t before;  // how many bytes of the anchor stand before them
    std::int16_t anchor;
  };

  std::vector<std::string> anchors_;
  std::vector<std::uint8_t> shift_;   // by block_at: how far the window may move
  std::vector<std::uint32_t> first_;  // by block_at: entries_[first_[b]] up to entries_[first_[b + 1]]
  std::vector<Entry> entries_;
};

template <class Found>
void AnchorScan::each(std::string_view text, Found found) const {
  if (text.size() < kShortest) return;
  const std::uint8_t* const shifts = shift_.data();
  const char* const begin = text.data();
  const char* const end = begin + text.size() - (kBlock - 1);  // the last block begins before it
  for (const char* at = begin + kLastBlock; at < end;) {
    // Where nothing is known, two steps at a time, which need not wait for each other.
    while (end - at > kMostShift && (shifts[block_at(at)] & shifts[block_at(at + kMostShift)]) == kMostShift)
      at += 2 * kMostShift;
    if (at >= end) return;
    const std::uint16_t block = block_at(at);
    if (const std::uint8_t shift = shifts[block]) {
      at += shift;
      continue;
    }
    const auto start = static_cast<std::size_t>(at - begin) - kLastBlock;
    std::uint32_t head;
    std::memcpy(&head, begin + start, sizeof head);
    for (std::uint32_t i = first_[block]; i < first_[block + 1u]; ++i) {
      const Entry& entry = entries_[i];
      if (entry.head != head || start < entry.before) continue;
      const std::string& anchor = anchors_[static_cast<std::size_t>(entry.anchor)];
      if (text.compare(start - entry.before, anchor.size(), anchor) == 0 && !found(static_cast<int>(entry.anchor)))
        return;
    }
    ++at;
  }
}

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
