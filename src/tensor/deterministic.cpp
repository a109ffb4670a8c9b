#include "tensor/deterministic.h"

#include <ATen/Context.h>

namespace braid {

void set_deterministic(bool deterministic) {
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

}  // namespace braid
