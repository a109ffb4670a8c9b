#include "ckpt/verify.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/error.h"
#include "base/strings.h"
#include "ckpt/checked_file.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/dist_checkpoint.h"
#include "ckpt/file_names.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

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
    read_checksums();
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

  bool exists(const std::string& name) const {
    std::error_code ignored;
    return fs::exists(path(name), ignored);
  }

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

  void read_checksums() {
    if (!exists(kChecksumFile)) return;
    guarded(kChecksumFile, [&] {
      checksums_ = parse_checksums(read_whole(path(kChecksumFile), std::nullopt, kMaxIndexFile), path(kChecksumFile));
      report_.has_checksums = true;
    });
  }

  std::optional<FileChecksums> checksums_of_file(const std::string& name) const {
    const auto found = checksums_.find(name);
    return found == checksums_.end() ? std::nullopt : std::optional(found->second);
  }

  // A file that exists, or that was written according to the checksums.
  template <class Check>
  void check_small_file(const std::string& name, const Check& check) {
    if (!exists(name) && !checksums_.count(name)) return;
    guarded(name, [&] { check(read_whole(path(name), checksums_of_file(name), most_bytes_of(name))); });
  }

  std::vector<FileTask> file_tasks() const {
    std::map<std::string, FileTask> tasks;
    const auto task = [&](const std::string& name) -> FileTask& {
      return tasks.try_emplace(name, FileTask{name, checksums_of_file(name)}).first->second;
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
      std::sort(found.parts.begin(), found.parts.end(),
                [](const IndexedPart& a, const IndexedPart& b) { return a.part->offset < b.part->offset; });
      list.push_back(std::move(found));
    }
    return list;
  }

  void check_in_parallel(const std::vector<FileTask>& tasks) {
    std::atomic<std::size_t> next = 0;
    std::size_t left = static_cast<std::size_t>(std::max(options_.threads, 1));
    std::condition_variable ended;
    std::vector<std::jthread> threads;  // if one fails to start, the others stop
    for (std::size_t i = left; i > 0; --i)
      threads.emplace_back([&](const std::stop_token& stop) {
        for (std::size_t task; !stop.stop_requested() && (task = next++) < tasks.size();)
          guarded(tasks[task].name, [&] { check_file(tasks[task]); });
        const std::lock_guard lock(mutex_);
        --left;
        ended.notify_one();
      });
    std::unique_lock lock(mutex_);
    while (!ended.wait_for(lock, std::chrono::milliseconds(200), [&] { return left == 0; }))
      if (options_.progress) options_.progress(done_, report_.bytes);
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
      if (std::any_of(damages.begin(), damages.end(), [&](const Damage& damage) { return meet(part, damage); }))
        continue;
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

}  // namespace

VerifyReport verify_checkpoint(const std::string& folder, const VerifyOptions& options) {
  return Verification(folder, options).run();
}

}  // namespace braid
