#include "base/error.h"
#include "predict/calibrate.h"

namespace braid {

GpuFacts gpu_facts() { throw_check_failed(__FILE__, __LINE__, "a build without CUDA has no GPU"); }

}  // namespace braid
