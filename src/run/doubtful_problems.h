// A recipe is checked as a whole even where some of its values cannot be read, so that one report has all problems. A
// key that cannot be read keeps its default, and problems that follow from that default are not the user's.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace braid {

// `of_values`: from YamlReader. Without a known provider, the keys below a model's modules cannot be judged.
void drop_keys_of_unknown_provider(std::vector<Problem>& of_values);

// Removes from `of_whole`, whose `where` are dotted keys, problems that may follow from a key that `of_values` refuses.
// `known`: all dotted keys of a recipe.
void drop_doubtful(std::vector<Problem>& of_whole, const std::vector<Problem>& of_values,
                   const std::vector<std::string>& known);

}  // namespace braid
