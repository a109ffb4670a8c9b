// Ranks as threads of one process, exchanging tensors through memory behind the same c10d interface as Gloo
// and NCCL. A collective costs microseconds, a debugger sees every rank, and hundreds of ranks fit in one
// test.
#pragma once

namespace braid {

class World;

// When sends and receives complete.
enum class ThreadSemantics {
  Relaxed,   // like Gloo: a send completes at once, its receive may come later
  Strict,    // the strictest reading of NCCL: a send completes only when its receive is posted, and the operations
             // of one group run in the order each rank posted them; only a coalesced batch of sends and
             // receives runs together
  OneQueue,  // strict, and the operations of all groups of a rank run in the order it posted them: a GPU whose
             // kernels share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1). Floating-point results are NaN until
             // their wait, so that reading them too early shows.
};

// Runs `body` once per rank, each on its own thread, and returns when all have returned. Rethrows the first exception;
// the other ranks are woken with a CommError. A deadlock is found at once, without a time-out, and reported as a
// CommError that says where each rank waits.
void run_as_threads(int size, const std::function<void(World&)>& body,
                    ThreadSemantics semantics = ThreadSemantics::Relaxed);

}  // namespace braid
