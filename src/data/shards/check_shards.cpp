#include "data/shards/check_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

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
