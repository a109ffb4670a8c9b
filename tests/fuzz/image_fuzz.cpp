#include "fuzz/image_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  braid::testing::fuzz_image({data, size});
  return 0;
}
