// Which sample of a blend an order names.
#pragma once

#include <cstdint>

#include "data/shards/metadataset.h"
#include "data/shards/stream_state.h"

namespace braid {

struct SampleRef {
  std::uint32_t leaf = 0;   // in Blend::leaves
  std::uint32_t shard = 0;  // in its DataSet::shards
  std::int64_t index = 0;   // in the shard
  std::uint64_t epoch = 0;  // how often the worker had completed its share of the leaf

  bool operator==(const SampleRef&) const = default;
};

void save_ref(StateWriter& state, const SampleRef& ref);
// DataError unless the blend has the sample.
SampleRef restore_ref(StateReader& state, const Blend& blend);

}  // namespace braid
