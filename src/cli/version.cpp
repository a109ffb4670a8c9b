#include <torch/version.h>

#include "cli/commands.h"
#include "comm/backend_factory.h"

namespace braid {

std::string version_text() {
  const std::string nccl = nccl_version();
  return fmt::format("braid {}\nlibtorch {}\nCUDA {}\nNCCL {}", BRAID_VERSION, TORCH_VERSION, BRAID_CUDA_VERSION,
                     nccl.empty() ? "none (CPU build)" : nccl);
}

}  // namespace braid
