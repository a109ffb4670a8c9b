// Checks the record directory of a torch.save archive before libtorch's zip code, which trusts it, allocates memory for
// the records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace braid {

// The source of an archive. Exceptions of `read` reach the caller unchanged.
struct ArchiveSource {
  std::string name{};  // for messages
  std::int64_t size = 0;
  std::function<void(std::int64_t offset, std::span<std::byte> to)> read{};
};

// DataError for an archive with a compressed record, with a large record of libtorch's own, or with a directory larger
// than any valid one. Files that are not zip archives are left to the zip code.
void check_directory(const ArchiveSource& source);

}  // namespace braid
