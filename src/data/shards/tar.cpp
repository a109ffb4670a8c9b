#include "data/shards/tar.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

constexpr std::uint64_t kBlock = kTarBlock;
constexpr std::uint64_t kMaxExtensionBytes = 1 << 20;  // far more than any path; bounds what a damaged size can cost

// Fields of a header block.
constexpr std::size_t kNameAt = 0, kNameBytes = 100, kSizeAt = 124, kSizeBytes = 12, kChecksumAt = 148;
constexpr std::size_t kChecksumBytes = 8, kTypeAt = 156, kPrefixAt = 345, kPrefixBytes = 155;

std::string_view until_nul(std::string_view field) { return field.substr(0, field.find('\0')); }

// A number in octal digits between spaces, or in base 256 if the first bit is set. Nothing if it is neither, negative
// or too large.
std::optional<std::uint64_t> parse_number(std::string_view field) {
  const auto first = static_cast<unsigned char>(field[0]);
  std::uint64_t value = 0;
  if (first & 0x80) {
    if (first != 0x80) return std::nullopt;
    for (const char c : field.substr(1)) {
      if (value >> 55) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  std::string_view digits = until_nul(field);
  while (!digits.empty() && digits.front() == ' ') digits.remove_prefix(1);
  while (!digits.empty() && digits.back() == ' ') digits.remove_suffix(1);
  for (const char c : digits) {
    if (c < '0' || c > '7') return std::nullopt;
    value = value << 3 | static_cast<std::uint64_t>(c - '0');  // at most 12 digits, 36 bits
  }
  return value;
}

// Old programs summed signed bytes.
bool checksum_matches(std::string_view header) {
  const auto stored = parse_number(header.substr(kChecksumAt, kChecksumBytes));
  std::int64_t as_unsigned = 0, as_signed = 0;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const bool in_checksum = i >= kChecksumAt && i < kChecksumAt + kChecksumBytes;
    const char byte = in_checksum ? ' ' : header[i];
    as_unsigned += static_cast<unsigned char>(byte);
    as_signed += static_cast<signed char>(byte);
  }
  return stored &&
         (static_cast<std::int64_t>(*stored) == as_unsigned || static_cast<std::int64_t>(*stored) == as_signed);
}

bool is_regular(char type) { return type == '0' || type == '\0' || type == '7'; }

// Links, devices and folders have no content, whatever their size field says. Unknown types are skipped by size.
bool has_content(char type) {
  return is_regular(type) || std::string_view("123456").find(type) == std::string_view::npos;
}

std::uint64_t padded(std::uint64_t size) { return (size + kBlock - 1) / kBlock * kBlock; }

std::string without_end_slashes(std::string name) {
  while (name.ends_with('/')) name.pop_back();
  return name;
}

}  // namespace

TarBytes tar_bytes(std::string_view bytes, std::uint64_t begin) {
  return {begin + bytes.size(),
          [=](std::uint64_t offset, std::size_t size) { return bytes.substr(offset - begin, size); }};
}

struct TarReader::Extensions {
  std::optional<std::string> long_name{}, pax_path{};
  std::optional<std::uint64_t> pax_size{};
};

TarReader::TarReader(TarBytes archive, std::string name, std::uint64_t offset)
    : archive_(std::move(archive)), name_(std::move(name)), offset_(offset) {}

void TarReader::fail(const std::string& what) const {
  throw DataError(fmt::format("'{}' is damaged at byte {}: {}", name_, offset_, what));
}

std::string_view TarReader::header() const {
  if (offset_ > archive_.end || archive_.end - offset_ < kBlock)
    throw TarEndError(fmt::format("'{}' is damaged at byte {}: the file ends within a header block ({} bytes in all)",
                                  name_, offset_, archive_.end));
  return archive_.read(offset_, kBlock);
}

void TarReader::check_content(std::uint64_t offset, std::uint64_t size) const {
  if (offset > archive_.end || archive_.end - offset < size)
    throw TarEndError(
        fmt::format("'{}' is damaged at byte {}: a member of {} bytes reaches beyond the end of the file ({} bytes)",
                    name_, offset_, size, archive_.end));
}

// Records are "LENGTH KEY=VALUE\n", where LENGTH counts the whole record.
void TarReader::read_pax(std::string_view records, bool is_global, Extensions& extensions) const {
  while (!records.empty() && records.front() != '\0') {
    const std::size_t space = records.find(' ');
    const auto length = parse_int64(records.substr(0, space));
    if (space == records.npos || !length || *length <= static_cast<std::int64_t>(space) + 1 ||
        *length > std::ssize(records))
      fail("an extended header has a record with an invalid length");
    const std::string_view record = records.substr(space + 1, static_cast<std::size_t>(*length) - space - 1);
    records.remove_prefix(static_cast<std::size_t>(*length));
    const std::size_t equals = record.find('=');
    if (equals == record.npos || !record.ends_with('\n')) fail("an extended header has a record without a value");
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1, record.size() - equals - 2);
    if (key.starts_with("GNU.sparse")) fail("sparse files are not supported: pack the file without --sparse");
    if (is_global && (key == "path" || key == "size")) fail("a global header sets the path or size of all members");
    if (key == "path") extensions.pax_path = without_end_slashes(std::string(value));
    if (key == "size") {
      const auto size = parse_int64(value);
      if (!size || *size < 0) fail("an extended header has an invalid size");
      extensions.pax_size = static_cast<std::uint64_t>(*size);
    }
  }
}

TarMember TarReader::finish_member(std::string_view header, const Extensions& extensions, std::uint64_t first_header) {
  const char type = header[kTypeAt];
  if (type == 'S') fail("sparse files are not supported: pack the file without --sparse");
  TarMember member{.name = std::string(until_nul(header.substr(kNameAt, kNameBytes))), .offset = first_header};
  member.is_regular = is_regular(type) && !(type == '\0' && member.name.ends_with('/'));
  const std::string_view prefix = until_nul(header.substr(kPrefixAt, kPrefixBytes));
  if (!prefix.empty()) member.name = fmt::format("{}/{}", prefix, member.name);
  if (extensions.long_name) member.name = *extensions.long_name;
  if (extensions.pax_path) member.name = *extensions.pax_path;
  if (type == '1' || type == '2')
    throw DataError(
        fmt::format("'{}' has a link, {}; pack the files themselves, with tar --dereference --hard-dereference", name_,
                    in_quotes(member.name)));
  const auto size = extensions.pax_size ? extensions.pax_size : parse_number(header.substr(kSizeAt, kSizeBytes));
  if (!size) fail("the size of a member is not a number");
  member.content_offset = offset_ + kBlock;
  member.content_size = member.is_regular || has_content(type) ? *size : 0;
  check_content(member.content_offset, member.content_size);
  // Some writers leave out the padding of the last member.
  offset_ = std::min<std::uint64_t>(member.content_offset + padded(member.content_size), archive_.end);
  return member;
}

bool has_only_zeros(const TarBytes& archive, std::uint64_t from) {
  constexpr std::uint64_t kChunk = 1 << 16;
  for (std::uint64_t at = from; at < archive.end; at += kChunk)
    if (archive.read(at, std::min(kChunk, archive.end - at)).find_first_not_of('\0') != std::string_view::npos)
      return false;
  return true;
}

std::string end_remark(const TarBytes& archive, std::uint64_t end, const std::string& name) {
  if (end % kBlock != 0)
    return fmt::format(
        "'{}' ends within the padding of its last member: it has been cut, or its writer leaves out padding", name);
  if (end >= archive.end)
    return fmt::format("'{}' has no end mark after its last member: it may have been cut there", name);
  if (has_only_zeros(archive, end))
    return archive.end - end >= kBlock
               ? ""
               : fmt::format("'{}' ends within its end mark: it has been cut there, but no member is missing", name);
  return fmt::format(
      "'{}' has data after its end mark at byte {}, which is ignored: it was appended, or a damaged block looks like "
      "an end mark",
      name, end);
}

std::optional<TarMember> TarReader::next() {
  Extensions extensions;
  std::optional<std::uint64_t> extended_from;
  const std::uint64_t start = offset_;
  while (true) {
    const bool has_cut_block = offset_ + kBlock > archive_.end;
    const bool at_end =
        has_cut_block ? has_only_zeros(archive_, offset_) : header().find_first_not_of('\0') == std::string_view::npos;
    if (at_end && offset_ != start) fail("an extended header has no member after it");
    if (at_end && archive_.end == 0) fail("the file is empty");
    if (at_end) return std::nullopt;
    const std::string_view header = this->header();
    if (!checksum_matches(header)) fail("a header block has a wrong checksum, or this is not a tar file");
    const char type = header[kTypeAt];
    if (std::string_view("LKxXg").find(type) == std::string_view::npos)
      return finish_member(header, extensions, extended_from.value_or(offset_));
    const auto size = parse_number(header.substr(kSizeAt, kSizeBytes));
    if (!size || *size > kMaxExtensionBytes) fail("the size of an extended header is invalid");
    check_content(offset_ + kBlock, *size);
    const std::string_view content = archive_.read(offset_ + kBlock, *size);
    if (type == 'L') extensions.long_name = std::string(until_nul(content));
    if (type == 'x' || type == 'X' || type == 'g') read_pax(content, type == 'g', extensions);
    if (type != 'g' && !extended_from) extended_from = offset_;
    offset_ = std::min<std::uint64_t>(offset_ + kBlock + padded(*size), archive_.end);
  }
}

void TarWriter::add(std::string_view name, std::string_view content) {
  BRAID_CHECK(!name.empty() && name.size() <= 100, "the name of a tar member has {} bytes", name.size());
  std::array<char, kBlock> header{};
  const auto put = [&](std::size_t at, std::string_view text) {
    std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(at));
  };
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", content.size()));
  put(136, fmt::format("{:011o}", 0));  // the time
  put(148, "        ");                 // the checksum counts as spaces
  put(156, "0");
  put(257, std::string_view("ustar\0"
                            "00",
                            8));
  const int sum =
      std::accumulate(header.begin(), header.end(), 0, [](int a, char c) { return a + static_cast<unsigned char>(c); });
  put(148, fmt::format("{:06o}", sum));
  header[154] = '\0';
  archive_.append(header.data(), header.size());
  archive_ += content;
  archive_.append((kBlock - content.size() % kBlock) % kBlock, '\0');
}

std::string TarWriter::finish() {
  archive_.append(2 * kBlock, '\0');
  return std::move(archive_);
}

}  // namespace braid
