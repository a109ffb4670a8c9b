#pragma once

namespace braid {

// libtorch's aarch64 wheel uses NVPL BLAS, whose first call never returns on some CPUs other than Grace (seen on
// Neoverse V1). Setting the CPU type avoids this. Call before the first matrix product.
void work_around_blas();

}  // namespace braid
