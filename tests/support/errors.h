#pragma once

#include <string>

#include "base/error.h"

namespace braid::testing {

// What an act that should fail says, or "no error". Errors of another kind go on to the test, which then fails.
template <class Error = ConfigError, class Act>
std::string error_of(const Act& act) {
  try {
    act();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace braid::testing
