// The files of a checkpoint: their names, their checksums, and reading parts of them, checked.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include "base/error.h"
#include "base/socket.h"

namespace braid {

inline constexpr const char* kIndexFile = ".metadata";
inline constexpr const char* kFormatFile = "metadata.json";
inline constexpr const char* kCommonFile = "common.pt";
inline constexpr const char* kChecksumFile = "checksums.json";

// Far above what any checkpoint needs: a larger file is damaged or hostile, and is not loaded into memory.
inline constexpr std::int64_t kMaxSmallFile = 1 << 20;  // the tracker, metadata.json
inline constexpr std::int64_t kMaxCommonFile = 256 << 20;
inline constexpr std::int64_t kMaxIndexFile = 512 << 20;  // and checksums.json: enough for 64 TiB of checkpoint

constexpr std::int64_t most_bytes_of(std::string_view name) {
  return name == kFormatFile ? kMaxSmallFile : name == kCommonFile ? kMaxCommonFile : kMaxIndexFile;
}

// The iterations in a folder of checkpoints, by the names of their folders.
inline std::string iteration_folder(const std::string& root, std::int64_t iteration) {
  return fmt::format("{}/iter_{:07}", root, iteration);
}
std::optional<std::int64_t> iteration_of(const std::string& name);  // of "iter_0000100", as iteration_folder() names it
inline std::string partial_folder(const std::string& root, std::int64_t iteration) {
  return fmt::format("{}/.iter_{:07}.partial", root, iteration);
}

// Ascending. Incomplete iterations lack an index.
enum class Complete { Yes, OrNot };
std::vector<std::int64_t> iterations_in(const std::string& root, Complete complete = Complete::Yes);

// --- checksums by block, so that a reader of some blocks can check those; they are stored in checksums.json

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

// Discarded if the text is not JSON; DataError that names `file` if it is nested deep, which could overflow the stack.
nlohmann::json parse_flat_json(std::string_view text, const std::string& file);

// --- reading parts of a file, each checked against its checksums

class CheckedFile {
 public:
  // DataError unless it is a regular file of the right size. Without checksums the content is not checked.
  CheckedFile(std::string path, std::optional<FileChecksums> checksums);

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }

  // DataError that names the file and the position when a block's checksum does not match.
  void read(std::int64_t offset, std::span<std::byte> to);

  // Which blocks have been read and checked; none without checksums.
  const std::vector<bool>& checked() const { return checked_; }
  void check_block(std::int64_t block);

  // Releases descriptor and cache until the next read.
  void sleep() {
    const Fd closed = std::move(fd_);
    cache_ = {};
  }

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
  std::int64_t block_bytes(std::int64_t block) const {
    return std::min(kChecksumBlock, size_ - block * kChecksumBlock);
  }
  void read_block(std::int64_t block, std::span<std::byte> to);
  std::span<const std::byte> cached_block(std::int64_t block);

  std::string path_;
  std::optional<FileChecksums> checksums_;
  std::int64_t size_ = 0;
  Fd fd_;
  std::vector<bool> checked_;  // by block
  std::array<CachedBlock, 4> cache_{};
  std::uint64_t cache_uses_ = 0;
  std::int64_t large_end_ = -2 * kChecksumBlock;  // where the last large read ended
  std::int64_t fetched_end_ = 0;                  // end of the kernel's read-ahead
};

// A whole file, checked. DataError when it has more than `most` bytes.
std::string read_whole(const std::string& path, std::optional<FileChecksums> checksums, std::int64_t most);

}  // namespace braid
