// Whether all files of a blend can be read, before a run starts: a missing shard would otherwise end it hours later.
#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "data/shards/metadataset.h"
#include "data/shards/sample_reader.h"

namespace braid {

// One problem for each data set with shards or indices that are missing, cut or cannot be opened.
std::vector<Problem> unreadable_shards(const Blend& blend);

// Fills in DataSet::contents from a few bytes of every shard: another data set with the same names and counts has
// another fingerprint then.
void read_contents(const std::shared_ptr<Blend>& blend, const ReadRetries& retries = {});

}  // namespace braid
