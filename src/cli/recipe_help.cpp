// The recipe's keys in --help, from the same field tables that read a recipe.
#include <unistd.h>

#include "base/strings.h"
#include "base/terminal.h"
#include "cli/commands.h"
#include "cli/help_format.h"
#include "cluster/megatron/megatron_flags.h"
#include "run/recipe.h"

namespace braid {
namespace {

constexpr std::size_t kFlagWidth = 30;

const char* type_of(const std::string& value) {
  if (value == "true" || value == "false") return "BOOL";
  if (value.starts_with('"')) return "TEXT";
  if (value.starts_with('[')) return "NAMES";
  return parse_double(value) ? "NUMBER" : "NAME";
}

// "--lr", or of switches "--bf16 (bfloat16), --fp32 (float32)".
std::string megatron_names(const std::string& path) {
  std::vector<std::string> names;
  for (const MegatronFlag& flag : megatron_flags())
    if (flag.verdict == FlagVerdict::Taken && flag.key == path)
      names.push_back("--" + flag.name + (flag.value.empty() ? "" : " (" + flag.value + ")"));
  return fmt::format("{}", fmt::join(names, ", "));
}

class HelpWriter : public YamlWriter {
 public:
  explicit HelpWriter(int columns) : columns_(help_width(columns)) {}
  std::string take() { return std::move(help_); }

 protected:
  bool enter(const std::string& key) override {
    if (path_.empty()) help_ += "\n" + key + "\n";
    if (path_ == std::vector<std::string>{"model"}) {
      add("--model." + key + ".KEY", "", "its sizes; --print-recipe lists them", "");
      return false;
    }
    path_.push_back(key);
    return true;
  }
  void leave() override { path_.pop_back(); }
  void line(const std::string& key, const std::string& value, const std::string& words) override {
    add(flag_of(key), type_of(value), words, value == "\"\"" || value == "[]" ? "none" : value);
  }
  void unset(const char* key, const char* words) override {
    const bool says_default = std::string_view(words).find("default:") != std::string_view::npos;
    add(flag_of(key), "NUMBER", words, says_default ? "" : "none");
  }

 private:
  std::string flag_of(const std::string& key) const { return fmt::format("--{}.{}", fmt::join(path_, "."), key); }

  void add(const std::string& flag, const std::string& type, const std::string& words, const std::string& value) {
    std::string left = "  " + flag + (type.empty() ? "" : " " + type), right = words;
    if (!value.empty()) right += fmt::format(" [{}]", value);
    std::string path = flag.substr(2);
    // Megatron's names exist only for the usual modules of recipes.
    for (const char* module : {"images", "language"}) {
      const std::size_t name = path.find(".NAME.");
      const std::string of_module =
          name == std::string::npos ? path : path.substr(0, name + 1) + module + path.substr(name + 5);
      if (const std::string names = megatron_names(of_module); !names.empty())
        right += name == std::string::npos ? "; " + names : fmt::format("; {}: {}", module, names);
      if (name == std::string::npos) break;
    }
    help_ += left.size() + 1 < kFlagWidth ? fmt::format("{:<{}}", left, kFlagWidth)
                                          : left + "\n" + std::string(kFlagWidth, ' ');
    help_ += folded(right, columns_ - kFlagWidth, std::string(kFlagWidth, ' ')) + "\n";
  }

  const std::size_t columns_;
  std::vector<std::string> path_;
  std::string help_;
};

}  // namespace

std::string overrides_help() {
  Recipe recipe;
  recipe.topology.modules = {ModuleConfig{.name = "NAME"}};
  recipe.data.media = {MockMediaConfig{.name = "ENCODER"}};
  HelpWriter writer(columns_of(STDOUT_FILENO));
  describe(writer, recipe);
  return "Recipe keys, each with its type, its meaning, [its default] and the flags of Megatron-LM that also set it. "
         "On the command line they override the recipe: --train.lr 1e-4.\n" +
         writer.take() +
         "\nOther flags of Megatron-LM: the error for them explains all at once; --megatron-flags lists them.";
}

}  // namespace braid
