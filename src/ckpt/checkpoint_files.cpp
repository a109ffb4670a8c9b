#include "ckpt/checkpoint_files.h"
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>
#include "base/crc32c.h"
#include "base/files.h"
#include "base/strings.h"
#include "formats/atomic_file.h"

namespace braid {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kDigits = 8;  // of a checksum in hexadecimal

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// The end of the text, with the checksum of everything before it.
std::string end_of(std::string_view start) {
  return fmt::format(",\"crc32c\":\"{:08x}\"}}\n", crc32c(bytes_of(start)));
}

std::int64_t count_blocks(std::int64_t size) { return size / kChecksumBlock + (size % kChecksumBlock != 0); }

std::vector<std::uint32_t> parse_blocks(std::string_view hex, const std::string& name, const std::string& file) {
  std::vector<std::uint32_t> blocks;
  for (std::size_t i = 0; i < hex.size(); i += kDigits) {
    const std::string_view digits = hex.substr(i, kDigits);
    std::uint32_t block = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), block, 16);
    if (digits.size() != kDigits || error != std::errc() || end != digits.data() + digits.size())
      throw DataError(fmt::format("{}: the checksums of {} are not hexadecimal", file, in_quotes(name)));
    blocks.push_back(block);
  }
  return blocks;
}

FileChecksums parse_entry(const Json& entry, const std::string& name, const std::string& file) {
  const auto size = entry.find("size"), blocks = entry.find("blocks");
  if (size == entry.end() || blocks == entry.end() || !size->is_number_integer() || !blocks->is_string())
    throw DataError(fmt::format("{}: the entry of {} lacks its size or blocks", file, in_quotes(name)));
  FileChecksums sums{.size = size->get<std::int64_t>()};
  sums.blocks = parse_blocks(blocks->get_ref<const std::string&>(), name, file);
  if (sums.size < 0 || std::cmp_not_equal(sums.blocks.size(), count_blocks(sums.size)))
    throw DataError(fmt::format("{}: {} checksums do not match the {} bytes of {}", file, sums.blocks.size(), sums.size,
                                in_quotes(name)));
  return sums;
}

}  // namespace

std::optional<std::int64_t> iteration_of(const std::string& name) {
  const auto iteration = name.starts_with("iter_") ? parse_int64(name.substr(5)) : std::nullopt;
  return iteration && name == fmt::format("iter_{:07}", *iteration) ? iteration : std::nullopt;
}

std::vector<std::int64_t> iterations_in(const std::string& root, Complete complete) {
  std::vector<std::int64_t> iterations;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error))
    if (const auto iteration = iteration_of(entry.path().filename().string()))
      if (entry.is_directory(error) && (complete == Complete::OrNot || is_there(entry.path() / ".metadata")))
        iterations.push_back(*iteration);
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

Json parse_flat_json(std::string_view text, const std::string& file) {
  constexpr int kDeepest = 16;
  const auto refuse_depth = [&](int depth, Json::parse_event_t event, const Json&) {
    const bool opens = event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start;
    if (opens && depth >= kDeepest)
      throw DataError(fmt::format("{}: lists and objects are nested more than {} deep", file, kDeepest));
    return true;
  };
  return Json::parse(text.begin(), text.end(), refuse_depth, /*allow_exceptions=*/false);
}

void ChecksumStream::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto room = static_cast<std::size_t>(kChecksumBlock - sums_.size % kChecksumBlock);
    const std::span<const std::byte> part = bytes.first(std::min(room, bytes.size()));
    open_block_ = crc32c(part, open_block_);
    sums_.size += static_cast<std::int64_t>(part.size());
    if (part.size() == room) sums_.blocks.push_back(std::exchange(open_block_, 0));
    bytes = bytes.subspan(part.size());
  }
}

FileChecksums ChecksumStream::finish() {
  if (sums_.size % kChecksumBlock != 0) sums_.blocks.push_back(std::exchange(open_block_, 0));
  return std::exchange(sums_, {});
}

FileChecksums checksums_of(std::string_view bytes) {
  ChecksumStream stream;
  stream.add(bytes_of(bytes));
  return stream.finish();
}

std::string to_text(const Checksums& checksums) {
  Json files = Json::object();
  for (const auto& [name, sums] : checksums)
    files[name] = {{"size", sums.size}, {"blocks", fmt::format("{:08x}", fmt::join(sums.blocks, ""))}};
  const std::string start = fmt::format("{{\"block_bytes\":{},\"files\":{}", kChecksumBlock, files.dump());
  return start + end_of(start);
}

Checksums parse_checksums(std::string_view text, const std::string& file) {
  const std::size_t end_length = end_of("").size();
  const std::string_view start = text.substr(0, text.size() - std::min(end_length, text.size()));
  if (text.substr(start.size()) != end_of(start))
    throw DataError(fmt::format("{}: the text was changed: its own checksum differs", file));
  const Json json = parse_flat_json(text, file);
  if (!json.is_object() || json.value("block_bytes", Json()) != Json(kChecksumBlock) || !json.contains("files") ||
      !json["files"].is_object())
    throw DataError(fmt::format("{}: these are not checksums of blocks of {} bytes", file, kChecksumBlock));
  Checksums checksums;
  for (const auto& [name, entry] : json["files"].items()) {
    if (!is_plain_file_name(name))
      throw DataError(fmt::format("{}: {} is not the name of a file in this folder", file, in_quotes(name)));
    checksums[name] = parse_entry(entry, name, file);
  }
  return checksums;
}

CheckedFile::CheckedFile(std::string path, std::optional<FileChecksums> checksums)
    : path_(std::move(path)), checksums_(std::move(checksums)) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0)
    throw DataError(fmt::format("cannot read {}: {}; the checkpoint is incomplete", path_, std::strerror(errno)));
  if (!S_ISREG(info.st_mode)) throw DataError(fmt::format("{} is not a regular file", path_));
  size_ = info.st_size;
  const std::int64_t blocks = count_blocks(size_);
  if (checksums_ && (checksums_->size != size_ || std::ssize(checksums_->blocks) != blocks))
    throw DataError(
        fmt::format("{} has {} bytes, but {} were written; the checkpoint is damaged", path_, size_, checksums_->size));
  checked_.resize(static_cast<std::size_t>(blocks));
}

void CheckedFile::read(std::int64_t offset, std::span<std::byte> to) {
  if (offset < 0 || offset > size_ || std::ssize(to) > size_ - offset)
    throw DataError(
        fmt::format("{} ends at byte {}; {} bytes at offset {} cannot be read", path_, size_, to.size(), offset));
  // A read that continues where the last large one ended is probably followed by another.
  const bool large = std::ssize(to) > kChecksumBlock;
  const bool goes_on = offset >= large_end_ && offset - large_end_ < 2 * kChecksumBlock;
  const std::int64_t wanted_end = large && goes_on ? size_ : offset + std::ssize(to);
  if (large && !goes_on) fetched_end_ = offset;
  if (large) large_end_ = offset + std::ssize(to);
  while (!to.empty()) {
    if (large) fetch_ahead(offset, wanted_end);
    const std::int64_t block = offset / kChecksumBlock, in_block = offset % kChecksumBlock;
    const std::int64_t count = std::min(block_bytes(block) - in_block, std::ssize(to));
    const std::span<std::byte> part = to.first(static_cast<std::size_t>(count));
    if (count == block_bytes(block))
      read_block(block, part);
    else
      std::memcpy(part.data(), cached_block(block).data() + in_block, part.size());
    offset += count;
    to = to.subspan(part.size());
  }
}

void CheckedFile::check_block(std::int64_t block) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(block_bytes(block)));
  read_block(block, bytes);
}

void CheckedFile::open() {
  fd_ = Fd(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd_) throw_errno(fmt::format("cannot read {}", path_));
  ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

// Makes the kernel read ahead while we check and copy, with more concurrent requests than it issues on its own.
void CheckedFile::fetch_ahead(std::int64_t offset, std::int64_t end) {
  constexpr std::int64_t kAhead = 64 << 20, kRequest = 8 << 20;
  if (!fd_) open();
  for (; fetched_end_ < std::min(end, offset + kAhead); fetched_end_ += kRequest)
    ::posix_fadvise(fd_.get(), fetched_end_, kRequest, POSIX_FADV_WILLNEED);
}

void CheckedFile::read_block(std::int64_t block, std::span<std::byte> to) {
  if (!fd_) open();
  const std::int64_t begin = block * kChecksumBlock;
  for (std::size_t done = 0; done < to.size();) {
    const ssize_t got = ::pread(fd_.get(), to.data() + done, to.size() - done, begin + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(fmt::format("cannot read {} at byte {}", path_, begin + static_cast<std::int64_t>(done)));
    if (got == 0)
      throw DataError(fmt::format("{} ended at byte {} while it was read, but had {} bytes before", path_,
                                  begin + static_cast<std::int64_t>(done), size_));
    done += static_cast<std::size_t>(got);
  }
  if (!checksums_) return;
  const FileChecksums got = checksums_of({reinterpret_cast<const char*>(to.data()), to.size()});
  if (got.blocks.at(0) != checksums_->blocks[block])
    throw DataError(
        fmt::format("{}: bytes {} to {} differ from what was written (wrong checksum); the checkpoint is damaged",
                    path_, begin, begin + std::ssize(to) - 1));
  checked_[block] = true;
}

std::span<const std::byte> CheckedFile::cached_block(std::int64_t block) {
  const auto found = std::ranges::find(cache_, block, &CachedBlock::block);
  CachedBlock& entry = found != cache_.end() ? *found : *std::ranges::min_element(cache_, {}, &CachedBlock::used_at);
  entry.used_at = ++cache_uses_;
  if (entry.block != block) {
    entry.block = -1;
    entry.bytes.resize(static_cast<std::size_t>(block_bytes(block)));
    read_block(block, entry.bytes);
    entry.block = block;
  }
  return entry.bytes;
}

std::string read_whole(const std::string& path, std::optional<FileChecksums> checksums, std::int64_t most) {
  CheckedFile file(path, std::move(checksums));
  if (file.size() > most)
    throw DataError(fmt::format("{} has {}, more than the limit of {} for such a file", path,
                                readable_bytes(file.size()), readable_bytes(most)));
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace braid
