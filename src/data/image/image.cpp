#include "data/image/image.h"

#include <sys/mman.h>

#include <new>

namespace braid {

Image::Data Image::allocate(std::size_t bytes) {
  // From here on glibc maps every block anew instead of reusing freed ones.
  constexpr std::size_t kLarge = std::size_t{32} << 20, kLargePage = std::size_t{2} << 20;
  const bool is_large = bytes >= kLarge;
  const std::size_t whole = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  Data data(static_cast<std::uint8_t*>(is_large ? std::aligned_alloc(kLargePage, whole) : std::malloc(bytes)));
  if (!data) throw std::bad_alloc();
  if (is_large) madvise(data.get(), whole, MADV_HUGEPAGE);  // only a hint: failing does no harm
  return data;
}

}  // namespace braid
