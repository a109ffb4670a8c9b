#include "data/shards/sample_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <thread>

#include "base/error.h"
#include "base/strings.h"
#include "base/worker_pool.h"

namespace braid {
namespace {

constexpr int kThreads = 16;  // most of the time is spent waiting for a file system
constexpr std::size_t kMostNamed = 5;

std::string error_of(const Shard& shard) {
  try {
    OpenShard(shard).check_size();
    return "";
  } catch (const DataError& e) {
    return e.what();
  }
}

}  // namespace

SampleReader::SampleReader(std::shared_ptr<const Blend> blend, std::size_t max_open_shards, ReadRetries retries)
    : blend_(std::move(blend)),
      max_open_shards_(std::max<std::size_t>(max_open_shards, 1)),
      retries_(std::move(retries)) {}

std::shared_ptr<const OpenShard> SampleReader::open(const Shard& shard) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(recent_, &shard, &Recent::first);
    if (found != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, found);
      return found->second;
    }
  }
  // Opening may wait for a slow disk; other threads read on, and may open the same shard.
  auto opened = std::make_shared<const OpenShard>(shard);
  const std::lock_guard lock(mutex_);
  recent_.emplace_front(&shard, opened);
  if (recent_.size() > max_open_shards_) recent_.pop_back();
  return opened;
}

void SampleReader::close(const Shard& shard) {
  const std::lock_guard lock(mutex_);
  std::erase_if(recent_, [&](const Recent& recent) { return recent.first == &shard; });
}

template <class Read>
auto SampleReader::with_retries(const SampleRef& ref, const Read& read) {
  const auto& pauses = retries_.pauses;
  for (std::size_t attempt = 0;; ++attempt) try {
      return read(*open(shard_of(ref)));
    } catch (const ReadError& e) {
      close(shard_of(ref));
      const bool is_system_error = dynamic_cast<const SystemReadError*>(&e) != nullptr;
      if (pauses.empty() || has_given_up_ || (retries_.only_system_errors && !is_system_error)) throw;
      if (attempt == pauses.size()) {
        has_given_up_ = true;
        throw SystemReadError(
            fmt::format("{} (tried {} times); a file of the data set or its file system is at fault, not a sample: "
                        "repair it, then start the run again",
                        e.what(), pauses.size() + 1));
      }
      const std::chrono::duration<double> pause = pauses[attempt];
      if (retries_.say) retries_.say(fmt::format("{}; trying again in {} s", e.what(), pause.count()));
      std::this_thread::sleep_for(pause);
    }
}

std::string SampleReader::read_bytes(const SampleRef& ref, std::uint64_t offset, std::size_t size) {
  return with_retries(ref, [&](const OpenShard& shard) { return shard.read_bytes(offset, size); });
}

Sample SampleReader::read(const SampleRef& ref) {
  Sample sample = with_retries(ref, [&](const OpenShard& shard) { return shard.read(ref.index); });
  if (const auto& filter = blend_->leaves[ref.leaf].spec.part_filter) {
    std::erase_if(sample.parts, [&](const SamplePart& part) { return !contains(*filter, part.name); });
    std::erase_if(sample.replaced, [&](const std::string& name) { return !contains(*filter, name); });
  }
  return sample;
}

std::string SampleReader::end_remark(const SampleRef& ref) {
  return with_retries(ref, [](const OpenShard& shard) { return shard.end_remark(); });
}

std::string SampleReader::contents_hash(const SampleRef& ref) {
  return with_retries(ref, [](const OpenShard& shard) { return shard.contents_hash(); });
}

std::string SampleReader::key(const SampleRef& ref) { return open(shard_of(ref))->key(ref.index); }

std::string SampleReader::name_of(const SampleRef& ref) {
  try {
    return in_quotes(key(ref));
  } catch (const DataError&) {
    return fmt::format("number {}", ref.index);
  }
}

void read_contents(const std::shared_ptr<Blend>& blend, const ReadRetries& retries) {
  SampleReader reader(blend, kThreads, retries);
  WorkerPool pool(kThreads);
  for (std::uint32_t leaf = 0; leaf < blend->leaves.size(); ++leaf) {
    DataSet& data = blend->leaves[leaf].data;
    std::vector<std::string> hashes(data.shards.size());
    pool.run(hashes.size(), [&](std::size_t i) {
      hashes[i] = reader.contents_hash({.leaf = leaf, .shard = static_cast<std::uint32_t>(i)});
    });
    for (const std::string& hash : hashes) data.contents += hash;
  }
}

std::vector<Problem> unreadable_shards(const Blend& blend) {
  std::vector<Problem> problems;
  std::set<std::string> checked;
  WorkerPool pool(kThreads);
  for (const Leaf& leaf : blend.leaves) {
    std::vector<const Shard*> shards;
    for (const Shard& shard : leaf.data.shards)
      if (checked.insert(shard.path).second) shards.push_back(&shard);
    std::vector<std::string> errors(shards.size());
    pool.run(shards.size(), [&](std::size_t i) { errors[i] = error_of(*shards[i]); });
    std::erase(errors, "");
    if (errors.empty()) continue;
    std::string what =
        fmt::format("{} of {} of '{}' cannot be read: {}", errors.size(), counted(std::ssize(shards), "shard"),
                    leaf.data.path, fmt::join(std::span(errors).first(std::min(errors.size(), kMostNamed)), "; "));
    if (errors.size() > kMostNamed) what += fmt::format("; and {} more", errors.size() - kMostNamed);
    problems.push_back({what, "",
                        fmt::format("restore the files, or leave the shards out: list them as `exclude` in '{}/{}/"
                                    "split.yaml'; `braid data prepare --force` writes indices again",
                                    leaf.data.path, kMetaFolder)});
  }
  return problems;
}

}  // namespace braid
