// Tar archives: ustar, GNU long names, PAX paths and sizes. Each member is checked before it is returned: its
// checksum, its numbers, and that its content lies within the archive. Damage is a DataError that names archive and
// offset; it never looks like the end of the archive.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace braid {

inline constexpr std::uint64_t kTarBlock = 512;  // members begin at multiples of it

// The bytes of an archive up to `end`.
struct TarBytes {
  std::uint64_t end = 0;
  // Only within `end`; valid until the next call. DataError if they cannot be read.
  std::function<std::string_view(std::uint64_t offset, std::size_t size)> read{};
};
TarBytes tar_bytes(std::string_view bytes, std::uint64_t begin = 0);  // `begin`: where they are in the archive

struct TarMember {
  std::string name;
  std::uint64_t offset = 0;          // of its first header block; extension headers precede the member's own
  std::uint64_t content_offset = 0;  // both within the archive
  std::uint64_t content_size = 0;
  bool is_regular = false;  // a file with content, not a folder, link or device
};

// A header or a member reaches beyond TarBytes::end.
class TarEndError : public DataError {
 public:
  using DataError::DataError;
};

class TarReader {
 public:
  // `name` is for messages. Reading starts at `offset`, which must be that of a header.
  TarReader(TarBytes archive, std::string name, std::uint64_t offset = 0);

  // Returns nothing at the end: at a block of zeros, even if it is cut, or where the file ends between two members.
  std::optional<TarMember> next();

  // The offset that next() reads at; after the end, that of the first block that belongs to no member.
  std::uint64_t offset() const { return offset_; }

 private:
  struct Extensions;  // what preceding extension headers say about the next member

  std::string_view header() const;
  void check_content(std::uint64_t offset, std::uint64_t size) const;
  void read_pax(std::string_view records, bool is_global, Extensions& extensions) const;
  TarMember finish_member(std::string_view header, const Extensions& extensions, std::uint64_t first_header);
  [[noreturn]] void fail(const std::string& what) const;

  TarBytes archive_;
  std::string name_;
  std::uint64_t offset_;
};

// What is wrong with the end of an archive whose last member ends, padding included, at `end`, as TarReader::offset()
// says; empty: nothing. Tools read such archives in silence, but most write the end: blocks of zeros.
std::string end_remark(const TarBytes& archive, std::uint64_t end, const std::string& name);
bool has_only_zeros(const TarBytes& archive, std::uint64_t from);

// Writes tar shards: regular files with short names, in ustar format, with fixed times, so that equal contents give
// equal bytes.
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
