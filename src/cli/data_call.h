// What `braid data pack`, `inspect` and `bench` look at: the data set of a recipe, or a data set alone.
#pragma once

#include <string>
#include <vector>

#include "run/lane_options.h"

namespace braid {

struct DataCall {
  LaneSetOptions options;
  bool has_tokenizer = true;  // a data set alone may be looked at without one
};

// `path`: a recipe, or what data.path may be. A data set alone is read as by a recipe that has only data.path, with the
// flags after it; its model may have any id for pictures. ConfigError for a recipe of mock samples.
DataCall read_data_call(const std::string& path, const std::vector<std::string>& flags, DataUse use);

// ConfigError if a file to write, which may be empty for none, is one of those that the call reads: the recipe or
// metadataset, shards and their indexes, .nv-meta, the tokenizer.
void check_output(const char* option, const std::string& file, const std::string& call_path,
                  const LaneSetOptions& options, const Blend& blend);

// ConfigError if there is none.
void require_tokenizer(const DataCall& call);

}  // namespace braid
