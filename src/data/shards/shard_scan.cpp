#include "data/shards/shard_scan.h"

#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/input_file.h"
#include "data/shards/sample_name.h"
#include "data/shards/shard.h"
#include "data/shards/tar.h"

namespace braid {

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
