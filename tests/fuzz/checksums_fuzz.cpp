#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  braid::testing::fuzz_checksums({reinterpret_cast<const char*>(data), size});
  return 0;
}
