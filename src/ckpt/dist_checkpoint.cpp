#include "ckpt/dist_checkpoint.h"
#include <nlohmann/json.hpp>
#include "base/files.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace braid {
namespace {

constexpr std::size_t kOpenFiles = 64;

std::string printed(const nlohmann::json& value) {
  return visible_text(value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace), 100);
}

// Strides of dimensions with at most one element are irrelevant.
bool is_contiguous(const PickledTensor& tensor) {
  if (tensor.strides.size() != tensor.shape.size()) return false;
  if (num_elements(tensor.shape) == 0) return true;
  const std::vector<std::int64_t> wanted = contiguous_strides(tensor.shape);
  for (std::size_t dim = 0; dim < wanted.size(); ++dim)
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != wanted[dim]) return false;
  return true;
}

}  // namespace

void check_format(const std::string& text, const std::string& path) {
  const nlohmann::json format = parse_flat_json(text, path);
  if (!format.is_object() || !format.contains("sharded_backend"))
    throw DataError(fmt::format("{} does not name the format of the checkpoint", path));
  const nlohmann::json& backend = format["sharded_backend"];
  const nlohmann::json version = format.value("sharded_backend_version", nlohmann::json(1));
  if (backend != "torch_dist" || version != 1)
    throw DataError(
        fmt::format("{}: the checkpoint is in format {} version {}, only \"torch_dist\" version 1 can be read", path,
                    printed(backend), printed(version)));
}

ArchiveSource source_of(CheckedFile& file, const FileRange& part, const std::string& key) {
  return {.name = fmt::format("{} ({} at byte {})", file.path(), in_quotes(key), part.offset),
          .size = part.length,
          .read = [&file, begin = part.offset](std::int64_t offset, std::span<std::byte> to) {
            file.read(begin + offset, to);
          }};
}

std::int64_t data_offset(const ArchiveSource& source, StoredDtype dtype, const std::vector<std::int64_t>& size) {
  ArchiveReader archive(source);
  const PickleValue value = archive.value();
  const std::optional<PickledTensor> tensor = as_tensor(value);
  if (!tensor) throw DataError(fmt::format("{} is not a plain tensor: {}", source.name, to_text(value, 200)));
  if (tensor->dtype != dtype || tensor->shape != size)
    throw DataError(fmt::format("{} is {} of shape {}, but the index says {} of shape {}", source.name,
                                name_of(tensor->dtype), shape_text(tensor->shape), name_of(dtype), shape_text(size)));
  if (!is_contiguous(*tensor))
    throw DataError(fmt::format("{} has strides {}, but only contiguous tensors can be read", source.name,
                                shape_text(tensor->strides)));
  const ArchiveReader::Record record = archive.record("data/" + tensor->storage);
  const std::int64_t stored = record.size / bytes_of(dtype);
  if (record.size % bytes_of(dtype) != 0 || stored != tensor->storage_elements || tensor->storage_offset < 0 ||
      tensor->storage_offset > stored || num_elements(size) > stored - tensor->storage_offset)
    throw DataError(fmt::format("{}: {} bytes of data do not hold {} {} at {}", source.name, record.size,
                                num_elements(size), name_of(dtype), tensor->storage_offset));
  return record.offset + tensor->storage_offset * bytes_of(dtype);
}

PickleValue object_in(const ArchiveSource& source, const std::string& key) {
  const PickleValue value = ArchiveReader(source).value();
  if (!is_sharded_object(key)) return value;
  const PickleList* list = as<PickleList>(value);
  if (!list || list->items.size() != 1)
    throw DataError(fmt::format("{}: the object is not stored as a list of one element", source.name));
  return list->items[0];
}

DistCheckpoint::DistCheckpoint(std::string folder, ReaderShare share) : folder_(std::move(folder)) {
  const auto path = [&](const char* name) { return folder_ + "/" + name; };
  if (!is_there(path(kIndexFile)))
    throw DataError(
        fmt::format("{} has no {}: it is not a distributed checkpoint, or it is incomplete", folder_, kIndexFile));
  if (is_there(path(kChecksumFile)))
    checksums_ = parse_checksums(read_whole(path(kChecksumFile), std::nullopt, kMaxIndexFile), path(kChecksumFile));
  if (is_there(path(kFormatFile)))
    check_format(read_whole(path(kFormatFile), checksums_of_file(kFormatFile), kMaxSmallFile), path(kFormatFile));
  metadata_ =
      read_metadata(read_whole(path(kIndexFile), checksums_of_file(kIndexFile), kMaxIndexFile), path(kIndexFile));
  if (metadata_.has_checksums && !checksums_)
    throw DataError(fmt::format("{} is missing; the checkpoint is damaged", path(kChecksumFile)));
  check_files(share);
}

std::optional<FileChecksums> DistCheckpoint::checksums_of_file(const std::string& name) const {
  if (!checksums_) return std::nullopt;
  const auto found = checksums_->find(name);
  if (found == checksums_->end())
    throw DataError(fmt::format("{}/{} has no entry for {}; the checkpoint is damaged", folder_, kChecksumFile, name));
  return found->second;
}

void DistCheckpoint::check_files(const ReaderShare& share) const {
  std::map<std::string, FileRange> last_parts;
  const auto add = [&](const FileRange& part) {
    FileRange& last = last_parts.try_emplace(part.file, part).first->second;
    if (part.offset + part.length > last.offset + last.length) last = part;
  };
  for (const auto& [key, part] : metadata_.objects) add(part);
  for (const auto& [key, tensor] : metadata_.tensors)
    for (const StoredChunk& chunk : tensor.chunks) add(chunk.part);
  int next = 0;
  const auto is_mine = [&] { return next++ % share.readers == share.reader; };
  for (const auto& [name, last] : last_parts) {
    if (!is_mine()) continue;
    const CheckedFile file(folder_ + "/" + name, checksums_of_file(name));
    if (last.offset + last.length > file.size())
      throw DataError(fmt::format("{} ends at byte {}, but the index refers to bytes up to {}; the file is truncated",
                                  file.path(), file.size(), last.offset + last.length));
  }
  if (!checksums_) return;
  for (const auto& [name, sums] : *checksums_)
    if (!last_parts.count(name) && is_mine()) CheckedFile(folder_ + "/" + name, sums);
}

bool DistCheckpoint::has_common() const { return is_there(folder_ + "/" + kCommonFile); }

CheckedFile& DistCheckpoint::file(const std::string& name) {
  std::unique_ptr<CheckedFile>& file = files_[name];
  if (!file) file = std::make_unique<CheckedFile>(folder_ + "/" + name, checksums_of_file(name));
  if (!awake_.empty() && awake_.front() == file.get()) return *file;
  std::erase(awake_, file.get());
  awake_.push_front(file.get());
  if (awake_.size() > kOpenFiles) {
    awake_.back()->sleep();
    awake_.pop_back();
  }
  return *file;
}

const FileRange& DistCheckpoint::part_of_object(const std::string& key) const {
  const auto found = metadata_.objects.find(key);
  if (found == metadata_.objects.end()) throw DataError(fmt::format("{} has no object '{}'", folder_, key));
  return found->second;
}

PickleValue DistCheckpoint::read_object(const std::string& key) {
  const FileRange& part = part_of_object(key);
  return object_in(source_of(file(part.file), part, key), key);
}

std::string DistCheckpoint::object_bytes(const std::string& key) {
  const FileRange& part = part_of_object(key);
  if (part.length > kMaxCommonFile)
    throw DataError(fmt::format("{}/{}: the object {} has {}, more than any valid object", folder_, part.file,
                                in_quotes(key), readable_bytes(part.length)));
  std::string bytes(static_cast<std::size_t>(part.length), '\0');
  file(part.file).read(part.offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::vector<std::string> DistCheckpoint::checksummed_files() const {
  std::vector<std::string> names;
  if (checksums_)
    for (const auto& [name, sums] : *checksums_)
      if (name != kIndexFile && name != kFormatFile && name != kCommonFile) names.push_back(name);
  return names;
}

std::vector<bool> DistCheckpoint::checked() const {
  std::vector<bool> all;
  for (const std::string& name : checksummed_files()) {
    const auto file = files_.find(name);
    if (file == files_.end())
      all.resize(all.size() + checksums_->at(name).blocks.size());
    else
      all.insert(all.end(), file->second->checked().begin(), file->second->checked().end());
  }
  return all;
}

void DistCheckpoint::check(const std::vector<bool>& wanted) {
  std::size_t place = 0;
  for (const std::string& name : checksummed_files())
    for (std::size_t block = 0; block < checksums_->at(name).blocks.size(); ++block)
      if (wanted.at(place++)) file(name).check_block(static_cast<std::int64_t>(block));
}

void DistCheckpoint::check_rest() {
  std::vector<bool> rest = checked();
  rest.flip();
  check(rest);
  if (checksums_ && has_common()) common_bytes();
}

}  // namespace braid
