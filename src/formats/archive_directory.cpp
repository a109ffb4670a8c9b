#include "formats/archive_directory.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

constexpr std::int64_t kEndRecord = 22, kLocator64 = 20, kEndRecord64 = 56, kEntry = 46, kLongestComment = 0xffff;
constexpr std::int64_t kMaxDirectory = 64 << 20, kMaxOwnRecord = 4 << 10;
constexpr std::uint64_t kIn64 = 0xffffffff;  // value of a 32-bit field that refers to the 64-bit one

// Little-endian fields of a record of the archive.
class Bytes {
 public:
  Bytes(const ArchiveSource& source, std::int64_t offset, std::int64_t count)
      : bytes_(static_cast<std::size_t>(count)) {
    source.read(offset, bytes_);
  }

  std::uint64_t number(std::int64_t at, int size) const {
    std::uint64_t value = 0;
    for (int i = size - 1; i >= 0; --i) value = value << 8 | std::to_integer<std::uint64_t>(bytes_[at + i]);
    return value;
  }
  std::string_view text(std::int64_t at, std::int64_t count) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + at, static_cast<std::size_t>(count)};
  }
  std::int64_t size() const { return std::ssize(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

struct Directory {
  std::uint64_t offset = 0, size = 0;
};

// Searched as the zip code does: the last one, followed by at most a comment.
std::optional<Directory> find_directory(const ArchiveSource& source) {
  const std::int64_t tail_size = std::min(source.size, kEndRecord + kLongestComment);
  if (tail_size < kEndRecord) return std::nullopt;
  const Bytes tail(source, source.size - tail_size, tail_size);
  for (std::int64_t at = tail_size - kEndRecord; at >= 0; --at) {
    if (tail.number(at, 4) != 0x06054b50) continue;
    Directory found = {.offset = tail.number(at + 16, 4), .size = tail.number(at + 12, 4)};
    const std::int64_t locator = source.size - tail_size + at - kLocator64;
    if (locator < 0) return found;
    const Bytes where(source, locator, kLocator64);
    if (where.number(0, 4) != 0x07064b50) return found;
    const std::uint64_t end64 = where.number(8, 8);
    if (source.size < kEndRecord64 || end64 > static_cast<std::uint64_t>(source.size - kEndRecord64)) return found;
    const Bytes record(source, static_cast<std::int64_t>(end64), kEndRecord64);
    if (record.number(0, 4) == 0x06064b50) found = {.offset = record.number(48, 8), .size = record.number(40, 8)};
    return found;
  }
  return std::nullopt;
}

// All records except the pickle and the tensors' bytes: version, byte order and the like.
bool is_own_record(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash != std::string_view::npos) name.remove_prefix(slash + 1);
  return name != "data.pkl" && !name.starts_with("data/");
}

void check_entry(const ArchiveSource& source, std::string_view name, std::uint64_t method, std::uint64_t stored,
                 std::uint64_t whole) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(
        fmt::format("{}: the record {} {}, which torch.save never writes", source.name, in_quotes(name), what));
  };
  if (method != 0 || stored != whole) refuse("is compressed");
  if (is_own_record(name) && whole > kMaxOwnRecord) refuse(fmt::format("has {} bytes", whole));
}

}  // namespace

void check_directory(const ArchiveSource& source) {
  const auto found = find_directory(source);
  if (!found) return;
  const auto total = static_cast<std::uint64_t>(source.size);
  if (found->offset > total || found->size > total - found->offset || found->size > kMaxDirectory)
    throw DataError(fmt::format("{} is not an archive of torch.save: it has a directory of {} bytes at byte {} of {}",
                                source.name, found->size, found->offset, total));
  const Bytes entries(source, static_cast<std::int64_t>(found->offset), static_cast<std::int64_t>(found->size));
  for (std::int64_t at = 0; at + kEntry <= entries.size() && entries.number(at, 4) == 0x02014b50;) {
    const auto name_size = static_cast<std::int64_t>(entries.number(at + 28, 2));
    const auto more = static_cast<std::int64_t>(entries.number(at + 30, 2) + entries.number(at + 32, 2));
    if (at + kEntry + name_size + more > entries.size()) return;
    std::uint64_t stored = entries.number(at + 20, 4), whole = entries.number(at + 24, 4);
    // Such an entry keeps both in the extra field. It is a large tensor, which is read by its offset alone.
    if (stored == kIn64 || whole == kIn64) stored = whole = kIn64;
    check_entry(source, entries.text(at + kEntry, name_size), entries.number(at + 10, 2), stored, whole);
    at += kEntry + name_size + more;
  }
}

}  // namespace braid
