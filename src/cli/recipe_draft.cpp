#include "cli/recipe_draft.h"
#include "base/strings.h"
#include "run/recipe.h"

namespace braid {
namespace {

constexpr const char* kSections[] = {"topology",   "model",      "data", "loader", "train", "optimizer",
                                     "loss_scale", "checkpoint", "log",  "stop",   "dist",  "cluster"};

// `kind` and `provider` come before sizes, and in the topology, encoders before the language model.
std::pair<std::ptrdiff_t, std::string> place_of(const std::string& path) {
  const std::string section = path.substr(0, path.find('.')), key = path.substr(path.rfind('.') + 1);
  const bool is_first = key == "kind" || key == "provider";
  return {std::ranges::find(kSections, section) - kSections,
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

// Adds the names of the flags in Megatron's command line: of this key, and of the keys that the advice names. Of
// several flags for a key, the shortest is the usual one (--seq-length, --dataloader-seq-length).
std::string with_flags(const std::string& fix, const std::string& key) {
  std::map<std::string, std::string> flags;
  for (const MegatronFlag& flag : megatron_flags()) {
    const std::size_t at = fix.find(flag.key), end = at + flag.key.size();
    const bool is_named = at != fix.npos && (end == fix.size() || std::string_view(" ,=").find(fix[end]) != fix.npos);
    if (flag.key.empty() || (flag.key != key && !is_named)) continue;
    std::string& known = flags[flag.key];
    if (known.empty() || flag.name.size() + 2 < known.size()) known = "--" + flag.name;
  }
  const auto names = vector_of<std::string>(flags, [](const auto& flag) { return flag.second; });
  if (names.empty()) return fix;
  return fmt::format("{}{}the flag{} {}", fix, fix.empty() ? "" : "; ", names.size() == 1 ? " is" : "s are",
                     fmt::join(names, ", "));
}

}  // namespace

bool RecipeDraft::Order::operator()(const std::string& a, const std::string& b) const {
  return place_of(a) < place_of(b);
}

void RecipeDraft::refuse(const std::string& flag, const std::string& what, const std::string& fix) {
  // A value may be read more than once.
  if (std::ranges::find(problems_, what, &Problem::what) == problems_.end())
    problems_.push_back({what, fmt::format("--from-megatron, {}", flag), fix});
}

std::optional<std::string> RecipeDraft::beside(const std::string& key) const {
  std::optional<std::string> value;
  for (const ConfigOverride& change : overrides_)
    if (change.path == key) value = change.value;
  return value;
}

MegatronRecipe RecipeDraft::finished() {
  for (const ConfigOverride& change : overrides_) set(change.path, change.value, "command line");
  check();
  MegatronRecipe recipe;
  recipe.yaml =
      "# Made by `braid train --from-megatron` from a command line for Megatron-LM; docs/megatron-flags.md lists the "
      "flags.\n";
  const auto explain = [&](const char* title, const FlagEntries& entries) {
    if (!entries.empty()) recipe.yaml += fmt::format("# {}:\n{}", title, lines_of(entries, "#   ", 120));
  };
  const auto omit = [&](const char* why, const FlagEntries& entries) {
    explain(why, entries);
    for (const auto& [flag, reason] : entries) recipe.left_out.push_back(flag);
  };
  FlagEntries unexpanded;
  for (const auto& [flag, value] : command_.unexpanded) {
    unexpanded.push_back({flag.empty() ? value : fmt::format("--{} {}", flag, value), ""});
    recipe.left_out.push_back(flag.empty() ? value : "--" + flag);
  }
  explain("Left out, because only a shell can expand it", unexpanded);
  omit("Left out, because the training command does not use it, or only conditionally", command_.skipped);
  omit("Left out, because Braid does not support it", answer_.unsupported);
  omit("Left out, because the model has no such part", absent_);
  omit("Left out, because it is not a known flag of Megatron", command_.unknown);
  explain("Left out, because Braid always does this", answer_.already);
  explain("Chosen, because the command line does not give it", chosen_);
  recipe.yaml += yaml();
  return recipe;
}

std::string RecipeDraft::yaml() const {
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

std::string RecipeDraft::origin_of(const std::string& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? "" : found->second.from;
}

// Megatron ignores modules to recompute that its model does not have, but a recipe must not name them.
void RecipeDraft::leave_out_absent_parts() {
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
void RecipeDraft::check() {
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
      const bool is_known = std::ranges::find(problems_, where, &Problem::where) != problems_.end();
      const bool is_flag = from.starts_with("--") && from.find(' ') == std::string::npos;
      if (values_refused && (!is_flag || is_known)) continue;
      problem.where = is_flag ? fmt::format("{} ({})", where, key) : "the recipe from --from-megatron, " + key;
      problem.fix = with_flags(problem.fix, is_flag ? "" : key);
      problems_.push_back(std::move(problem));
    }
  }
  if (!problems_.empty()) throw ConfigError(std::move(problems_));
}

}  // namespace braid
