// Ranks as threads of one process, exchanging tensors through memory behind the same c10d interface as Gloo
// and NCCL. A collective costs microseconds, a debugger sees every rank, and hundreds of ranks fit in one
// test.
#pragma once

#include <functional>

#include "comm/thread_semantics.h"

namespace braid {

class World;

// Runs `body` once per rank, each on its own thread, and returns when all have returned. Rethrows the first exception;
// the other ranks are woken with a CommError. A deadlock is found at once, without a time-out, and reported as a
// CommError that says where each rank waits.
void run_as_threads(int size, const std::function<void(World&)>& body,
                    ThreadSemantics semantics = ThreadSemantics::Relaxed);

}  // namespace braid
