#include "cluster/doctor/events/last_words.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "cluster/doctor/events/line_kinds.h"
#include "cluster/doctor/events/progress_styles.h"
#include "cluster/doctor/lines/line_prefix.h"
#include "cluster/doctor/lines/text_parts.h"
#include "cluster/doctor/lines/text_pattern.h"

namespace braid {
namespace {

// One of each list, in small letters, must stand in the line. The first row that fits counts.
struct Words {
  Sign sign;
  const char* what;
  const char* how = "";
  const char* end = "";
};

constexpr const char* kEnds =
    "terminat|kill|stopp|cancel|abort|ended|ending|shut|evict|interrupt|reclaim|taken away|preempted|drain";

constexpr Words kWords[] = {
    {Sign::Preempted, "preempt|spot instance|spot vm|spot node|reclaim|evicted|instance-action", kEnds},
    {Sign::Preempted, "maintenance", "terminat|kill|shut|drain|migrat"},
    {Sign::Preempted, "termination notice|interruption notice|higher priority|higher-priority"},
    {Sign::TimeLimit,
     "time limit|timelimit|walltime|wall time|wall clock|wall-clock|wallclock|maximum run|max run|maximum "
     "allowed|maximum "
     "duration|"
     "maximum execution|its deadline|job deadline|specified deadline|time budget|allocation",
     "exceed|reached|expired|ran out|longer than|hit the"},
    {Sign::TimeLimit, "job timed out|task timed out|run timed out|out of time|reason: walltime|reason: timeout"},
    {Sign::TimeLimit, "longer than the allowed|longer than allowed"},
    {Sign::CgroupOom, "memory", "exceed|ran out|over limit|over its limit|too much|exhausted", kEnds},
    {Sign::CgroupOom, " oom|(oom", "kill|terminat|event|exit"},
    {Sign::JobCancelled, "cancelled by|canceled by|stopped by|terminated by|deleted by|aborted by|killed by",
     "user|admin|owner|operator|request|api|client"},
    {Sign::JobCancelled,
     "job cancel|run cancel|task cancel|workflow cancel|was cancelled|was canceled|been cancelled|been canceled|"
     "cancellation request"},
    {Sign::NodeFailure, "node|host |machine|server|hardware|instance",
     " is down|unreachable|lost contact|not responding|unresponsive|unhealthy|failed health|rebooted|went down|"
     "has died|crashed|lost connection|lost communication|went away|disappeared|not ready|failure detected|is faulty"},
    {Sign::DiskFull, "disk|storage|filesystem|file system|volume", "is full|exceeded|exhausted|ran out|no space"},
    {Sign::NotLaunched, "image", "pull|image not found|manifest unknown|unauthorized|will run as root"},
    {Sign::NotLaunched, "executable|command|entrypoint|interpreter|python|torchrun|script|binary",
     "not found|no such file|permission denied|cannot execute|could not be executed"},
    {Sign::NotLaunched,
     "start failed|failed to start|failed to launch|failed to create|could not start|could not launch|"
     "unable to start|unable to launch|cannot start|could not be started|error response from daemon|failed to schedule",
     "container|pod|job|task|process|step|daemon|sandbox|shim|worker|script|instance"},
    {Sign::NativeCrash,
     "segfault|segmentation fault|segmentation violation|core dumped)|sigsegv|sigabrt|sigill|sigfpe|stack "
     "overflow|panicked at|access violation|"
     "abort trap|nil pointer"},
    {Sign::KilledByShell, "sigkill|signal 9|signal: killed|was killed"},
    {Sign::CollectiveTimeout, "barrier|collective|allreduce|all_reduce|all-reduce|allgather|nccl|rccl|hccl",
     "timed out|timeout"},
    {Sign::CollectiveTimeout, "hang detected|no progress for|seems to hang|appears to be stuck"},
    {Sign::RendezvousFailed, "rendezvous|coordinator|master|joining the|to join the",
     "timed out|unable|could not|refused|failed"},
    {Sign::NetworkTrouble, "connection|network|socket|peer",
     "refused|reset by|lost|unreachable|timed out|broken|aborted"},
};

// Lines that speak of what may be, is switched on or off, is counted, or is over.
constexpr const char* kConditions =
    " if | unless |in case|when the|will be killed|handler|enabled|disabled|=false|: false|=true|: true|=none|: none|"
    "--|reschedul|retry|while requesting|reconnect|falling back|fall back|ignor|resum|restor|successful|recovered| may "
    "| might |?|"
    ": 0| 0 |so far|earlier|session|wandb|w&b|mlflow|tensorboard|deprecated|environment to|mpispawn_";

// Of something that went on: only an end from outside is told in a line that is marked so.
bool is_for_information(std::string_view line) {
  return is_warning(line) || has_one_of(line, "INFO|rWarning|eWarning|nWarning|wandb|[W|WARN ");
}

// "  hang_limit_s: 300   # end the run when a rank makes no progress": a recipe that a run prints.
std::string_view without_comment(std::string_view line) {
  return trimmed(line).starts_with('#') ? "" : line.substr(0, line.find("  # "));
}

// "task rank 3 on host n2 failed": a launcher of any kind says who it was.
std::optional<int> rank_that_failed(std::string_view line) {
  constexpr std::size_t kNear = 60;
  for (std::size_t at = 1; (at = line.find("ank ", at)) != std::string_view::npos; ++at) {
    Caught caught;
    const auto length = match_front("ank %r", line.substr(at), caught);
    const std::string_view before = trimmed(line.substr(0, at - 1));
    if (!length || (line[at - 1] != 'r' && line[at - 1] != 'R') || before.ends_with("ocal") || before.ends_with("ode"))
      continue;
    const std::string_view near = line.substr(at + *length, kNear);
    const bool is_prefix = near.starts_with(']') || near.starts_with(')');
    if (!is_prefix && has_one_of(near, " failed| died| crashed| exited| was killed| aborted| terminated| lost") &&
        !has_one_of(near, "failed to |exited normally|exited with code 0|exit code 0"))
      return caught.rank;
  }
  return std::nullopt;
}

Place seen_place(std::uint64_t line, const Findings& findings) {
  return {.file = static_cast<int>(findings.files.size()) - 1, .line = line};
}

}  // namespace

std::optional<Sign> sign_of_last_words(std::string_view line) {
  constexpr std::size_t kLongest = 600;
  const std::string low = in_small_letters(without_comment(line).substr(0, kLongest));
  if (has_one_of(low, kConditions) || low.starts_with('{') || low.starts_with('+')) return std::nullopt;
  for (const Words& words : kWords)
    if (has_one_of(low, words.what) && has_one_of(low, words.how) && has_one_of(low, words.end))
      return role_of(words.sign) != Role::Outside && is_for_information(line) ? std::nullopt
                                                                              : std::optional(words.sign);
  return std::nullopt;
}

void note_last_words(std::string_view text, std::uint64_t last, Findings& findings) {
  constexpr std::size_t kLines = 20, kMostKept = 16;
  std::vector<Finding> found;
  for (std::size_t number = 0; number < kLines && !text.empty() && last > number; ++number) {
    if (text.ends_with('\n')) text.remove_suffix(1);
    const std::size_t begin = text.rfind('\n') + 1;
    const std::string line = clean_text(text.substr(begin));
    text = text.substr(0, begin);
    auto& last_line = findings.files.back().last;
    if (!last_line && !trimmed(line).empty()) last_line = {seen_place(last - number, findings), line};
    if (!bar_in(line).empty() || step_in(line)) break;  // training went on after what came before
    const LineMarks marks = marks_of(line);
    if (const auto rank = rank_that_failed(marks.body)) findings.named_failed = rank;
    const auto sign = sign_of_last_words(marks.body);
    if (!sign || is_of_the_scheduler(trimmed(marks.body))) continue;  // Slurm's words are known
    if (role_of(*sign) != Role::Outside && (marks.level == 'I' || marks.level == 'W')) continue;
    SeenLine seen;
    seen.text = line;
    seen.shown = line;
    seen.place = seen_place(last - number, findings);
    found.push_back(finding_in(*sign, marks, seen, findings));
  }
  std::reverse(found.begin(), found.end());
  for (Finding& finding : found)
    if (findings.last_words.size() < kMostKept) findings.last_words.push_back(std::move(finding));
}

}  // namespace braid
