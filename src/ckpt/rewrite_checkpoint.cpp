#include "ckpt/rewrite_checkpoint.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "base/error.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_metadata.h"
#include "ckpt/save_lock.h"
#include "ckpt/tensor_io.h"
#include "formats/torch_archive.h"
#include "plan/param_spec.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

struct NamedKey {
  std::string from, to;
};

struct Chunk {
  const NamedKey* key;
  const DistTensor* tensor;
  Slab slab;
  std::size_t file = 0;
  std::int64_t bytes() const { return num_elements(slab.size) * bytes_of(tensor->dtype); }
};

template <class Map>
std::vector<NamedKey> renamed(const Map& entries, const RewriteOptions& options) {
  std::map<std::string, std::string> taken;  // by the new key
  for (const auto& [key, entry] : entries) {
    const auto name = options.rename ? options.rename(key) : std::optional(key);
    if (!name) continue;
    const auto [other, is_new] = taken.emplace(*name, key);
    if (!is_new) throw DataError(fmt::format("'{}' and '{}' would both become '{}'", other->second, key, *name));
  }
  std::vector<NamedKey> names;
  for (const auto& [to, from] : taken) names.push_back({from, to});
  return names;
}

// Files get similar sizes only if no chunk is a large share of one.
std::int64_t largest_chunk(const RewriteOptions& options, std::int64_t total) {
  constexpr std::int64_t kWorthCutting = 16 << 20;
  if (options.files == 1) return options.chunk_bytes;
  return std::min(options.chunk_bytes, std::max(total / (8 * options.files), kWorthCutting));
}

// Largest chunk first, each into the file that is smallest so far.
void balance(std::vector<Chunk>& chunks, int files) {
  std::vector<Chunk*> order;
  for (Chunk& chunk : chunks) order.push_back(&chunk);
  std::stable_sort(order.begin(), order.end(), [](const Chunk* a, const Chunk* b) { return a->bytes() > b->bytes(); });
  std::vector<std::int64_t> load(static_cast<std::size_t>(files));
  for (Chunk* chunk : order) {
    const auto least = std::min_element(load.begin(), load.end());
    chunk->file = static_cast<std::size_t>(least - load.begin());
    *least += chunk->bytes();
  }
}

std::string common_of(const DistCheckpoint& from, std::int64_t iteration) {
  if (from.has_common()) return from.common_bytes();
  return write_archive(pickle_dict({{"checkpoint_version", pickle(3.0)}, {"iteration", pickle(iteration)}}));
}

// The only files that killed saves leave in a new root; the next save removes them.
bool has_only_unfinished(const std::string& root) {
  return std::all_of(fs::directory_iterator(root), fs::directory_iterator(), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return is_unfinished(name) || is_save_lock(name);
  });
}

}  // namespace

void check_new_iteration(const std::string& root, std::int64_t iteration) {
  const std::string folder = iteration_folder(root, iteration);
  std::error_code ignored;
  if (fs::exists(folder, ignored))
    throw ConfigError({fmt::format("'{}' already exists", folder), "", "remove it, or give another folder"});
  if (fs::is_directory(root, ignored) && iterations_in(root).empty() && !has_only_unfinished(root))
    throw ConfigError({fmt::format("the folder '{}' is not empty and is not a folder of checkpoints", root), "",
                       "give a new folder, or one with checkpoints"});
}

Rewritten rewrite_checkpoint(DistCheckpoint& from, const std::string& root, std::int64_t iteration,
                             const RewriteOptions& options) {
  const DistMetadata& metadata = from.metadata();
  const std::vector<NamedKey> objects = renamed(metadata.objects, options), keys = renamed(metadata.tensors, options);
  std::int64_t total = 0, done = 0;
  for (const NamedKey& key : keys) total += bytes_of(metadata.tensors.at(key.from));
  const std::int64_t chunk_bytes = largest_chunk(options, total);
  std::vector<Chunk> chunks;
  for (const NamedKey& key : keys) {
    const DistTensor& tensor = metadata.tensors.at(key.from);
    for (Slab& slab : slabs_of(tensor.shape, chunk_bytes / bytes_of(tensor.dtype)))
      chunks.push_back({&key, &tensor, std::move(slab)});
  }
  balance(chunks, options.files);

  const std::string common = common_of(from, iteration);
  check_new_iteration(root, iteration);
  const SaveLock lock(root);
  begin_iteration(root, iteration);
  const std::string partial = partial_folder(root, iteration);
  for (int file = 0; file < options.files; ++file) {
    DistWriter writer(partial, file);
    if (file == 0)
      for (const NamedKey& key : objects) writer.add_archive(key.to, from.object_bytes(key.from));
    for (const Chunk& chunk : chunks) {
      if (chunk.file != static_cast<std::size_t>(file)) continue;
      const at::Tensor values = at::empty(chunk.slab.size, scalar_type(chunk.tensor->dtype));
      from.read(chunk.key->from, chunk.slab.begin, values);
      writer.add_tensor(chunk.key->to, chunk.tensor->shape, chunk.slab.begin, values);
      done += chunk.bytes();
      if (options.progress) options.progress(done, total);
    }
    writer.finish();
    hand_in(partial, file, writer);
  }
  return {keys.size(), objects.size(), publish(root, iteration, options.files, common, Saver::Guest)};
}

}  // namespace braid
