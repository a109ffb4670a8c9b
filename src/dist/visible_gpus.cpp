#include "dist/visible_gpus.h"

#include <signal.h>
#include <torch/cuda.h>

#include "base/socket.h"

namespace braid {

int visible_gpus() {
  // CUDA's driver starts threads here. They keep the mask that they start with, and the launcher reads its signals from
  // a queue: a thread that does not block them would take one from it, and die of it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const int count = static_cast<int>(torch::cuda::device_count());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return count;
}

Problem no_gpu(const std::string& where) {
  return {fmt::format("no GPU is visible on {}", host_name()), where,
          "use cpu or auto, or a build and a machine with CUDA"};
}

}  // namespace braid
