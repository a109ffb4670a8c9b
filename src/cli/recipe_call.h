// Recipe keys on the command line, and recipes as every command reads them: with the flags after the path.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "run/recipe.h"

namespace braid {

// Recipe keys on the command line: "--train.lr 1e-4", "--train.lr=1e-4", or one of Megatron's names for them
// ("--train-iters 10"). One ConfigError lists all other arguments; `others` are further options to suggest ("--nodes").
// Flags that request what Braid always does are skipped.
std::vector<ConfigOverride> parse_overrides(const std::vector<std::string>& arguments,
                                            const std::vector<std::string>& others = {});

// A recipe with its flags, which must fit its model.
struct RecipeCall {
  RecipeSource source;
  Recipe recipe;
  std::string already_so;  // flags that request what Braid always does, with reasons; empty: none
};
RecipeCall read_recipe_call(const std::string& path, const std::vector<std::string>& arguments,
                            RecipeChecks checks = RecipeChecks::All);
// For a run: beside the problems of a wrong recipe, it lists the files that the run would miss.
RecipeCall read_recipe_to_run(const std::string& path, const std::vector<std::string>& arguments);

std::string overrides_help();        // every recipe key with its type, default and meaning, by section
std::string short_overrides_help();  // where to find overrides_help()

inline constexpr const char* kFromMegatron = "--from-megatron";  // takes one word, which may begin with --

// The words with every "--train.lr 1e-4" as one word, "--train.lr=1e-4", so that recipe keys may come before the
// recipe.
std::vector<std::string> join_overrides(const std::vector<std::string>& words);

// The user's command after `--`, in subcommands that take one: the parser never sees it.
std::vector<std::string> words_behind_dashes(const std::vector<std::string>& command_line);

}  // namespace braid
