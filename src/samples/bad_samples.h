// Counts samples that are skipped because they are damaged, says which, and ends the run when there are too many.
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

 private:
  const std::int64_t limit_;
  const Say say_;
  std::atomic<std::int64_t> count_ = 0;
};

}  // namespace braid
