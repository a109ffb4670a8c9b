// What the tests of `braid train --from-megatron` share.
#pragma once

#include <gtest/gtest.h>
#include "cli/cli_support.h"
#include "cli/from_megatron.h"
#include "cli/start.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid::testing {

// The recipe from a command line, which is valid.
inline std::string converted(const MegatronCommand& command, const std::vector<std::string>& more = {}) {
  const std::string yaml = recipe_from_megatron(command, parse_overrides(more)).yaml;
  const Recipe recipe = parse_recipe(yaml);
  EXPECT_GT(Topology(recipe.topology, workload_of(recipe)).world_size(), 0);
  return yaml;
}

inline std::string converted(const std::string& command, const std::vector<std::string>& more = {}) {
  return converted(read_megatron_command(command), more);
}

// The recipe from what a script starts.
inline MegatronCommand command_of_script(const std::string& text) {
  const TemporaryFolder folder;
  return read_megatron_command(run_script(folder.write("run.sh", text)));
}
inline std::string converted_script(const std::string& text) { return converted(command_of_script(text)); }

inline std::string refusal(const std::string& command) {
  return error_of([&] { recipe_from_megatron(read_megatron_command(command), {}); });
}

inline std::string squeezed(std::string text) {  // without the blanks that align comments
  std::string result;
  for (const char c : text)
    if (c != ' ' || result.empty() || result.back() != ' ') result += c;
  return result;
}

}  // namespace braid::testing
