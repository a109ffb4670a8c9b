// Prints how Braid interprets a rank's environment, for the tests under a real Slurm.
#include <fmt/format.h>

#include "dist/world_spec.h"

int main() {
  const auto spec = braid::world_spec_from(braid::process_env());
  if (!spec) return 1;
  fmt::print("rank {} of {}, {} of {} here, meets at {}\n", spec->rank, spec->size, spec->local_rank, spec->local_size,
             braid::to_string(spec->store));
}
