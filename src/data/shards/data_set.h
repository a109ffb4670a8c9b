// What a path given to training stands for: a data set, or a metadataset, which is a YAML file that blends several data
// sets and metadatasets. The result is a flat list of data sets.
//
// A data set is a folder of tar shards that `braid data prepare` or Energon has prepared, a JSONL file with its index,
// or the .bin file of Megatron's indexed text, whose documents are its samples. split.yaml says which shards belong to
// a split, dataset.yaml which parts of a sample become which fields.
#pragma once

#include <nlohmann/json.hpp>
#include "base/error.h"
#include "data/shards/shard.h"

namespace braid {

inline constexpr const char* kMetaFolder = ".nv-meta";
// A file in a folder of shards that is there until all of them are written. Such a folder is not prepared.
inline constexpr const char* kUnfinishedMark = ".unfinished";
void refuse_unfinished(const std::string& folder);  // ConfigError

// What a folder without tar files holds, and how it becomes a data set. Also looks into folders below, up to a limited
// number of files.
Problem without_tar_files(const std::string& folder);

enum class PathKind { Folder, Jsonl, Metadataset, IndexedText };

// ConfigError when it is none of them.
PathKind kind_of_path(const std::string& path);
inline bool has_splits(PathKind kind) { return kind == PathKind::Folder || kind == PathKind::Metadataset; }

using Splits = std::vector<std::pair<std::string, std::vector<std::string>>>;  // names, and those of their shards
struct SplitFile {
  Splits splits{};                     // without the excluded shards
  std::vector<std::string> exclude{};  // as written, where braces stand for several names
  std::set<std::string> excluded{};    // the names: SHARD, or SHARD/KEY for one sample
};
// split.yaml or split.json. Empty if a folder has neither.
SplitFile read_split_file(const std::string& folder);

// The shards of one split, in the order of split.yaml, which numbers the samples.
struct DataSet {
  std::string path;
  std::string split;
  std::vector<Shard> shards{};
  std::vector<std::int64_t> starts{};                           // of each shard's samples; then their total
  std::set<std::pair<std::uint32_t, std::int64_t>> excluded{};  // (shard, index in it): counted but never emitted

  // Names in `exclude` that are no shard of the folder, and no sample of a shard of this split.
  std::set<std::string> unknown_excludes{};

  std::string contents{};  // a hash that read_contents() gives; empty: not read

  std::int64_t samples() const { return starts.back(); }
  std::uint32_t shard_of(std::int64_t sample) const {
    return static_cast<std::uint32_t>(std::upper_bound(starts.begin(), starts.end(), sample) - starts.begin() - 1);
  }
  std::uint64_t fingerprint() const;  // of the shards' names, counts and contents, and of what is excluded
};

// `split_config`: the file below .nv-meta to use instead of split.yaml. JSONL files and indexed text have no splits.
DataSet open_data_set(const std::string& path, const std::string& split,
                      const std::optional<std::string>& split_config = std::nullopt);

// A warning if there are any: DataSet::unknown_excludes, of one or several splits.
std::vector<std::string> exclude_warnings(const std::string& path, const std::set<std::string>& unknown);

// "json[0][value],txt": the first alternative that the sample has. Each is a part, then keys or indices into its JSON.
struct FieldSource {
  std::vector<std::vector<std::string>> alternatives;
};
FieldSource parse_field_source(std::string_view text, const std::string& where);  // ConfigError

// A whole part as stored, or a value within a JSON part.
using FieldValue = std::variant<const SamplePart*, nlohmann::ordered_json>;
// Returns nothing when no alternative is in the sample. DataError, naming the part, for a part that is not JSON.
std::optional<FieldValue> find_field(const Sample& sample, const FieldSource& source);
// The same, but DataError when no alternative is in the sample.
FieldValue field_value(const Sample& sample, const FieldSource& source);
// "its parts are 'b.jpg', 'b.txt'", and why a key with a dot has no part `jpg`.
std::string part_names(const Sample& sample);

// What dataset.yaml says.
struct SampleSpec {
  std::string sample_type = "CrudeSample";                       // without its module
  std::vector<std::pair<std::string, FieldSource>> field_map{};  // empty: the recipe maps the parts
  std::optional<std::vector<std::string>> part_filter{};         // the only parts to read; nothing: all
  std::optional<std::int64_t> parallel_shard_iters{}, max_samples_per_sequence{};
  std::string file{};                     // the dataset.yaml
  bool has_ids = false;                   // samples are token ids
  std::optional<Problem> needs_python{};  // why samples cannot be read; their order is still known
};
// `dataset_config`: the file below .nv-meta to use instead of dataset.yaml.
SampleSpec read_sample_spec(const std::string& data_set, const std::optional<std::string>& dataset_config);
// "CaptioningSample (image: jpg, caption: json[text],txt)": the type and the fields.
std::string mapping_text(const SampleSpec& spec);

// Energon's types of samples that can become conversations: the fields that each of them needs, and those it may have.
struct SampleType {
  std::string name;
  std::vector<std::string> fields, optional_fields;
};
const SampleType* find_sample_type(std::string_view name);  // null if it is none of them
std::string sample_type_names();                            // "CaptioningSample, OCRSample, ..."

// A consecutive range of a data set's samples: first `absolute` (the end may be open), then a share of what is left.
struct Subset {
  std::optional<std::pair<std::int64_t, std::optional<std::int64_t>>> absolute{};
  std::pair<double, double> share{0, 1};

  // The range among `samples` samples; ConfigError (with `where`) when it reaches beyond them.
  std::pair<std::int64_t, std::int64_t> range(std::int64_t samples, const std::string& where) const;
};

// How often slices are reshuffled: over this many epochs at once; -1 draws with replacement; nothing keeps their order.
using ShuffleEpochs = std::optional<std::int64_t>;

struct Leaf {
  DataSet data{};
  SampleSpec spec{};
  double weight = 1;       // relative, in a blend by weight
  double repetitions = 1;  // per epoch, in a blend by repetitions
  Subset subset{};
  ShuffleEpochs shuffle_epochs = 1;
};

enum class BlendMode { Single, Weights, Repetitions };

struct Blend {
  BlendMode mode = BlendMode::Single;
  std::vector<Leaf> leaves{};
};

// ConfigError for what Braid does not support (join, aux) and what does not make sense, with the place in the YAML, and
// for an epoch of more than 2^50 samples, repetitions included.
std::shared_ptr<const Blend> open_blend(const std::string& path, const std::string& split);

}  // namespace braid
