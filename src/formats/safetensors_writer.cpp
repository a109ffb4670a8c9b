#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "formats/safetensors.h"

namespace braid {
namespace {

// Fills shards as Hugging Face does: in order, starting a new one when the next tensor does not fit.
std::vector<std::vector<TensorInfo>> split_into_shards(const std::vector<TensorInfo>& tensors, std::int64_t max_bytes) {
  std::vector<std::vector<TensorInfo>> shards(1);
  std::int64_t filled = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::int64_t bytes = bytes_of(tensor);
    if (!shards.back().empty() && filled + bytes > max_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += bytes;
  }
  return shards;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string folder, const std::vector<TensorInfo>& tensors,
                                     std::int64_t max_shard_bytes)
    : folder_(std::move(folder)) {
  const auto shards = split_into_shards(tensors, max_shard_bytes);
  for (std::size_t i = 0; i < shards.size(); ++i)
    start_shard(shards.size() == 1 ? "model.safetensors"
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()),
                shards[i]);
}

SafetensorsWriter SafetensorsWriter::to_file(const std::string& path, const std::vector<TensorInfo>& tensors) {
  // A symbolic link is kept. Made absolute, since the name of a file that does not exist yet would have no folder.
  const std::filesystem::path file = std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  SafetensorsWriter writer(file.parent_path().string());
  writer.start_shard(file.filename().string(), tensors);
  return writer;
}

void SafetensorsWriter::start_shard(const std::string& file_name, std::vector<TensorInfo> tensors) {
  // Sorted by descending element size, so that every tensor is aligned.
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) { return bytes_of(a.dtype) > bytes_of(b.dtype); });
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";  // transformers rejects files without it
  std::int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::int64_t bytes = bytes_of(tensor);
    header[tensor.name] = {
        {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    const bool is_new = slots_.emplace(tensor.name, Slot{files_.size(), offset, bytes}).second;
    BRAID_CHECK(is_new, "tensor {} is declared twice", tensor.name);
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  text.insert(0, length);
  for (const TensorInfo& tensor : tensors) slots_.at(tensor.name).offset += static_cast<std::int64_t>(text.size());
  file_names_.push_back(file_name);
  files_.emplace_back((std::filesystem::path(folder_) / file_name).string());
  files_.back().write_at(0, std::as_bytes(std::span(text)));
  total_bytes_ += offset;
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> data) {
  const auto slot = slots_.find(name);
  BRAID_CHECK(slot != slots_.end(), "tensor {} was not declared", name);
  BRAID_CHECK_EQ(static_cast<std::int64_t>(data.size()), slot->second.bytes, "bytes of tensor {}", name);
  files_[slot->second.shard].write_at(slot->second.offset, data);
  slot->second.written = true;
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) BRAID_CHECK(slot.written, "tensor {} was declared but not written", name);
  for (AtomicFile& file : files_) file.commit();
  if (files_.size() > 1) {
    nlohmann::json index;
    index["metadata"]["total_size"] = total_bytes_;
    for (const auto& [name, slot] : slots_) index["weight_map"][name] = file_names_[slot.shard];
    write_file(std::filesystem::path(folder_) / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  sync_folder(folder_);
}

}  // namespace braid
