// A shard with its index, for random access: a tar file of samples, a JSONL file with one sample per line, or a .bin
// file of Megatron's indexed text with one sample per document.
//
// Files are read by position. Unlike a mapped file, they may become shorter at any time: a mapping would end the
// process then.
//
// Tar archives are ustar, with GNU long names, PAX paths and sizes. Each member is checked before it is returned: its
// checksum, its numbers, and that its content lies within the archive. Damage is a DataError that names archive and
// offset; it never looks like the end of the archive.
#pragma once

#include "base/ranges.h"
#include "data/shards/input_file.h"

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
struct TarEndError : DataError {
  using DataError::DataError;
};

class TarReader {
 public:
  // `name` is for messages. Reading starts at `offset`, which must be that of a header.
  TarReader(TarBytes archive, std::string name, std::uint64_t offset = 0)
      : archive_(std::move(archive)), name_(std::move(name)), offset_(offset) {}

  // Returns nothing at the end: at a block of zeros, even if it is cut, or where the file ends between two members.
  std::optional<TarMember> next();

  // The offset that next() reads at; after the end, that of the first block that belongs to no member.
  std::uint64_t offset() const { return offset_; }

 private:
  struct Extensions;  // what preceding extension headers say about the next member

  void check_content(std::uint64_t size) const;
  void read_pax(std::string_view records, bool is_global, Extensions& extensions) const;
  TarMember finish_member(std::string_view header, const Extensions& extensions);
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("'{}' is damaged at byte {}: {}", name_, offset_, what));
  }

  TarBytes archive_;
  std::string name_;
  std::uint64_t offset_;
};

// What is wrong with the end of an archive whose last member ends, padding included, at `end`, as TarReader::offset()
// says; empty: nothing. Tools read such archives in silence, but most write the end: blocks of zeros.
std::string end_remark(const TarBytes& archive, std::uint64_t end, const std::string& name);

// Appends a regular file in ustar format, with a fixed time, so that equal contents give equal bytes. `name`: at most
// 100 bytes.
void add_tar_member(std::string& archive, std::string_view name, std::string_view content);
// The blocks at the end of an archive.
inline std::string tar_end_blocks() { return std::string(2 * kTarBlock, '\0'); }

struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};

// The index next to a shard or JSONL file: where each sample begins, and at the end where the last one ends. It is an
// array of little-endian 64-bit offsets without a header: `a.tar` has `a.tar.idx`, `a.jsonl` has `a.jsonl.idx`. Only
// indexed text, see indexed_file.h, has another: `a.bin` has `a.idx`.
class SampleIndex {
 public:
  explicit SampleIndex(const std::string& path);  // ReadError when its size is not that of an index

  std::int64_t samples() const { return static_cast<std::int64_t>(file_.size() / sizeof(std::uint64_t)) - 1; }
  std::uint64_t end() const { return entries<std::uint64_t>(samples()); }  // of the last sample
  ByteRange range(std::int64_t sample) const;  // of its bytes. DataError unless it ends after it begins
  // For a range that the shard does not have: says `why`, and how to write the index again.
  DataError misfit(const std::string& why) const {
    return DataError(fmt::format("'{}' does not fit its shard: {}; write it again with `braid data prepare --force`",
                                 file_.path(), why));
  }

 private:
  template <class Entries>
  Entries entries(std::int64_t first) const {
    Entries values{};
    const std::string bytes = file_.read(static_cast<std::uint64_t>(first) * sizeof(std::uint64_t), sizeof(values));
    std::memcpy(&values, bytes.data(), sizeof(values));
    return values;
  }

  InputFile file_;
};

std::string index_path(const std::string& data_path);
// `offsets`: one per sample, and the end of the last. The file appears complete or not at all.
void write_sample_index(const std::string& path, const std::vector<std::uint64_t>& offsets);

// How the members of a shard form samples, as in WebDataset: `000/sample.left.png` is part `left.png` of sample
// `000/sample`. Consecutive members with the same key are one sample.
struct SampleName {
  std::string_view key, part;
};
// Returns nothing for members that belong to no sample: names without a dot, and those below `__anything__/`.
std::optional<SampleName> split_sample_name(std::string_view member_name);

struct Shard {
  std::string name;  // relative to its data set's folder; of a JSONL file, its file name
  std::string path;
  std::int64_t samples = 0;  // as .info.json counts them

  bool is_jsonl() const { return path.ends_with(".jsonl"); }
  bool is_indexed_text() const { return path.ends_with(".bin"); }
};

struct SamplePart {
  std::string name;          // "jpg", "left.png"; of a JSONL line, "json"; of a document's token ids (int), "ids"
  std::string_view bytes;    // valid as long as the sample
  std::uint64_t offset = 0;  // in the shard

  std::span<const std::uint8_t> file() const {
    return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  }
};

// A part without its bytes.
struct StoredPart {
  std::string name{};
  std::uint64_t offset = 0, size = 0;  // of its content, in the shard
};

struct Sample {
  std::string key{}, shard{};
  std::vector<SamplePart> parts{};             // with different names
  std::vector<std::string> replaced{};         // names of parts that a later one of the same name replaces
  std::shared_ptr<const std::string> bytes{};  // holds the bytes of all parts

  const SamplePart* find(std::string_view part) const;
  // The later of two parts with the same name replaces the first in its place, as in Energon's dict.
  void add(SamplePart part);
  std::size_t stored_bytes() const {
    return sum_of<std::size_t>(parts, [](const SamplePart& part) { return part.bytes.size(); });
  }
};

class IndexedFile;

class OpenShard {
 public:
  // ReadError when the file or its index cannot be read, or the index has another count than `shard`.
  explicit OpenShard(const Shard& shard);
  ~OpenShard();

  void check_size() const;  // ReadError if the file ends before its last sample
  Sample read(std::int64_t index) const;
  const InputFile& file() const { return file_; }
  // Does not look at the sample's other members.
  std::string key(std::int64_t index) const;
  // Why the end of the shard may have been lost; empty: nothing suggests it.
  std::string end_remark() const;
  // The size, and the first and last bytes of the samples: cheap to read, and different in almost any other shard.
  std::string contents_hash() const;

 private:
  bool leads_to(std::int64_t index) const;
  ByteRange range(std::int64_t index) const;
  Sample read_tar(std::int64_t index, const ByteRange& range, const TarBytes& bytes, bool only_key) const;

  Shard shard_;
  InputFile file_;
  std::optional<SampleIndex> index_{};
  std::unique_ptr<const IndexedFile> text_{};  // instead of an index
};

struct ScannedSample {
  std::string key;
  std::uint64_t begin = 0, end = 0;  // in the file, headers included
  std::vector<StoredPart> parts{};
};

// Finds the samples of a tar file by walking through its headers, and calls `on_sample` for each, in order. DataError
// on damage, and for a shard without samples. Returns why the shard may have lost samples although it can be read;
// empty: nothing suggests it.
std::string scan_shard(const std::string& path, const std::function<void(const ScannedSample&)>& on_sample);

// Offsets for the index of a JSONL file. DataError when a line is not a JSON object.
std::vector<std::uint64_t> scan_lines(const std::string& path);

}  // namespace braid
