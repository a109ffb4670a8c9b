#include "base/process.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>

namespace braid {

std::string own_executable() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string describe_signal(int signal) {
  const char* name = sigabbrev_np(signal);
  return fmt::format("SIG{} ({})", name ? name : std::to_string(signal), strsignal(signal));
}

}  // namespace braid
