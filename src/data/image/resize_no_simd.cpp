// A processor for which there is no vector version.
#include "data/image/resize_kernels.h"

namespace braid {

std::vector<ResizeKernels> vector_resize_kernels() { return {}; }

}  // namespace braid
