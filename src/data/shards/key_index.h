// The key index of a data set, index.sqlite: which shard has which sample, for look-ups by key. It also finds keys that
// appear twice. Built without SQLite, it only does that, in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/shards/shard.h"

namespace braid {

class KeyIndex {
 public:
  static bool is_supported();  // whether files are written

  // Written beside `path` and renamed to it by commit(). `shards`: their names, by number.
  KeyIndex(const std::string& path, std::vector<std::string> shards);
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;
  ~KeyIndex();  // if not committed, leaves no file behind

  // DataError, naming both shards, when the key is known already.
  void add(std::uint32_t shard, std::int64_t index_in_shard, const ScannedSample& sample);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
