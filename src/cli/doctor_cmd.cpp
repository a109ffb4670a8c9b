// braid doctor: why a job died, from its log.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cluster/doctor/report.h"

namespace braid {
namespace {

struct DoctorCommand {
  std::vector<std::string> logs;
  std::string exit_code;
  bool json = false;
};

// 137, or sacct's CODE:SIGNAL, where signal N gives 128 + N as in a shell.
std::optional<int> exit_code_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const std::size_t colon = text.find(':');
  const auto code = parse_int(text.substr(0, colon));
  const auto signal = colon == std::string::npos ? std::optional(0) : parse_int(text.substr(colon + 1));
  if (!code || !signal || *code < -255 || *code > 255 || *signal < 0 || *signal > 127)
    throw ConfigError({fmt::format("'{}' is not an exit code", text), "--exit-code", "give a number, or CODE:SIGNAL"});
  return *signal > 0 ? 128 + *signal : *code;
}

int examine(const DoctorCommand& command) {
  std::vector<std::string> skipped;
  const Diagnosis diagnosis = examine_logs(find_logs(command.logs), exit_code_of(command.exit_code), skipped);
  for (const std::string& name : skipped)
    fmt::print(stderr, "braid: {} is not text, or cannot be read: ignored\n", clean_text(name));
  fmt::print("{}", command.json ? to_json(diagnosis) + "\n" : fitted(to_text(diagnosis), STDOUT_FILENO));
  return verdict_code(diagnosis);
}

}  // namespace

Command doctor_command() {
  const auto o = std::make_shared<DoctorCommand>();
  return {.name = "doctor",
          .help = "Diagnose from its logs why a job died",
          .options = {{"logs", &o->logs, "a merged log, or one per rank; a folder: all logs in it; -: stdin",
                       Rules{.value_name = "LOG", .required = true}},
                      {"--exit-code", &o->exit_code, "the job's exit code, if you know it: 137, or sacct's format, 0:9",
                       Rules{.value_name = "CODE"}},
                      {"--json", &o->json, "print JSON, for programs"}},
          .footer =
              "The exit code is 0 if a cause was found or the run ended normally, 1 if the logs do not show a cause, 2 "
              "if no log can be read.",
          .run = [o](Call& call) { call.exit_code = examine(*o); }};
}

}  // namespace braid
