#include "fuzz/text_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  braid::testing::fuzz_chat_template({reinterpret_cast<const char*>(data), size});
  return 0;
}
