#include "ckpt/checksums.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/strings.h"

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
  for (const auto& [name, sums] : checksums) {
    std::string blocks;
    for (const std::uint32_t block : sums.blocks) blocks += fmt::format("{:08x}", block);
    files[name] = {{"size", sums.size}, {"blocks", std::move(blocks)}};
  }
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

}  // namespace braid
