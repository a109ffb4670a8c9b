#include "cli/megatron_draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/strings.h"
#include "cluster/megatron/megatron_flags.h"
#include "run/recipe.h"

namespace braid {
namespace {

bool names_key(const std::string& text, const std::string& key) {
  const std::size_t at = text.find(key);
  return at != text.npos && (at + key.size() == text.size() ||
                             std::string_view(" ,=").find(text[at + key.size()]) != std::string_view::npos);
}

// Adds the names of the flags in Megatron's command line: of this key, and of the keys that the advice names. Of
// several flags for a key, the shortest is the usual one (--seq-length, --dataloader-seq-length).
std::string with_flags(const std::string& fix, const std::string& key) {
  std::map<std::string, std::string> flags;
  for (const MegatronFlag& flag : megatron_flags()) {
    if (flag.key.empty() || (flag.key != key && !names_key(fix, flag.key))) continue;
    std::string& known = flags[flag.key];
    if (known.empty() || flag.name.size() + 2 < known.size()) known = "--" + flag.name;
  }
  std::vector<std::string> names;
  for (const auto& entry : flags) names.push_back(entry.second);
  if (names.empty()) return fix;
  return fmt::format("{}{}the flag{} {}", fix, fix.empty() ? "" : "; ", names.size() == 1 ? " is" : "s are",
                     fmt::join(names, ", "));
}

}  // namespace

std::optional<double> MegatronDraft::number(const std::string& name) {
  const auto value = command_.text(name);
  const auto number = value ? parse_double(*value) : std::nullopt;
  if (value && !number) refuse("--" + name, fmt::format("--{} should be a number, not {}", name, in_quotes(*value)));
  return number;
}

int MegatronDraft::integer(const std::string& name, int otherwise) {
  const auto value = command_.text(name);
  const auto number = value ? parse_int(*value) : otherwise;
  if (number && *number >= 0) return *number;
  refuse("--" + name, fmt::format("--{} should be an integer of at least 0, not {}", name, in_quotes(*value)));
  return otherwise;
}

void MegatronDraft::refuse(const std::string& flag, const std::string& what, const std::string& fix) {
  // A value may be read more than once.
  const auto is_same = [&](const Problem& other) { return other.what == what; };
  if (std::none_of(problems_.begin(), problems_.end(), is_same))
    problems_.push_back({what, fmt::format("--from-megatron, {}", flag), fix});
}

MegatronRecipe MegatronDraft::finished() {
  check();
  return {comments() + recipe_.text(), left_out()};
}

// Megatron ignores modules to recompute that its model does not have, but a recipe must not name them.
void MegatronDraft::leave_out_absent_parts() {
  const std::string key = "model.recompute", flag = recipe_.from(key);
  if (!flag.starts_with("--")) return;
  YamlReader reader = YamlReader::from_text(recipe_.text(), "");
  Recipe recipe;
  describe(reader, recipe);
  const std::vector<std::string> parts = recompute_parts(recipe);
  std::vector<std::string> kept;
  for (const std::string& name : recipe.model.recompute) {
    if (contains(parts, name))
      kept.push_back(name);
    else
      absent_.push_back({flag, fmt::format("this model has no {}", name)});
  }
  if (kept.size() < recipe.model.recompute.size())
    set(key, kept.empty() ? "false" : fmt::format("{}", fmt::join(kept, ",")), flag);
}

// The recipe's problems, named by the flags that cause them.
void MegatronDraft::check() {
  try {
    leave_out_absent_parts();
    const Recipe recipe = parse_recipe(recipe_.text());
    const int ranks = Topology(recipe.topology, workload_of(recipe)).world_size();
    if (command_.ranks && *command_.ranks != ranks)
      chosen(fmt::format("{}, which {} from the sizes below: '{}' starts {}", counted(ranks, "rank"),
                         ranks == 1 ? "follows" : "follow", command_.launcher, *command_.ranks));
  } catch (const ConfigError& e) {
    const bool values_refused = !problems_.empty();  // then problems that follow from them add nothing
    for (Problem problem : e.problems()) {
      const std::string key = problem.where.substr(problem.where.rfind(' ') + 1), from = recipe_.from(key);
      const std::string where = "--from-megatron, " + from;
      const auto is_known = [&](const Problem& other) { return other.where == where; };
      const bool is_flag = from.starts_with("--") && from.find(' ') == std::string::npos;
      if (values_refused && (!is_flag || std::any_of(problems_.begin(), problems_.end(), is_known))) continue;
      problem.where = is_flag ? fmt::format("{} ({})", where, key) : "the recipe from --from-megatron, " + key;
      problem.fix = with_flags(problem.fix, is_flag ? "" : key);
      problems_.push_back(std::move(problem));
    }
  }
  if (!problems_.empty()) throw ConfigError(std::move(problems_));
}

std::vector<std::string> MegatronDraft::left_out() const {
  std::vector<std::string> flags;
  for (const auto& [flag, value] : command_.unexpanded) flags.push_back(flag.empty() ? value : "--" + flag);
  flags.insert(flags.end(), command_.skipped.begin(), command_.skipped.end());
  for (const auto& entry : answer_.unsupported()) flags.push_back(entry.first);
  for (const auto& entry : absent_) flags.push_back(entry.first);
  flags.insert(flags.end(), command_.unknown.begin(), command_.unknown.end());
  return flags;
}

std::string MegatronDraft::comments() const {
  std::string text =
      "# Made by `braid train --from-megatron` from a command line for Megatron-LM; docs/megatron-flags.md lists the "
      "flags.\n";
  const auto group = [&](const char* title, const MegatronAnswer::Entries& entries) {
    if (!entries.empty()) text += fmt::format("# {}:\n{}", title, MegatronAnswer::lines(entries, "#   ", 120));
  };
  MegatronAnswer::Entries unexpanded, unknown, skipped;
  for (const auto& [flag, value] : command_.unexpanded)
    unexpanded.push_back({flag.empty() ? value : "--" + flag + " " + value, ""});
  for (const std::string& flag : command_.unknown) unknown.push_back({flag, ""});
  for (const std::string& text : command_.skipped) skipped.push_back({text, ""});
  group("Left out, because only a shell can expand it", unexpanded);
  group("Left out, because the training command does not use it, or only conditionally", skipped);
  group("Left out, because Braid does not support it", answer_.unsupported());
  group("Left out, because the model has no such part", absent_);
  group("Left out, because it is not a known flag of Megatron", unknown);
  group("Left out, because Braid always does this", answer_.already());
  group("Chosen, because the command line does not give it", chosen_);
  return text;
}

}  // namespace braid
