// Prints how Braid interprets a rank's environment, for the tests of launchers. With an argument, the ranks also meet,
// and each prints the number of its threads.
#include <ATen/Parallel.h>
#include "comm/run_as_rank.h"
#include "comm/shared_start.h"
#include "comm/world.h"

int main(int argc, char**) {
  braid::fork_into_ranks();
  const auto spec = braid::world_spec_from(braid::process_env());
  if (!spec) return 1;
  fmt::print("rank {} of {}, {} of {} here, meets at {}\n", spec->rank, spec->size, spec->local_rank, spec->local_size,
             braid::to_string(spec->store));
  if (argc == 1) return 0;
  braid::run_as_rank(*spec, {.device = braid::DeviceChoice::Cpu}, {},
                     [](braid::World&) { fmt::print("threads: {}\n", at::get_num_threads()); });
}
