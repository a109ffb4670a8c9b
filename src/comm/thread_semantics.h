// When sends and receives between ranks that are threads complete.
#pragma once

namespace braid {

enum class ThreadSemantics {
  Relaxed,   // like Gloo: a send completes at once, its receive may come later
  Strict,    // the strictest reading of NCCL: a send completes only when its receive is posted, and the operations
             // of one group run in the order each rank posted them; only a coalesced batch of sends and
             // receives runs together
  OneQueue,  // strict, and the operations of all groups of a rank run in the order it posted them: a GPU whose
             // kernels share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1). Floating-point results are NaN until
             // their wait, so that reading them too early shows.
};

}  // namespace braid
