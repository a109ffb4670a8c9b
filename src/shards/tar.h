// Tar archives in memory: ustar, GNU long names, PAX paths and sizes. Each member is checked before it is returned: its
// checksum, its numbers, and that its content lies within the archive. Damage is a DataError that names archive and
// offset; it never looks like the end of the archive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

inline constexpr std::uint64_t kTarBlock = 512;  // members begin at multiples of it

struct TarMember {
  std::string name;
  std::uint64_t offset = 0;          // of its first header block; extension headers precede the member's own
  std::uint64_t content_offset = 0;  // both within the archive
  std::uint64_t content_size = 0;
  bool is_regular = false;  // a file with content, not a folder, link or device
};

class TarReader {
 public:
  // `name` is for messages. Reading starts at `offset`, which must be that of a header.
  TarReader(std::string_view archive, std::string name, std::uint64_t offset = 0);

  // Nothing at the end: at a block of zeros, even if it is cut, or where the file ends between two members.
  std::optional<TarMember> next();

  // Where next() reads; after the end, the offset of the first block that belongs to no member.
  std::uint64_t offset() const { return offset_; }

 private:
  struct Extensions;  // what preceding extension headers say about the next member

  std::string_view header_at(std::uint64_t offset) const;
  std::string_view content_at(std::uint64_t offset, std::uint64_t size) const;
  void read_pax(std::string_view records, bool is_global, Extensions& extensions) const;
  TarMember finish_member(std::string_view header, const Extensions& extensions, std::uint64_t first_header);
  [[noreturn]] void fail(const std::string& what) const;

  std::string_view archive_;
  std::string name_;
  std::uint64_t offset_;
};

// What is wrong with the end of an archive whose last member ends, padding included, at `end`, as TarReader::offset()
// says; empty: nothing. Tools read such archives in silence, but most write the end: blocks of zeros.
std::string end_remark(std::string_view archive, std::uint64_t end, const std::string& name);

}  // namespace braid
