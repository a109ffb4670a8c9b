#include "cluster/doctor/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/process.h"
#include "cluster/doctor/text.h"

namespace braid {

namespace {

// "20.00 GiB" behind the key.
std::string size_after(std::string_view text, std::string_view key) {
  const std::string_view rest = behind(text, key).value_or("");
  std::size_t end = 0;
  while (end < rest.size() && (rest[end] == '.' || is_digit(rest[end]))) ++end;
  if (end == 0 || end + 4 > rest.size() || rest[end] != ' ') return "";
  const std::string_view unit = rest.substr(end + 1, 3);
  return unit.ends_with("iB") ? std::string(rest.substr(0, end + 4)) : "";
}

// "79.15 GiB" before the key, as in "79.15 GiB total capacity".
std::string size_before(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == npos || at < 6) return "";
  const std::string_view before = text.substr(0, at);
  const std::size_t begin = before.find_last_not_of("0123456789. GMKiB");
  const std::string_view size = before.substr(begin == npos ? 0 : begin + 1);
  const std::size_t digit = size.find_first_of("0123456789");
  return digit == npos ? "" : std::string(size.substr(digit));
}

std::string first_of(std::string a, std::string b) { return a.empty() ? b : a; }

}  // namespace

std::string device_in(std::string_view message) {
  if (has_one_of(message, "CUDA|GPU|HIP")) return "GPU";
  for (const char* device : {"TPU", "XPU"})
    if (has_word(message, device)) return device;
  return has_one_of(message, "hbm|HBM") ? "TPU" : "GPU";
}

std::string gpu_memory_text(std::string_view message) {
  const std::string tried = size_after(message, "Tried to allocate ");
  if (tried.empty()) return "";
  const std::string capacity =
      first_of(size_after(message, "total capacity of "), size_before(message, " total capacity"));
  const std::string free = first_of(size_before(message, " is free"), size_before(message, " free;"));
  const std::string used = first_of(size_before(message, " memory in use"), size_before(message, " already allocated"));
  std::string text = fmt::format("It tried to allocate {}", tried);
  if (!capacity.empty()) text += fmt::format(" on a GPU of {}", capacity);
  if (!free.empty()) text += fmt::format(" with {} free", free);
  if (!used.empty()) text += fmt::format("{} {} in use", free.empty() ? " with" : " and", used);
  return text + ".";
}

std::string expert_sizing_text(std::int64_t num_experts, std::optional<std::int64_t> expert_parallel) {
  const std::int64_t now = std::max<std::int64_t>(expert_parallel.value_or(1), 1);
  if (num_experts < 2 || now > num_experts) return "";
  std::int64_t more = now;
  // Halving the experts per GPU seldom suffices, so the advice is at least four times the expert parallel size.
  while (more < num_experts && (more < 4 * now || num_experts % more != 0)) more *= 2;
  more = std::min(more, num_experts);
  std::string text = fmt::format("EP {} puts {} of {} experts on each GPU", now, num_experts / now, num_experts);
  if (more > now) text += fmt::format("; EP {} would give {} experts/GPU", more, num_experts / more);
  return text + ".";
}

std::string exit_code_text(int code) {
  if (code == 0) return "Exit code 0: the program reported success.";
  if (const auto signal = signal_of_code(code)) {
    const SignalText* text = text_of_signal(*signal);
    const std::string usual = text ? text->usual : "a crash in native code";
    const std::string name = describe_signal(*signal);
    return code < 0 ? fmt::format("It was ended by {}: {}.", name, usual)
                    : fmt::format("Exit code {} is {}: {}.", code, name, usual);
  }
  if (code == 1) return "Exit code 1 means an error in the program, for example an exception.";
  if (code == 2) return "Exit code 2 usually means wrong arguments.";
  if (code == 126 || code == 127)
    return fmt::format("Exit code {} comes from a shell: the command {}.", code,
                       code == 127 ? "was not found" : "cannot be executed");
  return fmt::format("Exit code {} was chosen by the program itself.", code);
}

std::string saving_memory_fix(Cause cause, const Launchers& launchers) {
  const std::string when = "It ran out while weights were gathered to be saved or exported: ";
  if (cause != Cause::HostOom)
    return when + "gather them on the CPU, write the model in shards, or use more EP, PP or nodes.";
  return when + "use a host with more memory, or write the model in shards as they are gathered." +
         (launchers.slurm ? std::string(" ") + text_of(cause).slurm : "");
}

std::string cascade_text(const Findings& findings, std::optional<int> first_rank) {
  std::set<int> timed_out, lost;
  for (const Finding& finding : findings.found) {
    if (!finding.rank || finding.rank == first_rank || role_of(finding.sign) != Role::Consequence) continue;
    if (finding.sign == Sign::ConnectionLost || finding.sign == Sign::NetworkTrouble)
      lost.insert(*finding.rank);
    else if (finding.sign != Sign::Stopped)
      timed_out.insert(*finding.rank);
  }
  for (const int rank : lost) timed_out.erase(rank);  // each is counted once
  std::map<int, std::set<int>> ended;                 // by code
  for (const WorkerExit& exit : findings.exits)
    for (const int rank : exit.ranks)
      if (!exit.local && rank != first_rank) ended[exit.code].insert(rank);
  std::set<int> all = timed_out;
  all.insert(lost.begin(), lost.end());
  for (const auto& [code, ranks] : ended) all.insert(ranks.begin(), ranks.end());
  if (all.empty()) return "";
  std::string parts;
  const auto part = [&](const std::string& text) { parts += (parts.empty() ? "" : ", ") + text; };
  if (!lost.empty()) part(fmt::format("{} lost a connection", lost.size()));
  if (!timed_out.empty()) part(fmt::format("{} timed out", timed_out.size()));
  for (const auto& [code, ranks] : ended) {
    const auto signal = signal_of_code(code);
    const std::string name = signal ? describe_signal(*signal).substr(0, describe_signal(*signal).find(' ')) : "";
    part(signal ? fmt::format("{} x {}", ranks.size(), name) : fmt::format("{} x exit code {}", ranks.size(), code));
  }
  const bool is_one = all.size() == 1;
  if (!first_rank) return fmt::format("{} rank{} ended: {}.", all.size(), is_one ? "" : "s", parts);
  return is_one ? fmt::format("Another rank ended after it: {}.", parts)
                : fmt::format("The other {} ranks ended after it: {}.", all.size(), parts);
}

}  // namespace braid
