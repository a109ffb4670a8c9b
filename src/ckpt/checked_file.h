// A file of a checkpoint that is read in parts, each checked against its checksums on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/checksums.h"

namespace braid {

class CheckedFile {
 public:
  // DataError when the file is missing or has another size. Without checksums nothing is checked.
  CheckedFile(std::string path, std::optional<FileChecksums> checksums);
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }

  // DataError that names the file and the place when a block there is not what was written.
  void read(std::int64_t offset, std::span<std::byte> to);

  // All blocks that read() has not met yet.
  void check_rest();

 private:
  void read_block(std::int64_t block);
  void check_block(std::int64_t block, std::span<const std::byte> bytes);

  std::string path_;
  std::optional<FileChecksums> checksums_;
  std::int64_t size_ = 0;
  int fd_ = -1;
  std::vector<bool> checked_;        // by block
  std::vector<std::byte> last_{};    // the block read last, of which only a part was wanted
  std::int64_t last_block_ = -1;
};

}  // namespace braid
