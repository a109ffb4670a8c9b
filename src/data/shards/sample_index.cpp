#include "data/shards/sample_index.h"

#include <bit>
#include <cstring>

#include "formats/atomic_file.h"

namespace braid {

static_assert(std::endian::native == std::endian::little, "index files are read as they are");

constexpr std::size_t kEntryBytes = sizeof(std::uint64_t);

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

}  // namespace braid
