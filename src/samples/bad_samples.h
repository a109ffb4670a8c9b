// Counts samples that are skipped. Of damaged ones it also says which, and it ends the run when there are too many.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "shards/shard.h"

namespace braid {

class BadSamples {
 public:
  using Say = std::function<void(const std::string& text)>;

  // Samples that are one too many for `limit` throw a DataError.
  BadSamples(std::int64_t limit, Say say) : limit_(limit), say_(std::move(say)) {}

  // May be called by several threads at once.
  void add(const std::string& shard, const std::string& key, const std::string& reason);
  std::int64_t count() const { return count_; }

  // Samples that are not damaged, but of no use. There may be any number of them.
  void add_too_long() { ++too_long_; }
  void add_without_targets() { ++without_targets_; }
  std::int64_t too_long() const { return too_long_; }
  std::int64_t without_targets() const { return without_targets_; }

 private:
  const std::int64_t limit_;
  const Say say_;
  std::atomic<std::int64_t> count_ = 0, too_long_ = 0, without_targets_ = 0;
};

}  // namespace braid
