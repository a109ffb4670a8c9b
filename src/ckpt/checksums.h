// Checksums of a checkpoint's files by block, so that a reader of some blocks can check those. They are stored in
// checksums.json beside the other files.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/file_names.h"

namespace braid {

inline constexpr std::int64_t kChecksumBlock = 1 << 20;

struct FileChecksums {
  std::int64_t size = 0;
  std::vector<std::uint32_t> blocks{};  // CRC-32C of every kChecksumBlock bytes, the last block may be shorter
  bool operator==(const FileChecksums&) const = default;
};

using Checksums = std::map<std::string, FileChecksums>;  // by file name

// Computes checksums of bytes that arrive in order.
class ChecksumStream {
 public:
  void add(std::span<const std::byte> bytes);
  FileChecksums finish();

 private:
  FileChecksums sums_;
  std::uint32_t open_block_ = 0;
};

FileChecksums checksums_of(std::string_view bytes);

// The text has a checksum of itself: parse throws DataError that names `file` if it was changed.
std::string to_text(const Checksums& checksums);
Checksums parse_checksums(std::string_view text, const std::string& file);

// JSON of a checkpoint's small files, which is nested only a few levels deep: copying or printing deeper JSON could
// overflow the stack. Discarded if the text is not JSON; DataError that names `file` if it is nested too deep.
nlohmann::json parse_flat_json(std::string_view text, const std::string& file);

}  // namespace braid
