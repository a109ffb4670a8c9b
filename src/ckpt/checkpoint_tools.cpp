#include "ckpt/checkpoint_tools.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <future>
#include "base/files.h"
#include "base/strings.h"
#include "base/worker_pool.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/save_lock.h"
#include "ckpt/tensor_io.h"

namespace braid {
namespace {

const char* const kDamaged = "use another checkpoint, or another copy of this file";

// An index entry for a part of a file: a chunk of a tensor, or an object if there is no tensor.
struct IndexedPart {
  const FileRange* part;
  const std::string* key;
  const DistTensor* tensor = nullptr;
  const StoredChunk* chunk = nullptr;
};

struct FileTask {
  std::string name;
  std::optional<FileChecksums> checksums{};
  std::vector<IndexedPart> parts{};  // by offset
};

struct Damage {
  std::int64_t begin, end;
};

bool meet(const FileRange& part, const Damage& damage) {
  return part.offset < damage.end && part.offset + part.length > damage.begin;
}

class Verification {
 public:
  Verification(const std::string& folder, const VerifyOptions& options) : folder_(folder), options_(options) {}

  VerifyReport run() {
    const IterationFiles files = files_of(folder_);
    report_.files = files.count;
    report_.bytes = files.bytes;
    check_small_file(kChecksumFile, [&](const std::string& text) {
      checksums_ = parse_checksums(text, path(kChecksumFile));
      report_.has_checksums = true;
    });
    check_small_file(kFormatFile, [&](const std::string& text) { check_format(text, path(kFormatFile)); });
    if (!exists(kIndexFile)) {
      add("the index is missing: this is not a distributed checkpoint, or it is incomplete", kIndexFile, kDamaged);
    } else {
      check_small_file(kIndexFile, [&](const std::string& text) { metadata_ = read_metadata(text, path(kIndexFile)); });
    }
    if (metadata_.has_checksums && !report_.has_checksums && !exists(kChecksumFile))
      add("the checksums are missing", kChecksumFile, kDamaged);
    report_.tensors = metadata_.tensors.size();
    report_.objects = metadata_.objects.size();
    for (Problem& problem : coverage_problems(metadata_)) problems_.add(problem.what, problem.where, problem.fix);
    check_in_parallel(file_tasks());
    report_.problems = problems_.take();
    return std::move(report_);
  }

 private:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  bool exists(const std::string& name) const { return is_there(path(name)); }

  // Messages contain paths of files in the folder; the names suffice.
  void add(std::string what, const std::string& where, const std::string& fix) {
    for (std::size_t at; (at = what.find(folder_ + "/")) != std::string::npos;) what.erase(at, folder_.size() + 1);
    const std::lock_guard lock(mutex_);
    problems_.add(std::move(what), where, fix);
  }

  template <class Act>
  void guarded(const std::string& name, const Act& act) {
    try {
      act();
    } catch (const std::exception& e) {
      add(e.what(), name, kDamaged);
    }
  }

  // A file that exists, or that was written according to the checksums.
  template <class Check>
  void check_small_file(const std::string& name, const Check& check) {
    if (!exists(name) && !checksums_.count(name)) return;
    guarded(name, [&] { check(read_whole(path(name), value_in(checksums_, name), most_bytes_of(name))); });
  }

  std::vector<FileTask> file_tasks() const {
    std::map<std::string, FileTask> tasks;
    const auto task = [&](const std::string& name) -> FileTask& {
      return tasks.try_emplace(name, FileTask{name, value_in(checksums_, name)}).first->second;
    };
    for (const auto& [name, sums] : checksums_)
      if (name != kIndexFile && name != kFormatFile) task(name);
    if (exists(kCommonFile)) task(kCommonFile);
    for (const auto& [key, part] : metadata_.objects) task(part.file).parts.push_back({&part, &key});
    for (const auto& [key, tensor] : metadata_.tensors)
      for (const StoredChunk& chunk : tensor.chunks)
        task(chunk.part.file).parts.push_back({&chunk.part, &key, &tensor, &chunk});
    std::vector<FileTask> list;
    for (auto& [name, found] : tasks) {
      std::ranges::sort(found.parts, {}, [](const IndexedPart& indexed) { return indexed.part->offset; });
      list.push_back(std::move(found));
    }
    return list;
  }

  void check_in_parallel(const std::vector<FileTask>& tasks) {
    WorkerPool pool(std::max(options_.threads, 1));
    const auto check = [&](std::size_t i) { guarded(tasks[i].name, [&] { check_file(tasks[i]); }); };
    std::future<void> all = std::async(std::launch::async, [&] { pool.run(tasks.size(), check); });
    while (all.wait_for(std::chrono::milliseconds(200)) != std::future_status::ready)
      if (options_.progress) options_.progress(done_, report_.bytes);
    all.get();
  }

  void check_file(const FileTask& task) {
    if (report_.has_checksums && !task.checksums)
      add(fmt::format("{} has no entry for {}", kChecksumFile, task.name), task.name, kDamaged);
    CheckedFile file(path(task.name), task.checksums);
    const std::vector<Damage> damages = task.checksums ? damages_of(file) : std::vector<Damage>();
    for (const Damage& damage : damages)
      add(fmt::format("{}: bytes {} to {} differ from what was written (wrong checksum){}", task.name, damage.begin,
                      damage.end - 1, keys_in(task, damage)),
          task.name, kDamaged);
    if (task.name == kCommonFile && damages.empty())
      read_archive(read_whole(path(kCommonFile), std::nullopt, kMaxCommonFile), path(kCommonFile));
    check_parts(task, file, damages);
  }

  // Blocks whose checksums differ, neighbours merged.
  std::vector<Damage> damages_of(CheckedFile& file) {
    std::vector<Damage> damages;
    std::vector<std::byte> bytes;
    for (std::int64_t begin = 0; begin < file.size(); begin += kChecksumBlock) {
      const std::int64_t end = std::min(begin + kChecksumBlock, file.size());
      bytes.resize(static_cast<std::size_t>(end - begin));
      try {
        file.read(begin, bytes);
      } catch (const DataError&) {
        if (damages.empty() || damages.back().end != begin) damages.push_back({begin, begin});
        damages.back().end = end;
      }
      done_ += end - begin;
    }
    return damages;
  }

  static std::string keys_in(const FileTask& task, const Damage& damage) {
    constexpr std::size_t kNamed = 3;
    std::vector<std::string> keys;
    std::size_t count = 0;
    for (const IndexedPart& indexed : task.parts)
      if (meet(*indexed.part, damage) && ++count <= kNamed) keys.push_back(in_quotes(*indexed.key));
    if (count == 0) return "";
    const std::string more = count > kNamed ? fmt::format(" and {} more", count - kNamed) : "";
    return fmt::format("; they belong to {}{}", joined(keys, ", "), more);
  }

  // Parts in damaged blocks have already been reported.
  void check_parts(const FileTask& task, CheckedFile& file, const std::vector<Damage>& damages) {
    std::size_t cut_off = 0;
    for (const IndexedPart& indexed : task.parts) {
      const FileRange& part = *indexed.part;
      if (part.length > file.size() - part.offset) {
        ++cut_off;
        continue;
      }
      if (std::ranges::any_of(damages, [&](const Damage& damage) { return meet(part, damage); })) continue;
      guarded(task.name, [&] {
        const ArchiveSource source = source_of(file, part, *indexed.key);
        if (indexed.tensor)
          data_offset(source, indexed.tensor->dtype, indexed.chunk->size);
        else
          object_in(source, *indexed.key);
      });
    }
    if (cut_off == 0) return;
    const FileRange& last = *task.parts.back().part;
    add(fmt::format("{} ends at byte {}, but the index refers to bytes up to {}: {} part{} truncated", task.name,
                    file.size(), last.offset + last.length, cut_off, cut_off > 1 ? "s are" : " is"),
        task.name, kDamaged);
  }

  const std::string folder_;
  const VerifyOptions& options_;
  VerifyReport report_;
  Checksums checksums_;
  DistMetadata metadata_;
  std::mutex mutex_;  // guards the problems
  ProblemList problems_;
  std::atomic<std::int64_t> done_ = 0;
};

constexpr std::int64_t kElementsAtOnce = 1 << 22;

at::Tensor read_slab(DistCheckpoint& checkpoint, const std::string& key, const Slab& slab, StoredDtype dtype) {
  at::Tensor values = at::empty(slab.size, scalar_type(dtype));
  checkpoint.read(key, slab.begin, values);
  return values;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

// Viewed as integers, to compare bit by bit.
at::Tensor bits_of(const at::Tensor& values) {
  constexpr at::ScalarType kIntegers[] = {at::kByte, at::kShort, at::kInt, at::kLong};
  return values.view(kIntegers[std::bit_width(values.itemsize()) - 1]);
}

struct Sums {
  std::int64_t different = 0;
  double largest = 0, squared_difference = 0, squared_first = 0;
};

void add_slab(const at::Tensor& a, const at::Tensor& b, Sums& sums) {
  const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  const at::Tensor same = a.scalar_type() == b.scalar_type()
                              ? bits_of(a).eq(bits_of(b))
                              : wide_a.eq(wide_b).logical_or_(wide_a.isnan() & wide_b.isnan());
  const at::Tensor difference = wide_a.sub(wide_b).masked_fill_(same, 0).abs_();
  sums.different += same.numel() - same.sum().item<std::int64_t>();
  const double largest = difference.max().item<double>();
  if (std::isnan(largest) || largest > sums.largest) sums.largest = largest;
  sums.squared_difference += difference.square_().sum().item<double>();
  sums.squared_first += wide_a.square().sum().item<double>();
}

// Compares bits first, which is fast, and numbers only in tensors that differ.
void compare_tensor(DistCheckpoint& first, DistCheckpoint& second, TensorDifference& result) {
  const std::vector<Slab> slabs = slabs_of(result.first->shape, kElementsAtOnce);
  const auto both = [&](const Slab& slab) {
    return std::pair(read_slab(first, result.key, slab, result.first->dtype),
                     read_slab(second, result.key, slab, result.second->dtype));
  };
  const auto are_same = [&](const Slab& slab) { return std::apply(same_bits, both(slab)); };
  if (num_elements(result.first->shape) == 0) return;
  if (result.first->dtype == result.second->dtype && std::all_of(slabs.begin(), slabs.end(), are_same)) return;
  Sums sums;
  for (const Slab& slab : slabs) {
    const auto [a, b] = both(slab);
    add_slab(a, b, sums);
  }
  result.different = sums.different;
  result.largest = sums.largest;
  result.l2 = std::sqrt(sums.squared_difference);
  result.relative = sums.squared_difference == 0 ? 0 : std::sqrt(sums.squared_difference / sums.squared_first);
}

// NaN counts as the largest difference.
double rank_of(const TensorDifference& tensor) {
  if (!tensor.comparable()) return -1;
  return std::isnan(tensor.largest) ? std::numeric_limits<double>::infinity() : tensor.largest;
}

template <class Map>
std::set<std::string> keys_of(const Map& first, const Map& second) {
  std::set<std::string> keys;
  for (const Map* map : {&first, &second})
    for (const auto& [key, value] : *map) keys.insert(key);
  return keys;
}

// Whether the value contains tensors; a pickle stores their names, not their data. Values may be shared: those in
// `seen` were searched before.
bool holds_storage(const PickleValue& value, std::set<const PickleNode*>& seen) {
  if (!value || !seen.insert(value.get()).second) return false;
  const auto any = [&](const std::vector<PickleValue>& items) {
    return std::ranges::any_of(items, [&](const PickleValue& item) { return holds_storage(item, seen); });
  };
  const auto any_in_dict = [&](const PickleDict& dict) {
    return std::ranges::any_of(dict.items, [&](const auto& item) {
      return holds_storage(item.first, seen) || holds_storage(item.second, seen);
    });
  };
  if (as<PicklePersistent>(value)) return true;
  if (const auto* tuple = as<PickleTuple>(value)) return any(tuple->items);
  if (const auto* list = as<PickleList>(value)) return any(list->items);
  if (const auto* dict = as<PickleDict>(value)) return any_in_dict(*dict);
  const auto* object = as<PickleObject>(value);
  return object && (any(object->args) || holds_storage(object->state, seen) || any_in_dict(object->items));
}

// Archives of equal objects may differ if other programs wrote them; their pickles do not.
bool same_object(DistCheckpoint& first, DistCheckpoint& second, const std::string& key) {
  if (first.object_bytes(key) == second.object_bytes(key)) return true;
  const PickleValue ours = first.read_object(key), theirs = second.read_object(key);
  std::set<const PickleNode*> seen;
  return !holds_storage(ours, seen) && !holds_storage(theirs, seen) && write_pickle(ours) == write_pickle(theirs);
}

std::vector<ObjectDifference> compare_objects(DistCheckpoint& first, DistCheckpoint& second) {
  const auto &ours = first.metadata().objects, &theirs = second.metadata().objects;
  std::vector<ObjectDifference> differences;
  for (const std::string& key : keys_of(ours, theirs)) {
    const bool in_first = ours.count(key) > 0, in_second = theirs.count(key) > 0;
    if (!in_first || !in_second || !same_object(first, second, key)) differences.push_back({key, in_first, in_second});
  }
  return differences;
}

const DistTensor* find(const DistMetadata& metadata, const std::string& key) {
  const auto found = metadata.tensors.find(key);
  return found == metadata.tensors.end() ? nullptr : &found->second;
}

struct Chunk {
  std::string from, to;  // its tensor's keys
  const DistTensor* tensor;
  Slab slab;
  std::size_t file = 0;
  std::int64_t bytes() const { return num_elements(slab.size) * bytes_of(tensor->dtype); }
};

// The keys of entries by their new ones.
template <class Map>
std::map<std::string, std::string> renamed(const Map& entries, const RewriteOptions& options) {
  std::map<std::string, std::string> taken;
  for (const auto& [key, entry] : entries) {
    const auto name = options.rename ? options.rename(key) : std::optional(key);
    if (!name) continue;
    const auto [other, is_new] = taken.emplace(*name, key);
    if (!is_new) throw DataError(fmt::format("'{}' and '{}' would both become '{}'", other->second, key, *name));
  }
  return taken;
}

// Files get similar sizes only if no chunk is a large share of one.
std::int64_t largest_chunk(const RewriteOptions& options, std::int64_t total) {
  constexpr std::int64_t kWorthCutting = 16 << 20;
  if (options.files == 1) return options.chunk_bytes;
  return std::min(options.chunk_bytes, std::max(total / (8 * options.files), kWorthCutting));
}

// Largest chunk first, each into the file that is smallest so far.
void balance(std::vector<Chunk>& chunks, int files) {
  auto order = vector_of<Chunk*>(chunks, [](Chunk& chunk) { return &chunk; });
  std::stable_sort(order.begin(), order.end(), [](const Chunk* a, const Chunk* b) { return a->bytes() > b->bytes(); });
  std::vector<std::int64_t> load(static_cast<std::size_t>(files));
  for (Chunk* chunk : order) {
    const auto least = std::min_element(load.begin(), load.end());
    chunk->file = static_cast<std::size_t>(least - load.begin());
    *least += chunk->bytes();
  }
}

// The only files that killed saves leave in a new root; the next save removes them.
bool has_only_unfinished(const std::string& root) {
  return std::all_of(fs::directory_iterator(root), fs::directory_iterator(), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return is_unfinished(name) || is_save_lock(name);
  });
}

}  // namespace

VerifyReport verify_checkpoint(const std::string& folder, const VerifyOptions& options) {
  return Verification(folder, options).run();
}

Comparison compare_checkpoints(DistCheckpoint& first, DistCheckpoint& second, const ByteProgress& progress) {
  Comparison comparison;
  std::int64_t done = 0, total = 0;
  for (const std::string& key : keys_of(first.metadata().tensors, second.metadata().tensors)) {
    comparison.tensors.push_back(
        {.key = key, .first = find(first.metadata(), key), .second = find(second.metadata(), key)});
    if (comparison.tensors.back().comparable()) total += bytes_of(*comparison.tensors.back().first);
  }
  for (TensorDifference& tensor : comparison.tensors) {
    if (!tensor.comparable()) continue;
    compare_tensor(first, second, tensor);
    done += bytes_of(*tensor.first);
    if (progress) progress(done, total);
  }
  std::ranges::stable_sort(comparison.tensors, std::ranges::greater(), rank_of);
  comparison.objects = compare_objects(first, second);
  return comparison;
}

TensorStatistics statistics_of(DistCheckpoint& checkpoint, const std::string& key, std::int64_t first_values) {
  const DistTensor& tensor = checkpoint.metadata().tensors.at(key);
  TensorStatistics result;
  double sum = 0, squares = 0;
  std::int64_t finite = 0;
  for (const Slab& slab : slabs_of(tensor.shape, kElementsAtOnce)) {
    if (num_elements(slab.size) == 0) continue;
    const at::Tensor values = read_slab(checkpoint, key, slab, tensor.dtype).to(at::kDouble).flatten();
    for (std::int64_t i = 0; i < values.numel() && std::ssize(result.first) < first_values; ++i)
      result.first.push_back(values[i].item<double>());
    result.nans += values.isnan().sum().item<std::int64_t>();
    result.infinities += values.isinf().sum().item<std::int64_t>();
    const at::Tensor numbers = values.masked_select(values.isfinite());
    if (numbers.numel() == 0) continue;
    const double least = numbers.min().item<double>(), largest = numbers.max().item<double>();
    result.least = finite == 0 ? least : std::min(result.least, least);
    result.largest = finite == 0 ? largest : std::max(result.largest, largest);
    finite += numbers.numel();
    sum += numbers.sum().item<double>();
    squares += numbers.square().sum().item<double>();
  }
  result.mean = finite > 0 ? sum / static_cast<double>(finite) : 0;
  result.l2 = std::sqrt(squares);
  return result;
}

void check_new_iteration(const std::string& root, std::int64_t iteration) {
  const std::string folder = iteration_folder(root, iteration);
  if (is_there(folder))
    throw ConfigError({fmt::format("'{}' already exists", folder), "", "remove it, or give another folder"});
  if (is_folder(root) && iterations_in(root).empty() && !has_only_unfinished(root))
    throw ConfigError({fmt::format("the folder '{}' is not empty and is not a folder of checkpoints", root), "",
                       "give a new folder, or one with checkpoints"});
}

Rewritten rewrite_checkpoint(DistCheckpoint& from, const std::string& root, std::int64_t iteration,
                             const RewriteOptions& options) {
  const DistMetadata& metadata = from.metadata();
  const auto objects = renamed(metadata.objects, options), keys = renamed(metadata.tensors, options);
  std::int64_t total = 0, done = 0;
  for (const auto& [new_key, key] : keys) total += bytes_of(metadata.tensors.at(key));
  const std::int64_t chunk_bytes = largest_chunk(options, total);
  std::vector<Chunk> chunks;
  for (const auto& [new_key, key] : keys) {
    const DistTensor& tensor = metadata.tensors.at(key);
    for (Slab& slab : slabs_of(tensor.shape, chunk_bytes / bytes_of(tensor.dtype)))
      chunks.push_back({key, new_key, &tensor, std::move(slab)});
  }
  balance(chunks, options.files);

  const std::string common =
      from.has_common()
          ? from.common_bytes()
          : write_archive(pickle_dict({{"checkpoint_version", pickle(3.0)}, {"iteration", pickle(iteration)}}));
  check_new_iteration(root, iteration);
  const SaveLock lock(root);
  begin_iteration(root, iteration);
  const std::string partial = partial_folder(root, iteration);
  for (int file = 0; file < options.files; ++file) {
    DistWriter writer(partial, file);
    if (file == 0)
      for (const auto& [new_key, key] : objects) writer.add_archive(new_key, from.object_bytes(key));
    for (const Chunk& chunk : chunks) {
      if (chunk.file != static_cast<std::size_t>(file)) continue;
      const at::Tensor values = at::empty(chunk.slab.size, scalar_type(chunk.tensor->dtype));
      from.read(chunk.from, chunk.slab.begin, values);
      writer.add_tensor(chunk.to, chunk.tensor->shape, chunk.slab.begin, values);
      done += chunk.bytes();
      if (options.progress) options.progress(done, total);
    }
    writer.finish();
    hand_in(partial, file, writer);
  }
  return {keys.size(), objects.size(), publish(root, iteration, options.files, common, Saver::Guest)};
}

}  // namespace braid
