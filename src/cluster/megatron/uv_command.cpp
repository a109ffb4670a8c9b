#include "cluster/megatron/uv_command.h"

#include <set>

#include "cluster/megatron/program_call.h"

namespace braid {
namespace {

const std::set<std::string> kWithValue = {"--allow-insecure-host",
                                          "--cache-dir",
                                          "--color",
                                          "--config-file",
                                          "--config-setting",
                                          "--default-index",
                                          "--directory",
                                          "--env-file",
                                          "--exclude-newer",
                                          "--extra",
                                          "--extra-index-url",
                                          "--find-links",
                                          "--fork-strategy",
                                          "--group",
                                          "--index",
                                          "--index-strategy",
                                          "--index-url",
                                          "--keyring-provider",
                                          "--link-mode",
                                          "--max-recursion-depth",
                                          "--no-binary-package",
                                          "--no-build-isolation-package",
                                          "--no-build-package",
                                          "--no-extra",
                                          "--no-group",
                                          "--only-group",
                                          "--package",
                                          "--prerelease",
                                          "--project",
                                          "--python",
                                          "--python-platform",
                                          "--python-preference",
                                          "--refresh-package",
                                          "--reinstall-package",
                                          "--resolution",
                                          "--upgrade-package",
                                          "--with",
                                          "--with-editable",
                                          "--with-requirements",
                                          "-C",
                                          "-P",
                                          "-f",
                                          "-i",
                                          "-p",
                                          "-w"};

// Options that select the environment and that `uv sync` has too.
const std::set<std::string> kOfSync = {"--active",
                                       "--all-extras",
                                       "--all-groups",
                                       "--all-packages",
                                       "--default-index",
                                       "--directory",
                                       "--extra",
                                       "--extra-index-url",
                                       "--find-links",
                                       "--frozen",
                                       "--group",
                                       "--index",
                                       "--index-strategy",
                                       "--index-url",
                                       "--link-mode",
                                       "--locked",
                                       "--no-build-isolation",
                                       "--no-default-groups",
                                       "--no-dev",
                                       "--no-editable",
                                       "--no-extra",
                                       "--no-group",
                                       "--only-dev",
                                       "--only-group",
                                       "--package",
                                       "--project",
                                       "--python",
                                       "--python-preference",
                                       "-f",
                                       "-i",
                                       "-p"};

const std::set<std::string> kOtherEnvironment = {"--isolated", "--no-project", "--no-sync", "--script", "-s"};

}  // namespace

std::optional<UvRunCall> uv_run_call(std::string_view text, const ShellCommand& command) {
  const auto& words = command.words;
  std::size_t uv = 0;
  while (uv < words.size() && base_name(words[uv]) != "uv") ++uv;
  if (uv > 1 || uv + 1 >= words.size() || words[uv + 1].value != "run") return std::nullopt;
  UvRunCall call;
  const auto raw = [&](std::size_t i) { return std::string(raw_of(text, words[i])); };
  call.sync = raw(uv) + " sync";
  std::size_t i = uv + 2;
  for (; i < words.size() && words[i].head.starts_with("-") && words[i].head != "-"; ++i) {
    if (words[i].head == "--") {
      ++i;
      break;
    }
    const std::string name = words[i].head.substr(0, words[i].head.find('='));
    const bool value_follows = name == words[i].head && kWithValue.count(name) && i + 1 < words.size();
    if (kOtherEnvironment.count(name)) call.sync.clear();
    if (kOfSync.count(name) && !call.sync.empty()) call.sync += " " + raw(i) + (value_follows ? " " + raw(i + 1) : "");
    i += value_follows ? 1 : 0;
  }
  call.program = i;
  return call;
}

}  // namespace braid
