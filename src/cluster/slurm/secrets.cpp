// Finds secrets in texts.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "cluster/megatron/shell_text.h"
#include "cluster/slurm/options.h"

namespace braid {
namespace {

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)); }

// A file name is not a secret, and short values occur in many texts by chance.
bool is_worth_hiding(std::string_view value) { return value.size() >= 8 && value[0] != '/'; }

std::optional<std::string> variable_in(std::string_view text) {
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view setting = *entry;
    const std::size_t equals = setting.find('=');
    if (equals == setting.npos || !names_a_secret(setting.substr(0, equals))) continue;
    const std::string_view value = setting.substr(equals + 1);
    if (is_worth_hiding(value) && text.find(value) != text.npos) return std::string(setting.substr(0, equals));
  }
  return std::nullopt;
}

struct TokenShape {
  const char* what;
  std::string_view prefix;
  std::size_t length;      // minimum length of what follows
  std::string_view marks;  // allowed in that besides letters and digits
};

// Ordinary names (sk-learn-..., hf_...) have no digits or are shorter.
bool has_token(std::string_view text, const TokenShape& shape) {
  for (std::size_t at = text.find(shape.prefix); at != text.npos; at = text.find(shape.prefix, at + 1)) {
    if (at > 0 && (is_alnum(text[at - 1]) || text[at - 1] == '_' || text[at - 1] == '-')) continue;
    std::size_t end = at + shape.prefix.size();
    while (end < text.size() && (is_alnum(text[end]) || shape.marks.find(text[end]) != shape.marks.npos)) ++end;
    const std::string_view rest = text.substr(at + shape.prefix.size(), end - at - shape.prefix.size());
    const bool has_digit = std::any_of(rest.begin(), rest.end(), [](unsigned char c) { return std::isdigit(c); });
    if (rest.size() >= shape.length && (shape.marks.empty() || has_digit)) return true;
  }
  return false;
}

std::optional<std::string> token_in(std::string_view text) {
  static constexpr TokenShape shapes[] = {
      {"a Hugging Face token", "hf_", 20, ""},  {"a GitHub token", "ghp_", 20, ""},
      {"a GitHub token", "gho_", 20, ""},       {"a GitHub token", "ghs_", 20, ""},
      {"a GitHub token", "ghu_", 20, ""},       {"a GitHub token", "github_pat_", 20, "_"},
      {"an API key (sk-...)", "sk-", 20, "-_"}, {"a GitLab token", "glpat-", 16, "-_"},
      {"a Slack token", "xox", 12, "-"},        {"an AWS key", "AKIA", 16, ""}};
  for (const TokenShape& shape : shapes)
    if (has_token(text, shape)) return shape.what;
  return std::nullopt;
}

// "hf_token" for --model.hf-token
std::string plain_name(std::string_view option) {
  std::string name(option.substr(std::min(option.find_first_not_of("-+"), option.size())));
  name.erase(0, name.rfind('.') + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : std::tolower(c); });
  return name;
}

// --hf-token, --wandb-key, wandb.api_key; not --pad-token, --tokenizer-key
bool option_names_a_secret(std::string_view option) {
  static const std::set<std::string> always = {"password", "passwd", "apikey", "secret"};
  static const std::set<std::string> of_keys = {"api", "wandb", "access", "secret", "auth"};
  static const std::set<std::string> of_tokens = {"hf", "huggingface", "hub",    "auth",  "access", "api",
                                                  "gh", "github",      "gitlab", "wandb", "bearer", "ngc"};
  const std::string name = plain_name(option);
  if (name == "token") return option.starts_with("-") && option.find('.') == option.npos;
  const auto parts = split(name, '_');
  const std::string before = parts.size() > 1 ? parts[parts.size() - 2] : "";
  return always.count(parts.back()) || (parts.back() == "key" && of_keys.count(before)) ||
         (parts.back() == "token" && of_tokens.count(before));
}

bool is_literal_secret(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* harmless : {"true", "false", "none", "null", "empty", "dummy", "0", "1"})
    if (value == harmless) return false;
  return !value.empty() && std::string_view("-$/.~").find(value[0]) == std::string_view::npos;
}

[[noreturn]] void refuse_option(const std::string& option) {
  std::string variable = plain_name(option);
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
  throw ConfigError(
      {fmt::format("the command contains the value of {}", option), "the command",
       fmt::format("export it in your shell as {0}, give --secret {0}, and write \"${0}\" in its place, in "
                   "shell text: --command-file, or one word in single quotes",
                   variable)});
}

void refuse_options(const ShellCommand& command) {
  for (std::size_t i = 0; i < command.words.size(); ++i) {
    const ShellWord& word = command.words[i];
    const std::size_t equals = word.head.find('=');
    const std::string name = word.head.substr(0, equals);
    if (!option_names_a_secret(name)) continue;
    if (equals != name.npos && is_literal_secret(word.head.substr(equals + 1))) refuse_option(name);
    const bool value_follows =
        equals == name.npos && word.value && name.starts_with("-") && i + 1 < command.words.size();
    if (value_follows && is_literal_secret(command.words[i + 1].head)) refuse_option(name);
  }
}

void refuse_variables(const ShellCommand& command) {
  for (const auto* part : {&command.assignments, &command.words})
    for (const ShellWord& word : *part) {
      const std::size_t equals = word.head.find('=');
      const std::string name = word.head.substr(0, equals);
      if (equals == std::string::npos || !is_identifier(name) || !names_a_secret(name)) continue;
      if (word.head.size() == equals + 1) continue;  // empty, or from another variable
      throw ConfigError({fmt::format("the command contains the value of {}", name), "the command",
                         fmt::format("export {0} in your shell, leave it out here and give --secret {0}", name)});
    }
}

}  // namespace

bool names_a_secret(std::string_view variable) {
  for (const char* part : {"API_KEY", "APIKEY", "ACCESS_KEY", "SECRET", "PASSWORD", "PASSWD"})
    if (variable.find(part) != std::string_view::npos) return true;
  // Whole words only: TOKENIZERS_PARALLELISM and TRAIN_TOKENS are not secrets.
  return contains(split(variable, '_'), "TOKEN");
}

std::optional<std::string> secret_in(std::string_view text) {
  if (const auto name = variable_in(text)) return "the value of your " + *name;
  return token_in(text);
}

void refuse_secrets(std::string_view text) {
  for (const ShellCommand& command : simple_commands(text)) {
    refuse_variables(command);
    refuse_options(command);
  }
  if (const auto secret = secret_in(text))
    throw ConfigError({fmt::format("the command contains {}", *secret), "the command",
                       "export it in your shell, give --secret NAME, and write \"$NAME\" in its place, in shell text: "
                       "--command-file, or one word in single quotes"});
}

}  // namespace braid
