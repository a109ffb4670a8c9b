// What `braid data pack`, `inspect` and `bench` look at: the data set of a recipe, or a data set alone.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "run/data_source.h"

namespace braid {

Command data_bench_command();
Command data_draw_command();
Command data_inspect_command();
Command data_order_command();
Command data_pack_command();
Command data_prepare_command();

struct DataCall {
  LaneSetOptions options;     // damaged samples are named on stderr
  bool has_tokenizer = true;  // a data set alone may be looked at without one
};

// `path`: a recipe, or what data.path may be. A data set alone is read as by a recipe that has only data.path, with the
// flags after it; its model may have any id for pictures, or none. ConfigError for a recipe of mock samples.
DataCall read_data_call(const std::string& path, const std::vector<std::string>& flags, DataUse use);

// Whether a file is a recipe rather than a metadataset, which is YAML too.
bool looks_like_recipe(const std::string& path);

// ConfigError if there is none.
void require_tokenizer(const DataCall& call);

}  // namespace braid
