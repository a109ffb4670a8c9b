// Memory that a disk can write to and read from directly.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace braid {

inline constexpr std::size_t kDiskAlignment = 4096;

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeMemory>;

inline AlignedBuffer aligned_buffer(std::size_t bytes) {  // a multiple of the alignment
  AlignedBuffer buffer(static_cast<std::byte*>(std::aligned_alloc(kDiskAlignment, bytes)));
  if (!buffer) throw std::bad_alloc();
  return buffer;
}

}  // namespace braid
