#include "cluster/doctor/events/mentions.h"

#include <algorithm>

#include "cluster/doctor/events/line_kinds.h"
#include "cluster/doctor/events/traceback.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

// Programs and models write about these errors. "Tried to allocate" only the error itself says.
bool is_mention(Sign sign, std::string_view body) {
  if ((sign != Sign::GpuOom && sign != Sign::MissingImport) || body.starts_with("terminate called")) return false;
  if (has_one_of(body, "ErrorMessage \"|\"error\":|\"exception\":|cudaMalloc: "))
    return false;  // SageMaker, JSON, Kaldi
  std::size_t at = body.size();
  for (const Rule& rule : rules())
    if (rule.sign == sign) at = std::min(at, body.find(rule.anchor));
  const bool is_code = body.substr(at, 12).find_first_of("abcdefghijklmnopqrstuvwxyz ") == std::string_view::npos;
  if (is_code || has_word(body, "Error while finding module")) return false;
  const std::string_view before = body.substr(0, at);
  const bool is_quoted = std::count(before.begin(), before.end(), '"') % 2 == 1;
  if (has_word(body, "Tried to allocate")) return is_quoted;
  const std::string_view after = behind(body, "out of memory").value_or("");
  const bool goes_on = after.size() > 1 && after[0] == ' ' && is_letter(after[1]);  // "... is not the reason"
  return is_prose(before) || (goes_on && exception_type(trimmed(body)).empty());
}

// A script that is printed, by `set -x` or as a whole.
bool is_source_of_shell(std::string_view body) {
  for (const char* word : {"+ ", "++ ", "trap ", "echo ", "# ", "#SBATCH"})
    if (body.starts_with(word)) return true;
  return false;
}

// Services that keep metrics: training goes on without them.
bool is_of_a_tracker(std::string_view body) {
  for (const char* name : {"wandb", "mlflow", "clearml", "neptune", "comet_ml", "swanlab", "tensorboard"})
    if (has_word(body, name)) return true;
  return false;
}

// The program says itself that it can do without.
bool says_it_goes_on(std::string_view body) {
  return has_one_of(
      body,
      "etrying|will retry|thrown while requesting|accepting this|ontinuing anyway|ontinue anyway|roceeding anyway|"
      "ontinuing without|ontinuing with |roceeding without|can be ignored|safely ignore");
}

// Python's loggers write the level as a word: "INFO:httpx:", "2026-11-15 10:00:00 - INFO - ", "[INFO]",
// "| INFO |", "2026-11-15 10:00:00 INFO ".
bool has_level_of_information(const LineMarks& marks) {
  constexpr std::size_t kLongestPrefix = 100;
  const std::string_view prefix = trimmed(marks.body).substr(0, kLongestPrefix);
  if (prefix.starts_with("INFO:") || (marks.time && prefix.starts_with("INFO "))) return true;
  for (const char* level : {" - INFO - ", "[INFO]", "| INFO |", "| INFO     |"})
    if (const std::size_t at = prefix.find(level); at != std::string_view::npos) return !is_prose(prefix.substr(0, at));
  return false;
}

}  // namespace

bool is_information(const LineMarks& marks) {
  return marks.level == 'I' || marks.level == 'W' || has_level_of_information(marks);
}

bool is_noise(Sign sign, const LineMarks& marks) {
  const std::string_view body = marks.body;
  if (body.find("frame #") < 4 || is_source_of_shell(body)) return true;
  if (sign == Sign::Stopped || role_of(sign) == Role::Outside || has_word(body, "vict") || reports_dead_loader(body))
    return false;
  if (is_information(marks) && sign != Sign::NanLoss && sign != Sign::NativeCrash &&
      !has_word(body, "*** SIG"))  // Paddle tells of signals so
    return true;
  if (sign == Sign::HubUnreachable && is_of_a_tracker(body)) return true;
  if (sign == Sign::ConnectionLost && has_word(body, " NCCL INFO ")) return true;  // also when all ended well
  if (sign == Sign::NanLoss && has_one_of(body, " if | when | whether ")) return true;
  if (sign == Sign::NanLoss && has_one_of(body, "stopping|aborting|exiting|terminating|was stopped|stop training"))
    return false;
  return is_warning(body.substr(0, 200)) || says_it_goes_on(body) ||
         (marks.level != 'E' && marks.level != 'F' && is_mention(sign, body));
}

bool is_often_outlived(Sign sign, std::string_view body) {
  if (sign == Sign::MissingImport) return has_word(body, "ImportError") || has_word(body, "ModuleNotFoundError");
  if (sign == Sign::CudaError) return !has_word(body, "what()") && !has_word(body, "Rank ");
  if (sign == Sign::NotLaunched)
    return has_one_of(body,
                      "Lmod|odulefile|CondaE|CommandNotFoundE|srun: fatal|FATAL:  |Error from server (|ommand not "
                      "found|Undefined variable|fish: Unknown command|config_source: |configuration source|is not "
                      "recognized as an internal");
  return sign == Sign::HubUnreachable || sign == Sign::NanLoss || sign == Sign::PortInUse;
}

}  // namespace braid
