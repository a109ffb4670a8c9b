// What dataset.yaml says about the samples of a data set: which parts become which fields.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "data/shards/shard.h"

namespace braid {

// "json[0][value],txt": the first alternative that the sample has. Each is a part, then keys or indices into its JSON.
struct FieldSource {
  std::vector<std::vector<std::string>> alternatives;
};
FieldSource parse_field_source(std::string_view text, const std::string& where);  // ConfigError
std::string to_text(const FieldSource& source);                                   // as field maps write it

// A whole part as stored, or a value within a JSON part.
using FieldValue = std::variant<const SamplePart*, nlohmann::ordered_json>;
// Returns nothing when no alternative is in the sample. DataError, naming the part, for a part that is not JSON.
std::optional<FieldValue> find_field(const Sample& sample, const FieldSource& source);
// The same, but DataError when no alternative is in the sample.
FieldValue field_value(const Sample& sample, const FieldSource& source);
// "its parts are 'b.jpg', 'b.txt'", and why a key with a dot has no part `jpg`.
std::string part_names(const Sample& sample);

struct SampleSpec {
  std::string sample_type = "CrudeSample";                       // without its module
  std::vector<std::pair<std::string, FieldSource>> field_map{};  // empty: the recipe maps the parts
  std::optional<std::vector<std::string>> part_filter{};         // the only parts to read; nothing: all
  std::optional<std::int64_t> parallel_shard_iters{}, max_samples_per_sequence{};
  std::string file{};                     // the dataset.yaml
  std::optional<Problem> needs_python{};  // why samples cannot be read; their order is still known
};

// Energon's types of samples that can become conversations: the fields that each of them needs, and those it may have.
struct SampleType {
  std::string name;
  std::vector<std::string> fields, optional_fields;
};
const SampleType* find_sample_type(std::string_view name);  // null if it is none of them
std::string sample_type_names();                            // "CaptioningSample, OCRSample, ..."

// `dataset_config`: the file below .nv-meta to use instead of dataset.yaml.
SampleSpec read_sample_spec(const std::string& data_set,
                            const std::optional<std::string>& dataset_config = std::nullopt);

// "CaptioningSample (image: jpg, caption: json[text],txt)": the type and the fields.
std::string mapping_text(const SampleSpec& spec);

}  // namespace braid
