// Shared by tests of the program: how to call it, and a recipe that trains in a moment.
#pragma once

#include "support/programs.h"

namespace braid {

inline testing::Finished braid(std::vector<std::string> arguments, const std::map<std::string, std::string>& env = {}) {
  arguments.insert(arguments.begin(), testing::built_program("braid"));
  return testing::run_program(arguments, env);
}

// How often a text has a part.
inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// On six ranks.
inline const char* const kShortRecipe = R"(
topology:
  modules:
    images: {kind: encoder, dp: 2}
    language: {tp: 2, dp: 2}
model: {dtype: float32, language: {pattern: "*-"}, images: {encoder: {layers: 1}}}
data: {sequence_length: 32}
train: {iterations: 8, micro_batch: 4, global_batch: 16, lr: 1e-2}
log: {interval: 4}
)";

}  // namespace braid
