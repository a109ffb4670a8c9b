#include "data/shards/shard.h"
#include "base/strings.h"
#include "data/shards/energon_random.h"
#include "data/shards/indexed_file.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

constexpr std::uint64_t kMaxExtensionBytes = 1 << 20;  // far more than any path; bounds what a damaged size can cost

// Fields of a header block.
struct Field {
  std::size_t at, size;
  std::string_view in(std::string_view header) const { return header.substr(at, size); }
};
constexpr Field kName = {0, 100}, kSize = {124, 12}, kChecksum = {148, 8}, kPrefix = {345, 155};
constexpr std::size_t kTypeAt = 156;

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
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  digits = digits.substr(0, digits.find_last_not_of(' ') + 1);
  for (const char c : digits) {
    if (c < '0' || c > '7') return std::nullopt;
    value = value << 3 | static_cast<std::uint64_t>(c - '0');  // at most 12 digits, 36 bits
  }
  return value;
}

// Old programs summed signed bytes.
bool checksum_matches(std::string_view header) {
  const auto stored = parse_number(kChecksum.in(header));
  std::uint64_t as_unsigned = 0, as_signed = 0;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const char byte = i - kChecksum.at < kChecksum.size ? ' ' : header[i];
    as_unsigned += static_cast<unsigned char>(byte);
    as_signed += static_cast<std::uint64_t>(static_cast<signed char>(byte));
  }
  return stored == as_unsigned || stored == as_signed;
}

bool is_regular(char type) { return type == '0' || type == '\0' || type == '7'; }

// Links, devices and folders have no content, whatever their size field says. Unknown types are skipped by size.
bool has_content(char type) {
  return is_regular(type) || std::string_view("123456").find(type) == std::string_view::npos;
}

std::uint64_t padded(std::uint64_t size) { return (size + kTarBlock - 1) / kTarBlock * kTarBlock; }

bool has_only_zeros(const TarBytes& archive, std::uint64_t from) {
  constexpr std::uint64_t kChunk = 1 << 16;
  for (std::uint64_t at = from; at < archive.end; at += kChunk)
    if (archive.read(at, std::min(kChunk, archive.end - at)).find_first_not_of('\0') != std::string_view::npos)
      return false;
  return true;
}

static_assert(std::endian::native == std::endian::little, "index files are read as they are");

constexpr std::uint64_t kMostSampleBytes = 1 << 30;  // a sample is read as a whole; a wrong index may say any size

constexpr std::size_t kAhead = 4096;

// Reads a little more than is asked for, since the headers of small members are close together.
TarBytes tar_bytes(const InputFile& file) {
  struct Window {
    std::uint64_t begin = 0;
    std::string bytes{};
  };
  return {file.size(), [&file, window = std::make_shared<Window>()](std::uint64_t offset, std::size_t size) {
            if (offset < window->begin || offset + size > window->begin + window->bytes.size()) {
              const std::uint64_t left = file.size() - offset;
              *window = {offset, file.read(offset, std::max(size, std::min<std::size_t>(kAhead, left)))};
            }
            return std::string_view(window->bytes).substr(offset - window->begin, size);
          }};
}

}  // namespace

TarBytes tar_bytes(std::string_view bytes, std::uint64_t begin) {
  return {begin + bytes.size(),
          [=](std::uint64_t offset, std::size_t size) { return bytes.substr(offset - begin, size); }};
}

struct TarReader::Extensions {
  std::optional<std::uint64_t> begin{};  // of the first extension header
  std::optional<std::string> long_name{}, pax_path{};
  std::optional<std::uint64_t> pax_size{};
};

// Throws if the content of the member at offset_ reaches beyond the archive.
void TarReader::check_content(std::uint64_t size) const {
  const std::uint64_t offset = offset_ + kTarBlock;
  if (offset > archive_.end || archive_.end - offset < size)
    throw TarEndError(
        fmt::format("'{}' is damaged at byte {}: a member of {} bytes reaches beyond the end of the file ({} bytes)",
                    name_, offset, size, archive_.end));
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
    if (key == "path") extensions.pax_path = value.substr(0, value.find_last_not_of('/') + 1);
    if (key == "size") {
      const auto size = parse_int64(value);
      if (!size || *size < 0) fail("an extended header has an invalid size");
      extensions.pax_size = static_cast<std::uint64_t>(*size);
    }
  }
}

TarMember TarReader::finish_member(std::string_view header, const Extensions& extensions) {
  const char type = header[kTypeAt];
  if (type == 'S') fail("sparse files are not supported: pack the file without --sparse");
  TarMember member{.name = std::string(until_nul(kName.in(header))), .offset = extensions.begin.value_or(offset_)};
  member.is_regular = is_regular(type) && !(type == '\0' && member.name.ends_with('/'));
  const std::string_view prefix = until_nul(kPrefix.in(header));
  if (!prefix.empty()) member.name = fmt::format("{}/{}", prefix, member.name);
  member.name = extensions.pax_path.value_or(extensions.long_name.value_or(member.name));
  if (type == '1' || type == '2')
    throw DataError(
        fmt::format("'{}' has a link, {}; pack the files themselves, with tar --dereference --hard-dereference", name_,
                    in_quotes(member.name)));
  const auto size = extensions.pax_size ? extensions.pax_size : parse_number(kSize.in(header));
  if (!size) fail("the size of a member is not a number");
  member.content_offset = offset_ + kTarBlock;
  member.content_size = member.is_regular || has_content(type) ? *size : 0;
  check_content(member.content_size);
  // Some writers leave out the padding of the last member.
  offset_ = std::min(member.content_offset + padded(member.content_size), archive_.end);
  return member;
}

std::string end_remark(const TarBytes& archive, std::uint64_t end, const std::string& name) {
  if (end % kTarBlock != 0)
    return fmt::format(
        "'{}' ends within the padding of its last member: it has been cut, or its writer leaves out padding", name);
  if (end >= archive.end)
    return fmt::format("'{}' has no end mark after its last member: it may have been cut there", name);
  if (has_only_zeros(archive, end))
    return archive.end - end >= kTarBlock
               ? ""
               : fmt::format("'{}' ends within its end mark: it has been cut there, but no member is missing", name);
  return fmt::format(
      "'{}' has data after its end mark at byte {}, which is ignored: it was appended, or a damaged block looks like "
      "an end mark",
      name, end);
}

std::optional<TarMember> TarReader::next() {
  Extensions extensions;
  const std::uint64_t start = offset_;
  while (true) {
    const bool has_block = offset_ + kTarBlock <= archive_.end;
    const std::string_view header = has_block ? archive_.read(offset_, kTarBlock) : "";
    const bool at_end = has_block ? header.find_first_not_of('\0') == header.npos : has_only_zeros(archive_, offset_);
    if (at_end && offset_ != start) fail("an extended header has no member after it");
    if (at_end && archive_.end == 0) fail("the file is empty");
    if (at_end) return std::nullopt;
    if (!has_block)
      throw TarEndError(fmt::format("'{}' is damaged at byte {}: the file ends within a header block ({} bytes in all)",
                                    name_, offset_, archive_.end));
    if (!checksum_matches(header)) fail("a header block has a wrong checksum, or this is not a tar file");
    const char type = header[kTypeAt];
    if (std::string_view("LKxXg").find(type) == std::string_view::npos) return finish_member(header, extensions);
    const auto size = parse_number(kSize.in(header));
    if (!size || *size > kMaxExtensionBytes) fail("the size of an extended header is invalid");
    check_content(*size);
    const std::string_view content = archive_.read(offset_ + kTarBlock, *size);
    if (type == 'L') extensions.long_name = until_nul(content);
    if (type == 'x' || type == 'X' || type == 'g') read_pax(content, type == 'g', extensions);
    if (type != 'g' && !extensions.begin) extensions.begin = offset_;
    offset_ = std::min(offset_ + kTarBlock + padded(*size), archive_.end);
  }
}

void add_tar_member(std::string& archive, std::string_view name, std::string_view content) {
  BRAID_CHECK(!name.empty() && name.size() <= kName.size, "the name of a tar member has {} bytes", name.size());
  std::string header(kTarBlock, '\0');
  const auto put = [&](std::size_t at, std::string_view text) { header.replace(at, text.size(), text); };
  put(kName.at, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(kSize.at, fmt::format("{:011o}", content.size()));
  put(136, "00000000000");        // the time
  put(kChecksum.at, "        ");  // counts as spaces
  put(kTypeAt, "0");
  put(257, "ustar");
  put(263, "00");
  const int sum =
      std::accumulate(header.begin(), header.end(), 0, [](int a, char c) { return a + static_cast<unsigned char>(c); });
  put(kChecksum.at, fmt::format("{:06o}{}", sum, '\0'));
  archive += header;
  archive += content;
  archive.append(padded(content.size()) - content.size(), '\0');
}

SampleIndex::SampleIndex(const std::string& path) : file_(path) {
  if (file_.size() == 0 || file_.size() % sizeof(std::uint64_t) != 0)
    throw ReadError(
        fmt::format("'{}' is damaged: {} bytes are not an index; write it again with `braid data prepare --force`",
                    path, file_.size()));
}

ByteRange SampleIndex::range(std::int64_t sample) const {
  BRAID_CHECK(sample >= 0 && sample < samples(), "sample {} of {}", sample, samples());
  // The first sample may be preceded by members that belong to no sample.
  ByteRange range = entries<ByteRange>(sample);
  if (sample == 0) range.begin = 0;
  if (range.begin >= range.end)
    throw misfit(fmt::format("sample {} is said to be at bytes {} to {}", sample, range.begin, range.end));
  return range;
}

void write_sample_index(const std::string& path, const std::vector<std::uint64_t>& offsets) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(offsets)));
  file.commit();
}

std::optional<SampleName> split_sample_name(std::string_view member_name) {
  const std::string_view top = member_name.substr(0, member_name.find('/'));
  if (top.size() >= 4 && top.starts_with("__") && top.ends_with("__")) return std::nullopt;
  const std::size_t slash = member_name.rfind('/'), base = slash + 1;  // 0 if there is no folder
  const std::size_t dot = member_name.find('.', base);
  if (dot == member_name.npos) return std::nullopt;
  // Energon takes `folder/.txt` as part `txt` of the sample `folder/`, unless the folder's own name has a dot.
  const std::string_view folder = member_name.substr(0, base == 0 ? 0 : slash);
  if (dot == base && (base == 0 || folder.substr(folder.rfind('/') + 1).find('.') != folder.npos)) return std::nullopt;
  return SampleName{member_name.substr(0, dot), member_name.substr(dot + 1)};
}

const SamplePart* Sample::find(std::string_view part) const {
  const auto found = std::ranges::find(parts, part, &SamplePart::name);
  return found == parts.end() ? nullptr : &*found;
}

void Sample::add(SamplePart part) {
  const auto same = std::ranges::find(parts, part.name, &SamplePart::name);
  if (same == parts.end()) return parts.push_back(std::move(part));
  replaced.push_back(part.name);
  *same = std::move(part);
}

std::string index_path(const std::string& data_path) {
  if (data_path.ends_with(kIndexedTokens)) return indexed_prefix(data_path) + std::string(kIndexedIndex);
  return data_path + ".idx";
}

OpenShard::OpenShard(const Shard& shard) : shard_(shard), file_(shard.path) {
  if (shard.is_indexed_text())
    text_ = std::make_unique<IndexedFile>(indexed_prefix(shard.path));
  else
    index_.emplace(index_path(shard.path));
  const std::int64_t samples = text_ ? text_->documents() : index_->samples();
  if (samples != shard.samples)
    throw ReadError(fmt::format("'{}' has {}, but {} {}: write it again{}", index_path(shard.path),
                                counted(samples, "sample"),
                                text_ ? "when it was opened first it had" : ".info.json counts", shard.samples,
                                text_ ? "" : " with `braid data prepare --force`"));
}

OpenShard::~OpenShard() = default;

void OpenShard::check_size() const {
  if (index_ && index_->end() > file_.size())
    throw ReadError(fmt::format("'{}' has {} bytes, but its index covers {}: it has been cut", shard_.path,
                                file_.size(), index_->end()));
}

ByteRange OpenShard::range(std::int64_t index) const {
  const ByteRange range = index_->range(index);
  if (range.end > file_.size())
    throw ReadError(
        fmt::format("'{}' ends at byte {}, before the end of its sample {} at byte {}: it has been cut, or is not the "
                    "file that was indexed",
                    shard_.path, file_.size(), index, range.end));
  if (range.end - range.begin > kMostSampleBytes)
    throw DataError(fmt::format(
        "'{}' says that sample {} has {} bytes; at most {} are allowed: make its parts smaller, or, if it is "
        "smaller, write the index again with `braid data prepare --force`",
        index_path(shard_.path), index, range.end - range.begin, kMostSampleBytes));
  return range;
}

// Whether members of the tar file end where this sample begins according to the index. Then the index fits the shard,
// and what is wrong there is damage.
bool OpenShard::leads_to(std::int64_t index) const {
  constexpr std::int64_t kMostDamaged = 64;  // samples in a row
  const TarBytes bytes = tar_bytes(file_);
  for (std::int64_t i = index - 1; i >= std::max<std::int64_t>(index - kMostDamaged, 0); --i) try {
      const ByteRange before = range(i);
      TarReader tar(bytes, shard_.path, before.begin);
      while (tar.offset() < before.end && tar.next()) {
      }
      if (tar.offset() >= before.end) return tar.offset() == before.end;
    } catch (const ReadError&) {
      throw;
    } catch (const DataError&) {  // it may be damaged too, so look at the sample before it
    }
  return false;
}

// `bytes`: at least those of the sample.
Sample OpenShard::read_tar(std::int64_t index, const ByteRange& range, const TarBytes& bytes, bool only_key) const {
  if (range.end % kTarBlock != 0 && range.end != file_.size())
    throw index_->misfit(fmt::format("sample {} is said to end at byte {}, within a block", index, range.end));
  Sample sample{.shard = shard_.name};
  bool has_key = false;
  TarReader tar(bytes, shard_.path, range.begin);
  const auto next = [&] {
    try {
      return tar.next();
    } catch (const TarEndError&) {
      throw index_->misfit(
          fmt::format("sample {} is said to end at byte {}, within a member of the tar file", index, range.end));
    } catch (const DataError&) {
      if (tar.offset() != range.begin || range.begin == 0 || leads_to(index)) throw;
      throw index_->misfit(
          fmt::format("sample {} is said to be at byte {}, but no valid header is there", index, range.begin));
    }
  };
  while (tar.offset() < range.end) {
    const auto member = next();
    if (!member) break;
    const auto name = split_sample_name(member->name);
    if (!member->is_regular || !name) continue;
    if (has_key && name->key != sample.key)
      throw index_->misfit(fmt::format("sample {} at byte {} has the keys {} and {}", index, range.begin,
                                       in_quotes(sample.key), in_quotes(name->key)));
    sample.key = name->key;
    has_key = true;
    if (only_key) return sample;
    sample.add(
        {std::string(name->part), bytes.read(member->content_offset, member->content_size), member->content_offset});
  }
  if (has_key) return sample;
  if (tar.offset() == range.begin && (range.begin == 0 || leads_to(index)))
    throw DataError(fmt::format("'{}' is damaged at byte {}: there is no header", shard_.path, range.begin));
  throw index_->misfit(fmt::format("sample {} is said to be at byte {}, but there is none", index, range.begin));
}

Sample OpenShard::read(std::int64_t index) const {
  if (text_) {
    const std::vector<int> ids = text_->document(index);
    const auto bytes =
        std::make_shared<const std::string>(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int));
    return {.key = std::to_string(index), .shard = shard_.name, .parts = {{"ids", *bytes}}, .bytes = bytes};
  }
  const ByteRange range = this->range(index);
  const auto bytes = std::make_shared<const std::string>(file_.read(range.begin, range.end - range.begin));
  Sample sample =
      shard_.is_jsonl()
          ? Sample{.key = std::to_string(index), .shard = shard_.name, .parts = {{"json", *bytes, range.begin}}}
          : read_tar(index, range, braid::tar_bytes(*bytes, range.begin), /*only_key=*/false);
  sample.bytes = bytes;
  return sample;
}

std::string OpenShard::key(std::int64_t index) const {
  if (shard_.is_jsonl() || text_) return std::to_string(index);
  return read_tar(index, range(index), tar_bytes(file_), /*only_key=*/true).key;
}

std::string OpenShard::end_remark() const {
  try {
    check_size();
    if (shard_.is_jsonl() || text_) return "";
    // An index need not cover members that belong to no sample.
    const TarBytes bytes = tar_bytes(file_);
    TarReader tar(bytes, shard_.path, index_->end());
    while (tar.next()) {
    }
    return braid::end_remark(bytes, tar.offset(), shard_.path);
  } catch (const SystemReadError&) {
    throw;
  } catch (const DataError& e) {
    return e.what();
  }
}

std::string OpenShard::contents_hash() const {
  constexpr std::uint64_t kLooked = 4096;  // bytes at each end
  if (text_) return text_->contents_hash();
  const std::uint64_t end = index_->end(), size = std::min(end, kLooked);
  return sha1(fmt::format("{} {}\n", file_.size(), end) + file_.read(0, size) + file_.read(end - size, size));
}

std::string scan_shard(const std::string& path, const std::function<void(const ScannedSample&)>& on_sample) {
  const InputFile file(path);
  TarReader tar(tar_bytes(file), path);
  std::optional<ScannedSample> current;
  const auto finish = [&](std::uint64_t end) {
    if (!current) return;
    current->end = end;
    if (end - current->begin > kMostSampleBytes)
      throw DataError(fmt::format("'{}': sample {} has {} bytes; at most {} are allowed: make its parts smaller", path,
                                  in_quotes(current->key), end - current->begin, kMostSampleBytes));
    on_sample(*current);
  };
  while (const auto member = tar.next()) {
    const auto name = split_sample_name(member->name);
    if (!member->is_regular || !name) continue;
    if (!current || current->key != name->key) {
      finish(member->offset);
      current = ScannedSample{.key = std::string(name->key), .begin = member->offset};
    }
    current->parts.push_back({std::string(name->part), member->content_offset, member->content_size});
  }
  if (!current)
    throw DataError(
        fmt::format("'{}' has no samples: remove it, or name its files KEY.PART, for example 0001.jpg", path));
  finish(tar.offset());
  return end_remark(tar_bytes(file), tar.offset(), path);
}

std::vector<std::uint64_t> scan_lines(const std::string& path) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  const InputFile checked(path);
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint64_t> offsets;
  std::uint64_t sample_begin = 0, end = 0, number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    end += line.size() + (file.eof() ? 0 : 1);
    const std::size_t first = line.find_first_not_of(kSpace), last = line.find_last_not_of(kSpace);
    if (first != line.npos) {
      if (line[first] != '{' || line[last] != '}')
        throw DataError(fmt::format("'{}', line {}: not a JSON object; each line must be one", path, number));
      offsets.push_back(sample_begin);
    }
    // Empty lines belong to the sample before them; those at the start, to the first.
    if (!offsets.empty()) sample_begin = end;
  }
  if (end != checked.size())
    throw DataError(
        fmt::format("'{}' could be read to byte {} only, of {}: check the disk, or wait until it is written", path, end,
                    checked.size()));
  if (offsets.empty()) throw DataError(fmt::format("'{}' has no samples", path));
  offsets.push_back(sample_begin);
  return offsets;
}

}  // namespace braid
