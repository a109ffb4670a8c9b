#include "data/shards/shard.h"

#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "data/shards/sha1.h"
#include "data/shards/tar.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

static_assert(std::endian::native == std::endian::little, "index files are read as they are");

constexpr std::size_t kEntryBytes = sizeof(std::uint64_t);
constexpr std::size_t kAhead = 4096;                 // bytes of headers that are read at a time
constexpr std::uint64_t kMostSampleBytes = 1 << 30;  // a sample is read as a whole; a wrong index may say any size

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // A pipe could block open() or never end.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    const bool is_lasting = is_lasting_error(errno);
    const std::string what = fmt::format("cannot read '{}': {}", path_, std::strerror(errno));
    if (is_lasting) throw ReadError(what);
    throw SystemReadError(what);
  }
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw ReadError(fmt::format("cannot read '{}': not a regular file", path_));
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
}

InputFile::~InputFile() { ::close(fd_); }

std::string InputFile::read(std::uint64_t offset, std::size_t size) const {
  std::string bytes(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd_, bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw SystemReadError(fmt::format("cannot read '{}' at byte {}: {}", path_, offset, std::strerror(errno)));
    if (got == 0)
      throw ReadError(fmt::format("'{}' ends at byte {}, but {} bytes at byte {} are needed: it has been cut", path_,
                                  offset + done, size, offset));
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

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

SampleIndex::SampleIndex(const std::string& path) : file_(path) {
  if (file_.size() < kEntryBytes || file_.size() % kEntryBytes != 0)
    throw ReadError(
        fmt::format("'{}' is damaged: {} bytes are not an index; write it again with `braid data prepare --force`",
                    path, file_.size()));
}

std::int64_t SampleIndex::samples() const { return static_cast<std::int64_t>(file_.size() / kEntryBytes) - 1; }

std::uint64_t SampleIndex::end() const { return entries(samples(), 1).front(); }

std::vector<std::uint64_t> SampleIndex::entries(std::int64_t first, std::size_t count) const {
  const std::string bytes = file_.read(static_cast<std::uint64_t>(first) * kEntryBytes, count * kEntryBytes);
  std::vector<std::uint64_t> values(count);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

ByteRange SampleIndex::range(std::int64_t sample) const {
  BRAID_CHECK(sample >= 0 && sample < samples(), "sample {} of {}", sample, samples());
  const std::vector<std::uint64_t> borders = entries(sample, 2);
  // The first sample may be preceded by members that belong to no sample.
  const ByteRange range{sample == 0 ? 0 : borders[0], borders[1]};
  if (range.begin >= range.end)
    throw misfit(fmt::format("sample {} is said to be at bytes {} to {}", sample, range.begin, range.end));
  return range;
}

DataError SampleIndex::misfit(const std::string& why) const {
  return DataError(fmt::format("'{}' does not fit its shard: {}; write it again with `braid data prepare --force`",
                               file_.path(), why));
}

std::string index_path(const std::string& data_path) { return data_path + ".idx"; }

void write_sample_index(const std::string& path, const std::vector<std::uint64_t>& offsets) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(offsets)));
  file.commit();
}

std::optional<SampleName> split_sample_name(std::string_view member_name) {
  const std::string_view top = member_name.substr(0, member_name.find('/'));
  if (top.size() >= 4 && top.starts_with("__") && top.ends_with("__")) return std::nullopt;
  const std::size_t slash = member_name.rfind('/');
  const std::size_t base = slash == member_name.npos ? 0 : slash + 1;
  const std::size_t dot = member_name.find('.', base);
  if (dot == member_name.npos) return std::nullopt;
  if (dot == base) {
    // Energon takes `folder/.txt` as part `txt` of the sample `folder/`, unless the folder's own name has a dot.
    if (base == 0) return std::nullopt;
    const std::size_t parent_slash = slash == 0 ? member_name.npos : member_name.rfind('/', slash - 1);
    const std::size_t parent = parent_slash == member_name.npos ? 0 : parent_slash + 1;
    if (member_name.substr(parent, slash - parent).find('.') != member_name.npos) return std::nullopt;
  }
  return SampleName{member_name.substr(0, dot), member_name.substr(dot + 1)};
}

const SamplePart* Sample::find(std::string_view part) const {
  for (const SamplePart& candidate : parts)
    if (candidate.name == part) return &candidate;
  return nullptr;
}

void Sample::add(SamplePart part) {
  const auto same =
      std::find_if(parts.begin(), parts.end(), [&](const SamplePart& other) { return other.name == part.name; });
  if (same == parts.end()) {
    parts.push_back(std::move(part));
  } else {
    replaced.push_back(part.name);
    *same = std::move(part);
  }
}

std::size_t Sample::stored_bytes() const {
  std::size_t bytes = 0;
  for (const SamplePart& part : parts) bytes += part.bytes.size();
  return bytes;
}

OpenShard::OpenShard(const Shard& shard) : shard_(shard), file_(shard.path), index_(index_path(shard.path)) {
  if (index_.samples() != shard.samples)
    throw ReadError(
        fmt::format("'{}' has {}, but .info.json counts {}: write it again with `braid data prepare --force`",
                    index_path(shard.path), counted(index_.samples(), "sample"), shard.samples));
}

void OpenShard::check_size() const {
  if (index_.end() > file_.size())
    throw ReadError(fmt::format("'{}' has {} bytes, but its index covers {}: it has been cut", shard_.path,
                                file_.size(), index_.end()));
}

ByteRange OpenShard::range(std::int64_t index) const {
  const ByteRange range = index_.range(index);
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
    throw index_.misfit(fmt::format("sample {} is said to end at byte {}, within a block", index, range.end));
  Sample sample{.shard = shard_.name};
  bool has_key = false;
  TarReader tar(bytes, shard_.path, range.begin);
  const auto next = [&] {
    try {
      return tar.next();
    } catch (const TarEndError&) {
      throw index_.misfit(
          fmt::format("sample {} is said to end at byte {}, within a member of the tar file", index, range.end));
    } catch (const DataError&) {
      if (tar.offset() != range.begin || range.begin == 0 || leads_to(index)) throw;
      throw index_.misfit(
          fmt::format("sample {} is said to be at byte {}, but no valid header is there", index, range.begin));
    }
  };
  while (tar.offset() < range.end) {
    const auto member = next();
    if (!member) break;
    const auto name = split_sample_name(member->name);
    if (!member->is_regular || !name) continue;
    if (has_key && name->key != sample.key)
      throw index_.misfit(fmt::format("sample {} at byte {} has the keys {} and {}", index, range.begin,
                                      in_quotes(sample.key), in_quotes(name->key)));
    sample.key = name->key;
    has_key = true;
    if (only_key) return sample;
    sample.add(
        {std::string(name->part), bytes.read(member->content_offset, member->content_size), member->content_offset});
  }
  if (!has_key && tar.offset() == range.begin && (range.begin == 0 || leads_to(index)))
    throw DataError(fmt::format("'{}' is damaged at byte {}: there is no header", shard_.path, range.begin));
  if (!has_key)
    throw index_.misfit(fmt::format("sample {} is said to be at byte {}, but there is none", index, range.begin));
  return sample;
}

Sample OpenShard::read(std::int64_t index) const {
  const ByteRange range = this->range(index);
  const auto bytes = std::make_shared<const std::string>(file_.read(range.begin, range.end - range.begin));
  Sample sample =
      shard_.is_jsonl()
          ? Sample{.key = std::to_string(index), .shard = shard_.name, .parts = {{"json", *bytes, range.begin}}}
          : read_tar(index, range, tar_bytes(*bytes, range.begin), /*only_key=*/false);
  sample.bytes = bytes;
  return sample;
}

std::string OpenShard::key(std::int64_t index) const {
  if (shard_.is_jsonl()) return std::to_string(index);
  return read_tar(index, range(index), tar_bytes(file_), /*only_key=*/true).key;
}

std::string OpenShard::end_remark() const {
  try {
    check_size();
    if (shard_.is_jsonl()) return "";
    // An index need not cover members that belong to no sample.
    const TarBytes bytes = tar_bytes(file_);
    TarReader tar(bytes, shard_.path, index_.end());
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
  const std::uint64_t end = index_.end(), size = std::min(end, kLooked);
  const auto digest =
      sha1(fmt::format("{} {}\n", file_.size(), end) + file_.read(0, size) + file_.read(end - size, size));
  return std::string(digest.begin(), digest.end());
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
