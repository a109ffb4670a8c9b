// What dataset.yaml says about the samples of a data set: which parts become which fields.
#include "base/strings.h"
#include "data/shards/data_set.h"
#include "data/shards/document.h"

namespace braid {
namespace {

// Classes of Energon before 5.0 whose name contains the sample type.
constexpr std::string_view kTypedSuffix = "Webdataset";

const char* const kMapInstead =
    "map the parts declaratively: write `field_map: {image: jpg, caption: json[text]}` with a `sample_type` here, or "
    "set data.fields in the recipe";

void read_part_filter(const DocumentNode& filter, SampleSpec& spec) {
  if (filter.json().is_string()) {
    spec.needs_python = Problem{fmt::format("the Python function {} chooses the parts", in_quotes(filter.text())),
                                filter.where(), "list the parts: `part_filter: [jpg, json]`"};
    return;
  }
  if (!spec.field_map.empty())
    filter.fail("`part_filter` and `field_map` exclude each other", "remove part_filter: field_map names the parts");
  spec.part_filter.emplace();
  for (const DocumentNode& part : filter.items()) spec.part_filter->push_back(part.text());
}

std::optional<std::int64_t> optional_count(const DocumentNode& root, std::string_view key, std::int64_t most) {
  const auto node = root.find(key);
  if (!node) return std::nullopt;
  if (node->integer(1) > most)
    node->fail(fmt::format("{} is too large", node->integer(1)), fmt::format("use at most {}", most));
  return node->integer(1);
}

// The value that a path leads to within a part; null if there is none.
Json* walk(Json& root, const std::vector<std::string>& path) {
  Json* value = &root;
  for (std::size_t i = 1; value && i < path.size(); ++i) {
    const auto index = value->is_array() ? parse_int64(path[i]) : std::nullopt;
    const auto size = static_cast<std::int64_t>(value->size());
    if (index && *index < size && *index >= -size)
      value = &(*value)[static_cast<std::size_t>(*index < 0 ? *index + size : *index)];  // -1 is the last
    else if (const auto found = value->is_object() ? value->find(path[i]) : value->end(); found != value->end())
      value = &*found;
    else
      value = nullptr;
  }
  return value;
}

std::string path_text(const std::vector<std::string>& path) {
  std::string text = path[0];
  for (std::size_t i = 1; i < path.size(); ++i) text += fmt::format("[{}]", path[i]);
  return text;
}

const std::vector<SampleType>& sample_types() {
  static const std::vector<SampleType> types = {
      {"CaptioningSample", {"image", "caption"}, {}},
      {"OCRSample",
       {"image", "text"},
       {"block_boxes", "block_classes", "block_text", "lines_boxes", "lines_text", "words_boxes", "words_text",
        "chars_boxes", "chars_text"}},
      {"VQASample", {"image", "context", "answers"}, {"answer_weights"}},
      {"MultiChoiceVQASample", {"image", "context", "choices"}, {"correct_choice_idx"}},
      {"TextSample", {"text"}, {}},
      {"InterleavedSample", {"sequence"}, {}},
      {"SimilarityInterleavedSample",
       {"images", "texts"},
       {"audio", "video", "similarity_matrix", "matched_text_indices"}}};
  return types;
}

}  // namespace

const SampleType* find_sample_type(std::string_view name) {
  const auto found = std::ranges::find(sample_types(), name, &SampleType::name);
  return found == sample_types().end() ? nullptr : &*found;
}

std::string sample_type_names() { return joined(vector_of<std::string>(sample_types(), &SampleType::name), ", "); }

FieldSource parse_field_source(std::string_view text, const std::string& where) {
  FieldSource source;
  for (const std::string& alternative : split(text, ',')) {
    std::string_view rest = alternative;
    std::vector<std::string>& path = source.alternatives.emplace_back();
    path.emplace_back(rest.substr(0, rest.find('[')));
    rest.remove_prefix(path[0].size());
    for (std::size_t close; (close = rest.find(']')) != rest.npos && close > 1 && rest.find_last_of('[', close) == 0;) {
      path.emplace_back(rest.substr(1, close - 1));
      rest.remove_prefix(close + 1);
    }
    if (path[0].empty() || path[0].find(']') != std::string::npos || !rest.empty())
      throw ConfigError({fmt::format("{} does not name a part of a sample", in_quotes(alternative)), where,
                         "write a part and the way into its JSON: `jpg`, `json[conversations][0][value]`"});
  }
  return source;
}

std::string mapping_text(const SampleSpec& spec) {
  std::vector<std::string> fields;
  for (const auto& [field, source] : spec.field_map) {
    fields.push_back(fmt::format("{}: {}", field, joined(vector_of<std::string>(source.alternatives, path_text), ",")));
  }
  return fields.empty() ? spec.sample_type : fmt::format("{} ({})", spec.sample_type, joined(fields, ", "));
}

std::optional<FieldValue> find_field(const Sample& sample, const FieldSource& source) {
  for (const auto& path : source.alternatives) {
    const SamplePart* part = sample.find(path[0]);
    if (!part) continue;
    if (path.size() == 1) return part;
    auto root = Json::parse(part->bytes, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) throw DataError(fmt::format("its part {} is not valid JSON", in_quotes(path[0])));
    // A copy would overflow the stack if the value is nested very deep.
    if (Json* value = walk(root, path)) return std::move(*value);
  }
  return std::nullopt;
}

FieldValue field_value(const Sample& sample, const FieldSource& source) {
  if (auto value = find_field(sample, source)) return *std::move(value);
  const std::vector<std::string>& path = source.alternatives.back();
  throw DataError(
      fmt::format("it has no {}{}", in_quotes(path_text(path)), sample.find(path[0]) ? "" : "; " + part_names(sample)));
}

std::string part_names(const Sample& sample) {
  auto names = vector_of<std::string>(sample.parts, [](const SamplePart& part) { return in_quotes(part.name); });
  if (names.empty()) return "it has no parts";
  const bool has_dot = std::any_of(sample.parts.begin(), sample.parts.end(),
                                   [](const SamplePart& part) { return part.name.find('.') != part.name.npos; });
  constexpr std::size_t kMostNamed = 6;
  const std::size_t all = names.size();
  names.resize(std::min(all, kMostNamed));
  return fmt::format(
      "its parts are {}{}{}", joined(names, ", "),
      all > kMostNamed ? fmt::format(" and {} more", all - kMostNamed) : "",
      has_dot ? ": a key ends at the first dot of a file's name, so rename the files if their keys have dots" : "");
}

SampleSpec read_sample_spec(const std::string& data_set, const std::optional<std::string>& dataset_config) {
  const std::string path = std::filesystem::path(data_set) / kMetaFolder / dataset_config.value_or("dataset.yaml");
  const DocumentNode root = read_document(path);
  root.expect_keys({"__module__", "__class__", "sample_type", "field_map", "sample_loader", "part_filter", "subflavors",
                    "parallel_shard_iters", "max_samples_per_sequence"});
  SampleSpec spec{.file = path};
  const bool has_class = root.find("__class__").has_value();
  const DocumentNode type = has_class ? root : root.at("sample_type");
  const std::string module = type.at("__module__").text();
  spec.sample_type = type.at("__class__").text();
  if (module != "megatron.energon" && !module.starts_with("megatron.energon."))
    spec.needs_python = Problem{fmt::format("the class {} of the Python module {} defines the samples",
                                            in_quotes(spec.sample_type), in_quotes(module)),
                                type.where(), kMapInstead};
  const bool is_crude = has_class && spec.sample_type == "CrudeWebdataset";
  if (has_class && spec.sample_type.ends_with(kTypedSuffix))
    spec.sample_type = spec.sample_type.substr(0, spec.sample_type.size() - kTypedSuffix.size()) + "Sample";
  const auto loader = root.find("sample_loader"), map = root.find("field_map"), filter = root.find("part_filter");
  if (loader)
    spec.needs_python = Problem{fmt::format("the Python function {} loads the samples", in_quotes(loader->text())),
                                loader->where(), kMapInstead};
  if (map)
    for (const auto& [field, source] : map->entries())
      spec.field_map.emplace_back(field, parse_field_source(source.text(), source.where()));
  if (filter && !loader) read_part_filter(*filter, spec);
  if (!is_crude && spec.field_map.empty() && !spec.needs_python)
    root.fail("neither `field_map` nor the class CrudeWebdataset says what is in a sample", kMapInstead);
  spec.parallel_shard_iters = optional_count(root, "parallel_shard_iters", 4096);
  spec.max_samples_per_sequence = optional_count(root, "max_samples_per_sequence", INT32_MAX);
  return spec;
}

}  // namespace braid
