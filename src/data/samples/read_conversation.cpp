#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "data/samples/conversation.h"
#include "data/samples/conversation_builder.h"
#include "data/samples/sample_keys.h"
#include "data/samples/sample_pictures.h"
#include "data/text/chat.h"

namespace braid {
namespace {

using json = nlohmann::ordered_json;  // chat templates write keys in the order of the file

std::string text_in(const FieldValue& value, const char* what) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return std::string((*part)->bytes);
  return text_of(std::get<json>(value), what);
}

std::string answer_in(const FieldValue& value, ConversationBuilder& builder) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return std::string((*part)->bytes);
  return builder.first_answer(std::get<json>(value));
}

json json_in(FieldValue value, const char* what) {
  if (auto* parsed = std::get_if<json>(&value)) return std::move(*parsed);
  json parsed = json::parse(std::get<const SamplePart*>(value)->bytes, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) throw DataError(fmt::format("{} is not valid JSON", what));
  return parsed;
}

// Leaves out the parts, and the keys of JSON parts, that none of these sources names.
void leave_out_unmapped(const Sample& sample, const std::vector<FieldSource>& sources, ConversationBuilder& builder) {
  std::map<std::string, std::set<std::string>> keys;  // by part; no keys: the whole part
  for (const FieldSource& source : sources)
    for (const auto& path : source.alternatives) {
      builder.use_part(path[0]);
      const auto [part, is_new] = keys.try_emplace(path[0]);
      if (path.size() == 1) part->second.clear();
      if (path.size() > 1 && (is_new || !part->second.empty())) part->second.insert(path[1]);
    }
  for (const auto& [name, used] : keys) {
    const SamplePart* part = used.empty() ? nullptr : sample.find(name);
    const json root = part ? json_in(part, "a part") : json();
    if (!root.is_object()) continue;
    for (const auto& [key, value] : root.items())
      if (!used.contains(key)) builder.leave_out_key(key, value);
  }
}

// The fields of a typed sample, by Energon's names.
class TypedFields {
 public:
  TypedFields(const Sample& sample, const SampleSpec& spec) : sample_(sample), spec_(spec) {}

  const FieldSource* source(std::string_view name) const {
    for (const auto& [field, source] : spec_.field_map)
      if (field == name) return &source;
    return nullptr;
  }
  // What the sample's type does not need, or what is `overruled`, changes no conversation.
  void leave_out_others(ConversationBuilder& builder, const std::set<const FieldSource*>& overruled) const {
    std::vector<std::string> used = find_sample_type(spec_.sample_type)->fields;
    used.insert(used.end(), {"image", "images", "correct_choice_idx"});
    std::vector<FieldSource> sources;
    for (const auto& [field, source] : spec_.field_map) {
      if (!overruled.contains(&source)) sources.push_back(source);
      const std::optional<FieldValue> value = contains(used, field) ? std::nullopt : find_field(sample_, source);
      if (!value) continue;
      static const json kAPart = true;
      const json* parsed = std::get_if<json>(&*value);
      refuse_sound_or_video(field, parsed ? *parsed : kAPart);
      builder.leave_out_key(field, parsed ? *parsed : kAPart);
    }
    leave_out_unmapped(sample_, sources, builder);
  }
  FieldValue value(std::string_view name) const {
    const FieldSource* found = source(name);
    if (!found) throw DataError(fmt::format("the field_map does not name {}", in_quotes(std::string(name))));
    return field_value(sample_, *found);
  }
  std::string text(const char* name) const { return text_in(value(name), name); }

 private:
  const Sample& sample_;
  const SampleSpec& spec_;
};

Conversation read_typed(const Sample& sample, const SampleSpec& spec) {
  const TypedFields fields(sample, spec);
  ConversationBuilder builder(sample);
  const std::string& type = spec.sample_type;
  if (type == "CaptioningSample") {
    builder.add_caption(fields.text("caption"));
  } else if (type == "OCRSample") {
    builder.add_answer("", fields.text("text"));
  } else if (type == "VQASample") {
    builder.add_answer(fields.text("context"), answer_in(fields.value("answers"), builder));
  } else if (type == "MultiChoiceVQASample") {
    const json right =
        fields.source("correct_choice_idx") ? json_in(fields.value("correct_choice_idx"), "the choice") : json(0);
    builder.add_choices(fields.text("context"), json_in(fields.value("choices"), "the list of choices"),
                        right.is_number_integer() ? right.get<std::int64_t>() : -1);
  } else if (type == "TextSample") {
    builder.say("", fields.text("text"));
  } else if (type == "InterleavedSample") {
    builder.add_sequence(json_in(fields.value("sequence"), "the sequence"));
  } else {  // SimilarityInterleavedSample
    builder.add_turns(json_in(fields.value("texts"), "the list of texts"));
  }
  std::set<const FieldSource*> overruled;
  for (const char* name : {"image", "images"})
    if (const FieldSource* source = fields.source(name)) {
      const bool is_needed = builder.pictures().named() == 0;
      const auto value = is_needed ? field_value(sample, *source) : find_field(sample, *source);
      if (value && !builder.add_pictures(*value)) overruled.insert(source);
    }
  fields.leave_out_others(builder, overruled);
  return builder.finish();
}

Conversation read_by_recipe(const Sample& sample, const SampleFields& fields) {
  ConversationBuilder builder(sample);
  builder.refuse_sound_and_video_parts();
  const auto value = [&](const std::string& field) {
    return field_value(sample, parse_field_source(field, "data.fields"));
  };
  if (!fields.tools.empty())
    if (auto tools = find_field(sample, parse_field_source(fields.tools, "data.fields.tools")))
      builder.add_tools(json_in(*std::move(tools), "the list of tools"));
  if (!fields.conversation.empty()) {
    builder.add_turns(json_in(value(fields.conversation), "the conversation"));
  } else if (!fields.question.empty()) {
    builder.add_answer(text_in(value(fields.question), "the question"), answer_in(value(fields.answer), builder));
  } else if (!fields.caption.empty()) {
    builder.add_caption(answer_in(value(fields.caption), builder));
  } else {
    builder.say("", text_in(value(fields.text), "the text"));
  }
  std::vector<FieldSource> sources;
  for (const auto& [key, field] : mapped_fields(fields)) {
    sources.push_back(parse_field_source(field, fmt::format("data.fields.{}", key)));
    // A data set may have samples without pictures among others.
    const auto pictures = field == fields.images ? find_field(sample, sources.back()) : std::nullopt;
    if (pictures && !builder.add_pictures(*pictures)) sources.pop_back();
  }
  leave_out_unmapped(sample, sources, builder);
  Conversation conversation = builder.finish();
  if (!fields.conversation.empty() && contains(conversation.unused, "tools"))
    throw DataError("it has tools, which the recipe does not map; set data.fields.tools=json[tools]");
  return conversation;
}

// The JSON of a sample that is read by the usual names. It remembers which keys were used.
class Record {
 public:
  explicit Record(json root) : root_(std::move(root)) {}

  // The first of these keys that has a value; null if there is none.
  const json* find(std::initializer_list<const char*> keys) const {
    return root_.is_object() ? find_any(root_, keys) : nullptr;
  }
  const json* use(std::initializer_list<const char*> keys) {
    const json* found = find(keys);
    if (found) used_.insert(found);
    return found;
  }
  void use(const json* value) { used_.insert(value); }
  const json* picture_list() const { return root_.is_object() ? find_picture_list(root_) : nullptr; }
  const json* turns() {
    return root_.is_array() ? &root_ : use({"conversations", "conversation", "messages", "texts"});
  }

  void leave_out_others(ConversationBuilder& builder) const {
    if (!root_.is_object()) return;
    for (const auto& [key, value] : root_.items()) {
      if (used_.contains(&value)) continue;
      refuse_sound_or_video(key, value);
      builder.leave_out_key(key, value);
    }
  }

 private:
  const json root_;
  std::set<const json*> used_{};
};

// The turns name the pictures, or JSON beside the turns does; otherwise they are all parts that are pictures.
void add_pictures(Record& record, ConversationBuilder& builder) {
  SamplePictures& pictures = builder.pictures();
  const json* list = record.picture_list();
  if (list && (pictures.named() == 0 || pictures.is_same_list(*list))) record.use(list);
  if (pictures.named() > 0) return;
  list ? pictures.add_list(*list) : pictures.add_all_parts();
}

void add_texts(const Sample& sample, Record& record, ConversationBuilder& builder) {
  if (record.find({"question"}) && record.find({"answer"})) {
    builder.add_answer(text_of(*record.use({"question"}), "the question"),
                       builder.first_answer(*record.use({"answer"})));
  } else if (const json* caption = record.use({"caption"})) {
    builder.add_caption(builder.first_answer(*caption));
  } else if (const json* plain = record.use({"text"})) {
    builder.say("", text_of(*plain, "the text"));
  } else if (const SamplePart* text = sample.find("txt")) {
    builder.use_part("txt");
    !builder.pictures().empty() ? builder.add_caption(std::string(text->bytes))
                                : builder.say("", std::string(text->bytes));
  }
}

// The usual names. A sample without a part `json` is a picture with its caption in `txt`, or plain text.
Conversation read_by_usual_names(const Sample& sample) {
  ConversationBuilder builder(sample);
  builder.refuse_sound_and_video_parts();
  builder.use_part("json");
  const SamplePart* part = sample.find("json");
  Record record(part ? json_in(part, "its part 'json'") : json::object());
  const json* turns = record.turns();
  if (turns) builder.add_turns(*turns);
  add_pictures(record, builder);
  if (const json* tools = record.use({"tools"})) builder.add_tools(*tools);
  if (!turns) add_texts(sample, record, builder);
  record.leave_out_others(builder);
  return builder.finish();
}

bool maps_texts(const SampleFields& fields) {
  return !(fields.conversation + fields.question + fields.caption + fields.text).empty();
}

// A sample has one kind of text.
std::vector<Problem> problems_of(const SampleFields& fields) {
  const auto mapped = mapped_fields(fields);
  if (!maps_texts(fields) && !mapped.empty())
    return {{fmt::format("the recipe maps {}, but no text", mapped.front().first),
             fmt::format("data.fields.{}", mapped.front().first),
             "also map the text: data.fields.conversation, question and answer, caption or text"}};
  std::vector<std::string> texts;
  for (const auto& [key, field] : mapped)
    if (contains({"conversation", "question", "caption", "text"}, key))
      texts.push_back(fmt::format("data.fields.{}", key));
  if (texts.size() < 2) return {};
  return {{fmt::format("the recipe maps {} kinds of text, but a sample has one", texts.size()),
           fmt::format("{}", fmt::join(texts, " ")), "keep one of them"}};
}

}  // namespace

std::vector<std::pair<const char*, std::string>> mapped_fields(const SampleFields& fields) {
  std::vector<std::pair<const char*, std::string>> mapped = {
      {"images", fields.images}, {"conversation", fields.conversation}, {"question", fields.question},
      {"answer", fields.answer}, {"caption", fields.caption},           {"text", fields.text},
      {"tools", fields.tools}};
  std::erase_if(mapped, [](const auto& field) { return field.second.empty(); });
  return mapped;
}

std::vector<Problem> unreadable_leaves(const Blend& blend, const SampleFields& fields) {
  std::vector<Problem> problems = problems_of(fields);
  if (maps_texts(fields)) return problems;
  for (const Leaf& leaf : blend.leaves) {
    if (leaf.spec.needs_python) problems.push_back(*leaf.spec.needs_python);
    if (!leaf.spec.needs_python && !leaf.spec.field_map.empty() && !find_sample_type(leaf.spec.sample_type))
      problems.push_back({fmt::format("{} has samples of type {}", leaf.data.path, leaf.spec.sample_type), "data.path",
                          fmt::format("known types are {}", sample_type_names())});
  }
  return problems;
}

std::vector<std::pair<std::string, std::string>> mappings_of(const Blend& blend, const SampleFields& fields) {
  std::vector<std::pair<std::string, std::string>> mappings;
  for (const Leaf& leaf : blend.leaves) {
    const auto& parts = leaf.spec.part_filter;
    mappings.emplace_back(fmt::format("the mapping in {}", in_quotes(leaf.spec.file)),
                          (maps_texts(fields) ? "that of data.fields" : mapping_text(leaf.spec)) +
                              (parts ? fmt::format(", only the parts {}", fmt::join(*parts, ", ")) : ""));
  }
  return mappings;
}

Conversation read_conversation(const Sample& sample, const SampleSpec& spec, const SampleFields& fields) {
  if (maps_texts(fields)) return read_by_recipe(sample, fields);
  return spec.field_map.empty() ? read_by_usual_names(sample) : read_typed(sample, spec);
}

}  // namespace braid
