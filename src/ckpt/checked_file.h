// Reads parts of a checkpoint file and checks each against its checksums. A part is a torch.save archive of its own,
// which must match its entry in the index.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/checksums.h"
#include "ckpt/dist_metadata.h"
#include "formats/torch_archive.h"

namespace braid {

class CheckedFile {
 public:
  // DataError when the file is missing, is not a regular file (a pipe may never end), or has the wrong size. Without
  // checksums the content is not checked.
  CheckedFile(std::string path, std::optional<FileChecksums> checksums);
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }

  // DataError that names the file and the position when a block's checksum does not match.
  void read(std::int64_t offset, std::span<std::byte> to);

  // Which blocks have been read and checked; none without checksums.
  const std::vector<bool>& checked() const { return checked_; }
  void check_block(std::int64_t block);

  // Releases descriptor and cache until the next read.
  void sleep();

 private:
  // Opening one of several consecutive archives reads its first and last block, which it shares with its neighbours,
  // and reading its data reads them again. Caching a few blocks avoids the repeated reads.
  struct CachedBlock {
    std::int64_t block = -1;
    std::uint64_t used_at = 0;
    std::vector<std::byte> bytes{};
  };

  void open();
  void fetch_ahead(std::int64_t offset, std::int64_t end);
  std::int64_t block_bytes(std::int64_t block) const;
  void read_block(std::int64_t block, std::span<std::byte> to);
  std::span<const std::byte> cached_block(std::int64_t block);

  std::string path_;
  std::optional<FileChecksums> checksums_;
  std::int64_t size_ = 0;
  int fd_ = -1;
  std::vector<bool> checked_;  // by block
  std::array<CachedBlock, 4> cache_{};
  std::uint64_t cache_uses_ = 0;
  std::int64_t large_end_ = -2 * kChecksumBlock;  // where the last large read ended
  std::int64_t fetched_end_ = 0;                  // end of the kernel's read-ahead
};

// A whole file, checked. DataError when it has more than `most` bytes.
std::string read_whole(const std::string& path, std::optional<FileChecksums> checksums, std::int64_t most);

// `part` must lie inside the file, which must outlive the source.
ArchiveSource source_of(CheckedFile& file, const FileRange& part, const std::string& key);

// The offset of a chunk's elements in the source. DataError when the tensor differs from the index.
std::int64_t data_offset(const ArchiveSource& source, StoredDtype dtype, const std::vector<std::int64_t>& size);

// The element of a ShardedObject's list. DataError when there is no such list.
PickleValue object_in(const ArchiveSource& source, const std::string& key);

}  // namespace braid
