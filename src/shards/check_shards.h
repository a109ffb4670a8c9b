// Whether all files of a blend can be read, before a run starts: a missing shard would otherwise end it hours later.
#pragma once

#include <vector>

#include "base/error.h"
#include "shards/metadataset.h"

namespace braid {

// One problem for each data set with shards or indices that are missing, cut or cannot be opened.
std::vector<Problem> unreadable_shards(const Blend& blend);

}  // namespace braid
