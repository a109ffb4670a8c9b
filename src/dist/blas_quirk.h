#pragma once

namespace braid {

// libtorch's aarch64 wheel computes with NVPL BLAS, whose first call never returns on some CPUs other than the Grace it
// is made for (seen on Neoverse V1). Told a CPU type, it works. Call before the first matrix product.
void work_around_blas();

}  // namespace braid
