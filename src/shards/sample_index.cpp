#include "shards/sample_index.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "formats/atomic_file.h"

namespace braid {

static_assert(std::endian::native == std::endian::little, "index files are mapped as they are");

constexpr std::size_t kEntryBytes = sizeof(std::uint64_t);

SampleIndex::SampleIndex(const std::string& path) : file_(path) {
  const std::size_t size = file_.bytes().size();
  if (size < kEntryBytes || size % kEntryBytes != 0)
    throw DataError(fmt::format("'{}' is damaged: {} bytes are not an index; write it again with `braid data prepare`",
                                path, size));
}

std::int64_t SampleIndex::samples() const { return static_cast<std::int64_t>(file_.bytes().size() / kEntryBytes) - 1; }

std::uint64_t SampleIndex::end() const { return entry(samples()); }

std::uint64_t SampleIndex::entry(std::int64_t i) const {
  std::uint64_t value;
  std::memcpy(&value, file_.bytes().data() + static_cast<std::size_t>(i) * kEntryBytes, kEntryBytes);
  return value;
}

ByteRange SampleIndex::range(std::int64_t sample, std::uint64_t file_bytes) const {
  BRAID_CHECK(sample >= 0 && sample < samples(), "sample {} of {}", sample, samples());
  // The first sample may be preceded by members that belong to no sample.
  const ByteRange range{sample == 0 ? 0 : entry(sample), entry(sample + 1)};
  if (range.begin >= range.end || range.end > file_bytes)
    throw DataError(
        fmt::format("'{}' does not fit its shard: sample {} is said to be at bytes {} to {} of {}; write the index "
                    "again with `braid data prepare`",
                    file_.path(), sample, range.begin, range.end, file_bytes));
  return range;
}

std::string index_path(const std::string& data_path) { return data_path + ".idx"; }

void write_sample_index(const std::string& path, const std::vector<std::uint64_t>& offsets) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(offsets)));
  file.commit();
}

}  // namespace braid
