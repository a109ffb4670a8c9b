#include "cluster/doctor/lines/signals.h"

#include <csignal>
#include <string>

#include "base/process.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {

int signal_by_name(std::string_view name) {
  for (int signal = 1; signal < 32; ++signal) {
    const std::string words = describe_signal(signal);
    const std::string_view own = std::string_view(words).substr(0, words.find(' '));
    if (name.starts_with(own) && (name.size() == own.size() || !is_word(name[own.size()]))) return signal;
  }
  return SIGABRT;
}

std::optional<int> signal_of_code(int code) {
  if (code < 0) return -code;
  if (code > 128 && code < 160) return code - 128;
  if (code > 256 && code < 288) return code - 256;  // PBS
  return std::nullopt;
}

}  // namespace braid
