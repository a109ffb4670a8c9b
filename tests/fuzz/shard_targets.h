// Fuzz targets of the readers of shards and of the YAML files around them. Any bytes are either refused with a
// DataError or ConfigError, or what was read has the properties checked here. Any other exception is a bug.
#pragma once

#include "base/error.h"
#include "data/shards/lane.h"
#include "data/shards/shard.h"
#include "data/shards/tar_files.h"

namespace braid::testing {

// A mutated header is refused for its checksum alone, so all blocks get a right one.
inline std::string with_checksums(std::string_view bytes) {
  std::string fixed(bytes);
  for (std::size_t at = 0; at + 512 <= fixed.size(); at += 512)
    if (fixed.find_first_not_of('\0', at) < at + 512) fixed.replace(at, 512, with_checksum(fixed.substr(at, 512)));
  return fixed;
}

// Whether the bytes, with right checksums, were a tar file.
inline bool fuzz_tar(std::string_view bytes) {
  const std::string archive = with_checksums(bytes);
  try {
    TarReader tar(tar_bytes(archive), "input");
    std::uint64_t end = 0;
    while (const auto member = tar.next()) {
      BRAID_CHECK(member->offset >= end && member->content_offset > member->offset, "members overlap");
      end = member->content_offset + member->content_size;
      BRAID_CHECK(end <= archive.size() && tar.offset() >= end, "a member reaches beyond the archive");
      const auto name = split_sample_name(member->name);
      const std::string joined = name ? fmt::format("{}.{}", name->key, name->part) : member->name;
      BRAID_CHECK_EQ(joined, member->name, "key and part");
    }
  } catch (const DataError&) {
    return false;
  }
  return true;
}

// A folder with a prepared data set `a`, in which the input becomes another file.
class FuzzFolder {
 public:
  FuzzFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "braid-fuzz-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    prepared(path_ / "a", {3, 2}, "a");
  }
  ~FuzzFolder() { std::filesystem::remove_all(path_); }

  // Whether the training data at `path` can be read. Its order must survive save and restore.
  bool opens(const std::string& path) const {
    try {
      const auto blend = open_blend(path_ / path, "train");
      SampleReader reader(blend);
      const OrderConfig config{.workers = 2, .shuffle_buffer = 3};
      Lane lane(blend, config, 0), restored(blend, config, 0);
      for (int i = 0; i < 20; ++i) reader.read(*lane.next());
      restored.restore(lane.save());
      for (int i = 0; i < 20; ++i) BRAID_CHECK(lane.next() == restored.next(), "restored");
    } catch (const DataError&) {
      return false;
    } catch (const ConfigError&) {
      return false;
    }
    return true;
  }
  void write(const std::string& path, std::string_view bytes) const { write_text(path_ / path, bytes); }
  std::string read(const std::string& path) const { return read_text(path_ / path); }

 private:
  std::filesystem::path path_;
};

// The bytes as a metadataset. With a first byte '1' to '3' they are instead dataset.yaml, split.yaml or .info.json.
inline bool fuzz_data_set(std::string_view bytes) {
  static const FuzzFolder folder;
  static const char* const files[] = {"dataset.yaml", "split.yaml", ".info.json"};
  const bool is_part = !bytes.empty() && bytes[0] >= '1' && bytes[0] <= '3';
  if (!is_part) {
    folder.write("m.yaml", bytes);
    return folder.opens("m.yaml");
  }
  const std::string file = std::string("a/.nv-meta/") + files[bytes[0] - '1'];
  static const FuzzFolder original;
  folder.write(file, bytes.substr(1));
  const bool opened = folder.opens("a");
  folder.write(file, original.read(file));
  return opened;
}

}  // namespace braid::testing
