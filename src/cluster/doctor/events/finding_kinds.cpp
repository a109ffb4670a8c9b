#include "cluster/doctor/events/finding_kinds.h"

#include <algorithm>
#include <string>

#include "cluster/doctor/events/line_kinds.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

// Whether a word ends here, with its plural: after "process" in "processes", but not in "processing" or
// "process_group".
bool ends_word(std::string_view rest) {
  if (!take(rest, "es")) take(rest, "s");
  return rest.empty() || !(is_letter(rest[0]) || rest[0] == '_');
}

// "worker 3 (pid 4711) has died": whether one of the events stands near one of the things.
bool says_near(std::string_view text, std::string_view things, const char* events) {
  constexpr std::size_t kNear_bytes = 60;
  while (!things.empty()) {
    const std::string_view thing = things.substr(0, things.find('|'));
    things.remove_prefix(std::min(thing.size() + 1, things.size()));
    for (std::size_t at = 0; (at = text.find(thing, at)) != std::string_view::npos; ++at) {
      const bool is_inside = at > 0 && (is_letter(text[at - 1]) || std::string_view("._/'\"").find(text[at - 1]) !=
                                                                       std::string_view::npos);  // of a name
      const std::size_t begin = at > kNear_bytes ? at - kNear_bytes : 0;
      if (!is_inside && ends_word(text.substr(at + thing.size())) &&
          has_one_of(text.substr(begin, at - begin + thing.size() + kNear_bytes), events))
        return true;
    }
  }
  return false;
}

}  // namespace

bool is_strong_cause(const Finding& finding) {
  const bool has_reason = finding.sign != Sign::NativeCrash || finding.traceback || reports_dead_loader(finding.text);
  return role_of(finding.sign) == Role::Cause && has_reason && !finding.bare;
}

bool is_unspecific_failure(const Finding& finding) {
  if (finding.sign != Sign::PythonError) return false;
  for (const char* word : {"XlaRuntimeError: INTERNAL", "JaxRuntimeError: INTERNAL", "errors_impl.InternalError",
                           "errors_impl.UnknownError", "errors_impl.AbortedError", "Some bad things happened"})
    if (has_word(finding.text, word)) return true;
  return false;
}

bool reports_lost_process(const Finding& finding) {
  if (finding.sign != Sign::PythonError) return false;
  const std::string low = in_small_letters(finding.text);
  if (has_word(low, "ran out of input")) return false;  // pickle's EOFError: a file is empty
  return has_one_of(low,
                    "tuneerror|brokenprocesspool|brokenexecutor|killedworker|workergrouperror|eoferror|workerlosterror|"
                    "workercrashed|training failed|training has failed|training run failed|training crashed|"
                    "training aborted|training was aborted|training did not complete") ||
         says_near(low, "worker|process|subprocess|actor|executor|trial|child|job|command|launch",
                   "died| dead|killed|alive|unexpectedly|abruptly|crashed| gone| failed|aborted|not complete| lost");
}

}  // namespace braid
