#include "launch/secrets.h"

#include "base/error.h"
#include "base/strings.h"
#include "launch/shell_text.h"

namespace braid {

bool names_a_secret(std::string_view variable) {
  for (const char* part : {"API_KEY", "APIKEY", "ACCESS_KEY", "SECRET", "PASSWORD", "PASSWD"})
    if (variable.find(part) != std::string_view::npos) return true;
  // By whole words: TOKENIZERS_PARALLELISM and TRAIN_TOKENS are no secrets.
  return contains(split(variable, '_'), "TOKEN");
}

void refuse_secrets(std::string_view text) {
  for (const ShellCommand& command : simple_commands(text))
    for (const auto* part : {&command.assignments, &command.words})
      for (const ShellWord& word : *part) {
        const std::size_t equals = word.head.find('=');
        const std::string name = word.head.substr(0, equals);
        if (equals == std::string::npos || !is_identifier(name) || !names_a_secret(name)) continue;
        if (word.head.size() == equals + 1) continue;  // empty, or from another variable
        throw ConfigError({fmt::format("the command has the value of {} in it", name), "the command",
                           fmt::format("export {0} in your shell, leave it out here and give --secret {0}", name)});
      }
}

}  // namespace braid
