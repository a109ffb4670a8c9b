#include "data/shards/key_index.h"

#include "base/error.h"
#include "base/strings.h"

namespace braid {

void KeyIndex::refuse_repeated(const std::string& key, const std::string& first_shard, const std::string& shard) {
  throw DataError(fmt::format("the key {} appears in shard '{}' and again in shard '{}': each sample needs its own key",
                              in_quotes(key), first_shard, shard));
}

}  // namespace braid
