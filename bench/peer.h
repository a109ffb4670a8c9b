// Programs that Braid is compared with, run in a process of their own.
#pragma once

#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"

namespace braid {

inline std::string shell_quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// The object in the last line that `command_line` prints, or nothing if it fails; its error is on stderr.
inline std::optional<nlohmann::json> run_peer(const std::string& command_line) {
  std::FILE* pipe = popen(command_line.c_str(), "r");
  if (pipe == nullptr) throw_errno("cannot start " + command_line);
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output += static_cast<char>(c);
  if (pclose(pipe) != 0) return std::nullopt;
  const std::vector<std::string> lines = split(output, '\n');
  const auto last = std::find_if(lines.rbegin(), lines.rend(), [](const std::string& line) { return !line.empty(); });
  return last == lines.rend() ? std::nullopt : std::optional(nlohmann::json::parse(*last));
}

// Before minutes of measuring, throws if `python` cannot run the peers' scripts.
inline void check_peer(const std::string& python) {
  if (std::system((shell_quoted(python) + " -c 'import torch, transformers'").c_str()) != 0)
    throw ConfigError({python + " cannot import torch and transformers", "the peer",
                       "give a python that has both: pip install torch==2.11 transformers==5.17"});
}

}  // namespace braid
