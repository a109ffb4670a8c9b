#pragma once

#include "base/error.h"

namespace braid::testing {

// The message of an act that should fail, or "no error". Errors of another type propagate and fail the test.
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
