#include "fuzz/image_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  braid::testing::fuzz_image_header({data, size});
  return 0;
}
