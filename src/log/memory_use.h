// How much memory a rank uses, and the maximum over ranks.
#pragma once

#include <string>
#include <vector>

namespace braid {

struct MemoryUse {
  double allocated_mb = 0, max_allocated_mb = 0;  // of the GPU, in tensors; 0 without a GPU
  double reserved_mb = 0, max_reserved_mb = 0;    // of the GPU, held by the allocator
  double host_mb = 0, max_host_mb = 0;            // resident set of the process
  bool operator==(const MemoryUse&) const = default;
};

// Only the host's memory; code that uses libtorch adds the GPU's.
MemoryUse host_memory();

// A vector whose element-wise maximum over ranks holds the largest value of each kind.
std::vector<double> to_values(const MemoryUse& memory);
MemoryUse memory_of(const std::vector<double>& values);

// "memory (MB) | allocated: 1.00 | max allocated: 2.00 | reserved: 3.00 | max reserved: 4.00 | host: 5.00 | max
// host: 6.00", in Megatron's words; GPU values only if there is a GPU.
std::string to_line(const MemoryUse& memory);

}  // namespace braid
