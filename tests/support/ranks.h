// Runs a piece of a test as the ranks of a world, over Gloo between processes or over memory between threads.
#pragma once

#include "comm/world.h"
#include "support/thread_backend.h"

namespace braid::testing {

// As processes: this test program is started again, told to run only the current test, and in it only this call, where
// it forks into the ranks, so that all have what the test has computed before. The ranks run under Braid's own
// launcher, so one that hangs or crashes is named; an expectation that fails in any of them fails the test. A test may
// call it several times.
//
// BRAID_TEST_DEVICE=cuda puts the tensors of every rank on the GPU, which they share. The program then forks before any
// test, since a fork breaks CUDA.
void on_processes(int ranks, const std::function<void(World&)>& body);

inline void on_threads(int ranks, const std::function<void(World&)>& body,
                       ThreadSemantics semantics = ThreadSemantics::Relaxed) {
  run_as_threads(ranks, body, semantics);
}

}  // namespace braid::testing
