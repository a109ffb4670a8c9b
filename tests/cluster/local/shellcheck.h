#pragma once

#include <iostream>
#include "support/programs.h"

namespace braid::testing {

// shellcheck's findings in a bash script; empty if it is clean. On a machine without shellcheck (./dev test installs it
// if possible) nothing is checked, and the test's output says so.
inline std::string shellcheck(const std::string& script) {
  static const bool is_there = [] {
    const bool found = run_program({"sh", "-c", "command -v shellcheck"}).exit_code == 0;
    if (!found) std::cerr << "shellcheck is not installed: scripts are not checked by it\n";
    return found;
  }();
  if (!is_there) return "";
  const TemporaryFolder folder;
  const Finished check = run_program({"shellcheck", folder.write("script.bash", script)});
  return check.exit_code == 0 ? "" : check.out + check.err + script;
}

}  // namespace braid::testing
