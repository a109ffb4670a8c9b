#include "data/shards/sample_ref.h"

#include "base/error.h"
#include "base/strings.h"

namespace braid {

void save_ref(StateWriter& state, const SampleRef& ref) {
  state.number(ref.leaf);
  state.number(ref.shard);
  state.number(static_cast<std::uint64_t>(ref.index));
  state.number(ref.epoch);
}

SampleRef restore_ref(StateReader& state, const Blend& blend) {
  SampleRef ref;
  ref.leaf = static_cast<std::uint32_t>(state.number(blend.leaves.size() - 1));
  const std::vector<Shard>& shards = blend.leaves[ref.leaf].data.shards;
  ref.shard = static_cast<std::uint32_t>(state.number(shards.size() - 1));
  const Shard& shard = shards[ref.shard];
  if (shard.samples == 0)
    throw DataError(
        fmt::format("the state of a data stream names a sample of shard {}, which has none", in_quotes(shard.name)));
  ref.index = static_cast<std::int64_t>(state.number(static_cast<std::uint64_t>(shard.samples) - 1));
  ref.epoch = state.number(UINT64_MAX);
  return ref;
}

}  // namespace braid
