// The torch wheel ships libtorch with Gloo inside but without Gloo's headers, which ProcessGroupGloo.hpp includes.
// Declarations of the types it names are enough to construct and call it; nothing here is ever instantiated by Braid.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
