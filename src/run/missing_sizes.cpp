#include "run/missing_sizes.h"

#include "base/strings.h"
#include "models/encoders.h"
#include "models/toy_sizes.h"

namespace braid {
namespace {

using Keys = std::vector<std::string>;

Keys below(const std::string& section, Keys keys) {
  for (std::string& key : keys) key = section + "." + key;
  return keys;
}

}  // namespace

// A model of another width has its own encoders, too. An encoder of another width may belong to the small language
// model.
std::vector<Problem> missing_sizes(const Provider& model, const std::vector<ModuleConfig>& modules,
                                   const std::vector<std::string>& given) {
  if (!is_toy(model)) return {};
  const std::string language = "model.language.hidden";
  std::vector<Problem> problems;
  const auto check = [&](const std::string& hidden, bool has_own_sizes, Keys needed) {
    const std::string cause = contains(given, hidden) ? hidden : language;
    std::erase_if(needed, [&](const std::string& key) { return contains(given, key); });
    if (!has_own_sizes || needed.empty()) return;
    problems.push_back(
        {fmt::format("{} is set, so the sizes of {}, a model for tests, do not apply: {} {} missing", cause, model.name,
                     counted(std::ssize(needed), "size"), needed.size() == 1 ? "is" : "are"),
         cause, fmt::format("set {}", fmt::join(needed, ", "))});
  };
  const bool is_own = contains(given, language);
  for (const ModuleConfig& module : modules) {
    if (module.kind == "language") {
      Keys needed = below("model.language", size_keys(model.language));
      needed.push_back("data.sequence_length");
      check(language, is_own, std::move(needed));
    } else if (const EncoderConfig* encoder = find_encoder(model, module.name)) {
      const std::string hidden = fmt::format("model.{}.encoder.hidden", module.name);
      Keys needed = below("model." + module.name, size_keys(*encoder));
      needed.insert(needed.begin(), hidden);
      check(hidden, is_own || contains(given, hidden), std::move(needed));
    }
  }
  return problems;
}

}  // namespace braid
