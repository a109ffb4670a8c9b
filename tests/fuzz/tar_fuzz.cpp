#include "fuzz/shard_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  braid::testing::fuzz_tar({reinterpret_cast<const char*>(data), size});
  return 0;
}
