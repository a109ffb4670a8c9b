// Makes a folder of tar files a data set: an index beside each shard, and in .nv-meta the counts, the splits, what a
// sample is, and the key index. Energon reads the result too.
#pragma once

#include "data/shards/data_set.h"

namespace braid {

struct PrepareRequest {
  std::string path;                                              // a folder, or a JSONL file, which only gets an index
  std::vector<std::pair<std::string, double>> ratios{};          // of splits, in shards; relative to their sum
  std::vector<std::pair<std::string, std::string>> patterns{};   // of splits: regular expressions for shard names
  bool shuffle = false;                                          // the shards, before they are split by `ratios`
  bool force = false;                                            // also if the folder is prepared already
  bool finishes_writing = false;                                 // the last step of the writer of an unfinished folder
  std::string sample_type{};                                     // empty: a crude data set, whose parts the recipe maps
  std::vector<std::pair<std::string, std::string>> field_map{};  // field, source
  std::function<void(std::int64_t done, std::int64_t total)> progress{};  // in shards
};

struct PreparedSplit {
  std::string name;
  std::int64_t shards = 0, samples = 0;  // without those that are excluded
};

struct Prepared {
  std::int64_t shards = 0, samples = 0;
  std::vector<std::string> parts{};  // names of parts: at most 50, and those of the field map
  std::vector<PreparedSplit> splits{};
  std::vector<std::string> unused_shards{};                // in no split, and not excluded
  std::int64_t excluded_shards = 0, excluded_samples = 0;  // samples of shards that are not excluded
  bool kept_dataset_yaml = false, kept_splits = false;
  bool has_key_index = false;  // index.sqlite, which a build without SQLite does not write
  std::vector<std::string> warnings{};
  static constexpr std::size_t kMostShardWarnings = 20;  // of shards that look cut
};

// Existing splits are kept unless the request asks for others; their list of excluded shards and samples is always
// kept. All shards are scanned before anything is replaced, so a failed scan changes nothing. Complete files replace
// old ones; .info.json, which marks a folder as prepared, is removed first and written last, so an interrupted call can
// be repeated, which also removes the temporary files that it left. ConfigError for requests that make no sense,
// DataError for damaged shards, for shards with fewer samples than their old index, and for repeated keys.
Prepared prepare_data_set(const PrepareRequest& request);

// Cuts splits as Energon does: by ratio of shards, rounded down at each cut. Where that leaves a split empty, each gets
// a shard if there are enough, and otherwise those with the largest ratios. ConfigError when a pattern matches nothing.
Splits cut_splits(const PrepareRequest& request, const std::vector<std::string>& shards);

}  // namespace braid
