#include "cli/megatron_answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/terminal.h"

namespace braid {
namespace {

constexpr std::size_t kLongestValue = 40, kWidth = 80;

std::string shown(const MegatronFlag& flag, const std::string& value) {
  if (value.empty()) return "--" + flag.name;
  return fmt::format("--{} {}", flag.name,
                     value.size() > kLongestValue ? value.substr(0, kLongestValue) + "..." : value);
}

std::string family_words(const MegatronFlag& flag, ModelFamily family) {
  if (family != ModelFamily::Any || flag.family == ModelFamily::Any) return "";
  return fmt::format(" ({}; {})", flag.family == ModelFamily::Llama ? "Llama" : "hybrid", flag.otherwise);
}

}  // namespace

void MegatronAnswer::add(const MegatronFlag& flag, const std::string& value, ModelFamily family) {
  const FlagVerdict verdict = verdict_for(flag, value, family);
  const std::string name = shown(flag, value);
  const bool as_usual = verdict == flag.verdict;
  const std::string why = as_usual ? flag.why : flag.otherwise;
  if (verdict == FlagVerdict::Taken) taken_.push_back("--" + flag.name);
  if (verdict == FlagVerdict::AlreadySo) already_.push_back({name, why + (as_usual ? family_words(flag, family) : "")});
  if (verdict == FlagVerdict::Unsupported) no_.push_back({name, why});
  if (verdict == FlagVerdict::Rewritten)
    rewritten_.push_back({name, fmt::format("write --{} {}{}{}", flag.key, recipe_value(flag, value),
                                            why.empty() ? "" : " (" + why + ")", family_words(flag, family))});
}

std::string MegatronAnswer::lines(const Entries& entries, const std::string& indent, std::size_t width) {
  Entries by_reason;
  for (const auto& entry : entries) {
    const auto same = std::find_if(by_reason.begin(), by_reason.end(), [&](const auto& other) {
      return !entry.second.empty() && other.second == entry.second;
    });
    if (same == by_reason.end())
      by_reason.push_back(entry);
    else
      same->first += ", " + entry.first;
  }
  // Line breaks would end a comment.
  for (auto& entry : by_reason)
    for (char& c : entry.first)
      if (static_cast<unsigned char>(c) < 32) c = ' ';
  const std::size_t room = width - indent.size();
  const std::string deeper = indent + "    ";
  std::string text;
  for (const auto& [flags, why] : by_reason) {
    if (why.empty())
      text += indent + folded(flags, room - 4, deeper) + "\n";
    else if (flags.size() + 2 + why.size() <= room)
      text += indent + flags + ": " + why + "\n";
    else
      text += indent + folded(flags + ":", room, indent, ", ") + "\n" + deeper + folded(why, room - 4, deeper) + "\n";
  }
  return text;
}

std::string MegatronAnswer::text() const {
  std::string text;
  const auto group = [&](const char* title, const Entries& entries) {
    if (!entries.empty()) text += fmt::format("  {}:\n{}", title, lines(entries, "    ", kWidth));
  };
  group("use a recipe key instead", rewritten_);
  group("not supported", no_);
  group("unknown", unknown_);
  group("no effect", already_);
  if (!taken_.empty())
    text += fmt::format("  accepted:\n    {}\n", folded(fmt::format("{}", fmt::join(taken_, " ")), kWidth - 4, "    "));
  return text;
}

}  // namespace braid
