#include "cluster/doctor/events/braid_reason.h"

#include "base/process.h"
#include "cluster/doctor/events/signs.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

// Of DataError; the line has no type.
bool is_bad_data(std::string_view reason) {
  return reason.find("DataError") != std::string_view::npos || reason.starts_with("sample ") ||
         reason.find("outside the vocabulary") != std::string_view::npos;
}

}  // namespace

bool is_loss_of_peer(std::string_view reason) {
  const auto sign = sign_in(reason);
  return (sign && role_of(*sign) == Role::Consequence) || reason.find("without finishing") != std::string_view::npos ||
         reason.find("no heartbeat") != std::string_view::npos ||
         reason.find("no sign of life") != std::string_view::npos;  // in logs of older versions
}

std::optional<int> exit_code_in(std::string_view reason) {
  if (take(reason, "exited with code ")) {
    const auto code = take_number(reason);
    return code ? std::optional(static_cast<int>(*code)) : std::nullopt;
  }
  take(reason, "killed by ");
  for (int signal = 1; signal < 32; ++signal)
    if (reason.starts_with(describe_signal(signal))) return 128 + signal;
  return std::nullopt;
}

Cause cause_in_reason(std::string_view reason) {
  if (reason == kHostCannotBeReached) return Cause::NodeFailure;
  if (is_bad_data(reason)) return Cause::DataRankCascade;
  if (const auto code = exit_code_in(reason); code && *code > 128)
    if (const Cause cause = cause_of_signal(*code - 128); cause != Cause::Unknown) return cause;
  if (reason.find("out of memory") != std::string_view::npos) return Cause::GpuOom;
  const auto sign = sign_in(reason);
  return sign && role_of(*sign) == Role::Cause && *sign != Sign::NativeCrash ? cause_of(*sign) : Cause::BraidFailure;
}

}  // namespace braid
