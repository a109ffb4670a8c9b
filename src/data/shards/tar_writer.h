// Writes tar shards: regular files with short names, in ustar format, with fixed times, so that equal contents give
// equal bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

class TarWriter {
 public:
  // `name`: at most 100 bytes.
  void add(std::string_view name, std::string_view content);
  // The archive with its end blocks.
  std::string finish();

 private:
  std::string archive_;
};

}  // namespace braid
