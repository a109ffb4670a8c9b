// Reads a recipe from a file and the command line. Its problems are reported where the user finds their cause.
#include "base/config.h"
#include "base/strings.h"
#include "models/providers.h"
#include "run/recipe.h"

namespace braid {
namespace {

using Keys = std::vector<std::string>;  // dotted

// --- sizes that are missing because the provider is a model for tests; see size_keys()

Keys below(const std::string& section, Keys keys) {
  for (std::string& key : keys) key = section + "." + key;
  return keys;
}

// A language model of another width must come with encoders of its own, but an encoder of another width may accompany
// the small language model. The width has changed if `hidden` is set, or a size that only a wider model has.
Problems missing_sizes(const Recipe& recipe, const Keys& given) {
  const Provider& model = recipe.model.model;
  if (!is_toy(model)) return {};
  const auto cause_in = [&](const std::string& section, const std::string& hidden, const std::string& wider) {
    const std::string key = section + "." + hidden;
    return contains(given, key) ? key : wider.empty() ? "" : section + "." + wider;
  };
  const std::string by_language = cause_in("model.language", "hidden", key_of_wider_model(model.language));
  Problems problems;
  const auto check = [&](const std::string& cause, Keys needed) {
    std::erase_if(needed, [&](const std::string& key) { return contains(given, key); });
    if (cause.empty() || needed.empty()) return;
    problems.push_back(
        {fmt::format("{} is set, so the sizes of {}, a model for tests, do not apply: {} {} missing", cause, model.name,
                     counted(std::ssize(needed), "size"), needed.size() == 1 ? "is" : "are"),
         cause, fmt::format("set {}", fmt::join(needed, ", "))});
  };
  for (const ModuleConfig& module : recipe.topology.modules) {
    if (module.kind == ModuleKind::Language) {
      Keys needed = below("model.language", size_keys(model.language));
      needed.insert(needed.begin(), "model.language.hidden");
      needed.push_back("data.sequence_length");
      check(by_language, std::move(needed));
    } else if (const EncoderConfig* encoder = find_encoder(model, module.name)) {
      const std::string section = "model." + module.name;
      const std::string cause = cause_in(section, "encoder.hidden", key_of_wider_model(*encoder));
      Keys needed = below(section, size_keys(*encoder));
      needed.insert(needed.begin(), section + ".encoder.hidden");
      check(cause.empty() ? by_language : cause, std::move(needed));
    }
  }
  return problems;
}

// --- problems that may follow from a value that could not be read
//
// A recipe is checked as a whole even where some of its values cannot be read, so that one report has all problems. A
// key that cannot be read keeps its default, and problems that follow from that default are not the user's.

constexpr const char* kProvider = "model.provider";

// Returns "train.lr" for "tiny.yaml:7, train.lr", "command line, --lr (train.lr)" or "command line, --train.lr".
std::string key_of(const Problem& problem) {
  std::string key = problem.where.substr(problem.where.rfind(' ') + 1);
  key.erase(0, key.find_first_not_of("(-"));
  if (key.ends_with(')')) key.pop_back();
  return key;
}

// The key that the user meant: the suggested one, or the one that has a wrong value.
std::string meant_key(const Problem& problem) {
  const std::string key = key_of(problem), asks = "did you mean '";
  if (!problem.what.starts_with(kUnknownKey) || !problem.fix.starts_with(asks)) return key;
  const std::string guess = problem.fix.substr(asks.size(), problem.fix.rfind('\'') - asks.size());
  return guess.find('.') == guess.npos ? key.substr(0, key.rfind('.') + 1) + guess : guess;
}

// Messages name their keys. Ranks are counted over the whole topology; several keys make the number of experts.
// `known`: all dotted keys of a recipe.
bool may_follow(const Problem& problem, const std::string& refused, const Keys& known) {
  const auto is_below = [](const std::string& key, const std::string& section) {
    return key.starts_with(section + ".");
  };
  if (std::ranges::any_of(known, [&](const std::string& key) { return is_below(key, refused); })) return true;
  if (is_below(refused, "topology") && is_below(problem.where, "topology")) return true;
  const bool of_experts = problem.what.find("expert") != std::string::npos;
  if (refused == kProvider) return of_experts || is_below(problem.where, "model") || is_below(problem.where, "data");
  if (is_below(refused, "model.language") && of_experts) return true;
  const std::string text = problem.what + " " + problem.fix + " " + problem.where + " ";
  const std::string word = refused.substr(refused.rfind('.') + 1);
  const auto is_letter = [&](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1))
    if ((at == 0 || !is_letter(text[at - 1])) && !is_letter(text[at + word.size()])) return true;
  return false;
}

// Without a known provider, the keys below a model's modules cannot be judged.
void drop_keys_of_unknown_provider(Problems& of_values) {
  if (std::ranges::find(of_values, kProvider, key_of) == of_values.end()) return;
  std::vector<std::string> sections = {"language"};
  for (const Provider& provider : providers())
    for (const EncoderConfig& encoder : provider.encoders) sections.push_back(encoder.name);
  std::erase_if(of_values, [&](const Problem& problem) {
    const std::vector<std::string> names = split(key_of(problem), '.');
    return names.size() > 1 && names[0] == "model" && contains(sections, names[1]);
  });
}

// --- reading

// Fills in names, so that a printed recipe has every default.
void name_media(Recipe& recipe) {
  for (const ModuleConfig& module : recipe.topology.modules) {
    std::vector<MockMediaConfig>& media = recipe.data.media;
    const bool is_named = std::ranges::find(media, module.name, &MockMediaConfig::name) != media.end();
    if (is_named || !find_encoder(recipe.model.model, module.name)) continue;
    media.push_back(mock_of(recipe.data, module.name));
    media.back().name = module.name;
  }
}

// Lowering the learning rate on the command line scales min_lr with it, so that lr may go below the recipe's min_lr.
void lower_min_lr(const Recipe& as_written, const std::vector<ConfigOverride>& overrides, LrScheduleConfig& schedule) {
  const auto is_changed = [&](const char* path) {
    return std::ranges::find(overrides, path, &ConfigOverride::path) != overrides.end();
  };
  if (!is_changed("train.lr") || is_changed("train.min_lr")) return;
  const LrScheduleConfig& before = as_written.train.schedule;
  if (schedule.lr < 0 || schedule.min_lr <= schedule.lr || before.min_lr > before.lr) return;
  schedule.min_lr = *parse_double(fmt::format("{:.9g}", schedule.lr * (before.min_lr / before.lr)));
}

// A recipe and its problems; `where` is a place in the file, a flag, or a key if only the whole shows the problem.
struct Reading {
  YamlReader reader;
  Recipe recipe{};
  Problems of_values{}, of_whole{};
};

Reading read(const RecipeSource& source, const std::vector<ConfigOverride>& overrides, RecipeChecks checks) {
  Reading reading = {.reader = YamlReader::from_text(source.text, source.path, overrides)};
  YamlReader as_written = YamlReader::from_text(source.text, source.path);
  Recipe before;
  describe(reading.reader, reading.recipe);
  describe(as_written, before);
  lower_min_lr(before, overrides, reading.recipe.train.schedule);
  name_media(reading.recipe);
  reading.of_values = reading.reader.finish();
  const Recipe& recipe = reading.recipe;
  reading.of_whole = checks == RecipeChecks::All ? validate(recipe) : validate(recipe.topology, workload_of(recipe));
  if (checks == RecipeChecks::All) {
    Keys given = set_keys(source.text);
    for (const ConfigOverride& change : overrides)
      for (const std::string& key : set_keys(change.value))  // a flag may set a whole section
        given.push_back(key.empty() ? change.path : change.path + "." + key);
    std::ranges::move(missing_sizes(recipe, given), std::back_inserter(reading.of_whole));
  }
  if (reading.of_values.empty()) return reading;
  const Keys known = dotted_keys(to_yaml(recipe));
  drop_keys_of_unknown_provider(reading.of_values);
  suggest_keys_elsewhere(reading.of_values, known);
  std::erase_if(reading.of_whole, [&](const Problem& problem) {
    return std::ranges::any_of(reading.of_values,
                               [&](const Problem& value) { return may_follow(problem, meant_key(value), known); });
  });
  return reading;
}

// Names the flags that cause problems in their places, by checking for each flag whether a problem disappears without
// it. Example: "--llm-tp 3" if the recipe's number of heads is not divisible by 3.
void blame_flags(const RecipeSource& source, RecipeChecks checks, Reading& reading) {
  struct Trial {
    std::string flag;
    std::vector<std::string> problems_left{};  // problems without the flag, by key
  };
  std::vector<Trial> trials;
  const auto found = vector_of<std::string>(reading.of_whole, &Problem::where);
  for (std::size_t i = 0; i < source.overrides.size() && !found.empty(); ++i) {
    std::vector<ConfigOverride> others = source.overrides;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const ConfigOverride& flag = source.overrides[i];
    try {
      const Reading without = read(source, others, checks);
      if (!without.of_values.empty()) continue;
      Trial trial = {.flag = flag.flag.empty() ? "--" + flag.path : flag.flag};
      for (const Problem& problem : without.of_whole) trial.problems_left.push_back(problem.where);
      // A new problem may merely hide those that disappeared.
      const auto was_found = [&](const std::string& key) { return contains(found, key); };
      if (std::ranges::all_of(trial.problems_left, was_found)) trials.push_back(std::move(trial));
    } catch (const ConfigError&) {  // without this flag, another flag's key does not exist
    }
  }
  for (Problem& problem : reading.of_whole) {
    const std::string place = reading.reader.where(problem.where);
    std::vector<std::string> flags;
    for (const Trial& trial : trials)
      if (!contains(trial.problems_left, problem.where) &&
          !(place + " ").starts_with(fmt::format("command line, {} ", trial.flag)))
        flags.push_back(trial.flag);
    problem.where = flags.empty() ? place
                    : place.starts_with("command line")
                        ? fmt::format("{}, with {}", place, fmt::join(flags, " and "))
                        : fmt::format("command line, {}, against {}", fmt::join(flags, " and "), place);
  }
}

}  // namespace

RecipeSource read_recipe(const std::string& path, std::vector<ConfigOverride> overrides) {
  return {path == "-" ? "/dev/stdin" : path, read_config(path), std::move(overrides)};
}

Recipe parse_recipe(const RecipeSource& source, RecipeChecks checks) {
  Reading reading = read(source, source.overrides, checks);
  blame_flags(source, checks, reading);
  std::ranges::move(reading.of_whole, std::back_inserter(reading.of_values));
  if (!reading.of_values.empty()) throw ConfigError(std::move(reading.of_values));
  return std::move(reading.recipe);
}

}  // namespace braid
