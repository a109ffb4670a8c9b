#include "cli/megatron_draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "cluster/megatron/megatron_flags.h"
#include "run/recipe.h"

namespace braid {
namespace {

constexpr const char* kSections[] = {"topology",   "model",      "data", "loader", "train", "optimizer",
                                     "loss_scale", "checkpoint", "log",  "stop",   "dist",  "cluster"};

// `kind` and `provider` come before sizes, and in the topology, encoders before the language model.
std::pair<std::ptrdiff_t, std::string> place_of(const std::string& path) {
  const std::string section = path.substr(0, path.find('.')), key = path.substr(path.rfind('.') + 1);
  const bool is_first = key == "kind" || key == "provider";
  return {std::find(std::begin(kSections), std::end(kSections), section) - kSections,
          path.substr(0, path.size() - key.size()) + (is_first ? "" : key)};
}

std::string as_yaml(const std::string& value) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
  const bool is_plain = value.find_first_not_of(kPlain) == value.npos && value.find_first_of("-.") != 0;
  if ((is_plain && !value.empty()) || parse_double(value)) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + '"';
}

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

bool MegatronDraft::RecipeOrder::operator()(const std::string& a, const std::string& b) const {
  return place_of(a) < place_of(b);
}

MegatronRecipe MegatronDraft::finished() {
  check();
  MegatronRecipe recipe;
  recipe.yaml =
      "# Made by `braid train --from-megatron` from a command line for Megatron-LM; docs/megatron-flags.md lists the "
      "flags.\n";
  const auto explain = [&](const char* title, const MegatronAnswer::Entries& entries) {
    if (!entries.empty()) recipe.yaml += fmt::format("# {}:\n{}", title, MegatronAnswer::lines(entries, "#   ", 120));
  };
  const auto leave_out = [&](const char* why, const MegatronAnswer::Entries& entries) {
    explain(why, entries);
    for (const auto& [flag, reason] : entries) recipe.left_out.push_back(flag);
  };
  const auto alone = [](const std::vector<std::string>& flags) {
    MegatronAnswer::Entries entries;
    for (const std::string& flag : flags) entries.push_back({flag, ""});
    return entries;
  };
  MegatronAnswer::Entries unexpanded;
  for (const auto& [flag, value] : command_.unexpanded) {
    unexpanded.push_back({flag.empty() ? value : fmt::format("--{} {}", flag, value), ""});
    recipe.left_out.push_back(flag.empty() ? value : "--" + flag);
  }
  explain("Left out, because only a shell can expand it", unexpanded);
  leave_out("Left out, because the training command does not use it, or only conditionally", alone(command_.skipped));
  leave_out("Left out, because Braid does not support it", answer_.unsupported());
  leave_out("Left out, because the model has no such part", absent_);
  leave_out("Left out, because it is not a known flag of Megatron", alone(command_.unknown));
  explain("Left out, because Braid always does this", answer_.already());
  explain("Chosen, because the command line does not give it", chosen_);
  recipe.yaml += yaml();
  return recipe;
}

std::string MegatronDraft::yaml() const {
  std::string text;
  std::vector<std::string> open;
  for (const auto& [path, value] : keys_) {
    const std::vector<std::string> parts = split(path, '.');
    std::size_t shared = 0;
    while (shared < open.size() && shared + 1 < parts.size() && open[shared] == parts[shared]) ++shared;
    open.assign(parts.begin(), parts.end() - 1);
    for (std::size_t i = shared; i < open.size(); ++i) text += fmt::format("{:{}}{}:\n", "", 2 * i, open[i]);
    const std::string line = fmt::format("{:{}}{}: {}", "", 2 * open.size(), parts.back(), as_yaml(value.text));
    text += value.from.empty() ? line + "\n" : fmt::format("{:<36}  # {}\n", line, value.from);
  }
  return text;
}

std::string MegatronDraft::origin_of(const std::string& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? "" : found->second.from;
}

// Megatron ignores modules to recompute that its model does not have, but a recipe must not name them.
void MegatronDraft::leave_out_absent_parts() {
  const std::string key = "model.recompute", flag = origin_of(key);
  if (!flag.starts_with("--")) return;
  YamlReader reader = YamlReader::from_text(yaml(), "");
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
  if (kept.size() < recipe.model.recompute.size()) set(key, kept.empty() ? "false" : joined(kept, ","), flag);
}

// The recipe's problems, named by the flags that cause them.
void MegatronDraft::check() {
  try {
    leave_out_absent_parts();
    const Recipe recipe = parse_recipe(yaml());
    const int ranks = Topology(recipe.topology, workload_of(recipe)).world_size();
    if (command_.ranks && *command_.ranks != ranks)
      chosen(fmt::format("{}, which {} from the sizes below: '{}' starts {}", counted(ranks, "rank"),
                         ranks == 1 ? "follows" : "follow", command_.launcher, *command_.ranks));
  } catch (const ConfigError& e) {
    const bool values_refused = !problems_.empty();  // then problems that follow from them add nothing
    for (Problem problem : e.problems()) {
      const std::string key = problem.where.substr(problem.where.rfind(' ') + 1), from = origin_of(key);
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

}  // namespace braid
