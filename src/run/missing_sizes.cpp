#include "run/missing_sizes.h"

#include <fmt/format.h>

#include "base/strings.h"
#include "models/providers.h"

namespace braid {
namespace {

using Keys = std::vector<std::string>;

Keys below(const std::string& section, Keys keys) {
  for (std::string& key : keys) key = section + "." + key;
  return keys;
}

}  // namespace

// A language model of another width must come with encoders of its own, but an encoder of another width may accompany
// the small language model. The width has changed if `hidden` is set, or a size that only a wider model has.
std::vector<Problem> missing_sizes(const Provider& model, const std::vector<ModuleConfig>& modules,
                                   const std::vector<std::string>& given) {
  if (!is_toy(model)) return {};
  const auto cause_in = [&](const std::string& section, const std::string& hidden, const std::string& wider) {
    const std::string key = section + "." + hidden;
    return contains(given, key) ? key : wider.empty() ? "" : section + "." + wider;
  };
  const std::string by_language = cause_in("model.language", "hidden", key_of_wider_model(model.language));
  std::vector<Problem> problems;
  const auto check = [&](const std::string& cause, Keys needed) {
    std::erase_if(needed, [&](const std::string& key) { return contains(given, key); });
    if (cause.empty() || needed.empty()) return;
    problems.push_back(
        {fmt::format("{} is set, so the sizes of {}, a model for tests, do not apply: {} {} missing", cause, model.name,
                     counted(std::ssize(needed), "size"), needed.size() == 1 ? "is" : "are"),
         cause, fmt::format("set {}", fmt::join(needed, ", "))});
  };
  for (const ModuleConfig& module : modules) {
    if (module.kind == "language") {
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

}  // namespace braid
