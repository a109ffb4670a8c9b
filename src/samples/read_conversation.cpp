#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/strings.h"
#include "samples/conversation.h"
#include "samples/conversation_builder.h"

namespace braid {
namespace {

using json = nlohmann::ordered_json;  // chat templates write keys in the order of the file

std::string text_in(const FieldValue& value, const char* what) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return std::string((*part)->bytes);
  return text_of(std::get<json>(value), what);
}

std::string answer_in(const FieldValue& value) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return std::string((*part)->bytes);
  return answer_of(std::get<json>(value));
}

json json_in(FieldValue value, const char* what) {
  if (auto* parsed = std::get_if<json>(&value)) return std::move(*parsed);
  json parsed = json::parse(std::get<const SamplePart*>(value)->bytes, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) throw DataError(fmt::format("{} is not valid JSON", what));
  return parsed;
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
  for (const char* name : {"image", "images"})
    if (const FieldSource* source = fields.source(name)) builder.add_pictures(field_value(sample, *source));
  const std::string& type = spec.sample_type;
  if (type == "CaptioningSample") {
    builder.add_answer("", fields.text("caption"));
  } else if (type == "OCRSample") {
    builder.add_answer("", fields.text("text"));
  } else if (type == "VQASample") {
    builder.add_answer(fields.text("context"), answer_in(fields.value("answers")));
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
  return builder.finish();
}

Conversation read_by_recipe(const Sample& sample, const SampleFields& fields) {
  ConversationBuilder builder(sample);
  const auto value = [&](const std::string& field) {
    return field_value(sample, parse_field_source(field, "data.fields"));
  };
  // A data set may have samples without pictures among others.
  if (!fields.images.empty())
    if (const auto pictures = find_field(sample, parse_field_source(fields.images, "data.fields.images")))
      builder.add_pictures(*pictures);
  if (!fields.conversation.empty()) {
    builder.add_turns(json_in(value(fields.conversation), "the conversation"));
  } else if (!fields.question.empty()) {
    builder.add_answer(text_in(value(fields.question), "the question"), answer_in(value(fields.answer)));
  } else if (!fields.caption.empty()) {
    builder.add_answer("", answer_in(value(fields.caption)));
  } else {
    builder.say("", text_in(value(fields.text), "the text"));
  }
  return builder.finish();
}

// The usual names. A sample without a part `json` is a picture with its caption in `txt`, or plain text.
Conversation read_by_usual_names(const Sample& sample) {
  ConversationBuilder builder(sample);
  const SamplePart* part = sample.find("json");
  const json root = part ? json_in(part, "its part 'json'") : json::object();
  const json* turns = root.is_array()    ? &root
                      : root.is_object() ? find_any(root, {"conversations", "conversation", "messages", "texts"})
                                         : nullptr;
  const auto named = [&](const char* key) { return root.is_object() ? find_any(root, {key}) : nullptr; };
  const bool names_pictures = turns && std::any_of(turns->begin(), turns->end(), [](const json& turn) {
                                return turn.is_object() && find_any(turn, {"fragments"});
                              });
  if (const json* images = named("images"); images && images->is_array())
    builder.add_named_pictures(*images);
  else if (!names_pictures)
    builder.add_picture_parts();
  if (const json* tools = named("tools")) builder.add_tools(*tools);
  if (turns) {
    builder.add_turns(*turns);
  } else if (named("question") && named("answer")) {
    builder.add_answer(text_of(*named("question"), "the question"), answer_of(*named("answer")));
  } else if (named("caption")) {
    builder.add_answer("", answer_of(*named("caption")));
  } else if (named("text")) {
    builder.say("", text_of(*named("text"), "the text"));
  } else if (const SamplePart* text = sample.find("txt")) {
    const bool is_caption = std::any_of(sample.parts.begin(), sample.parts.end(),
                                        [](const SamplePart& other) { return is_picture_part(other.name); });
    is_caption ? builder.add_answer("", std::string(text->bytes)) : builder.say("", std::string(text->bytes));
  }
  return builder.finish();
}

bool maps_texts(const SampleFields& fields) {
  return !(fields.conversation + fields.question + fields.caption + fields.text).empty();
}

// A sample has one kind of text.
std::vector<Problem> problems_of(const SampleFields& fields) {
  if (!maps_texts(fields) && !fields.images.empty())
    return {{"the recipe maps pictures, but no text", "data.fields.images",
             "also map the text: data.fields.conversation, question and answer, caption or text"}};
  std::vector<std::string> texts;
  if (!fields.conversation.empty()) texts.emplace_back("data.fields.conversation");
  if (!fields.question.empty()) texts.emplace_back("data.fields.question");
  if (!fields.caption.empty()) texts.emplace_back("data.fields.caption");
  if (!fields.text.empty()) texts.emplace_back("data.fields.text");
  if (texts.size() < 2) return {};
  return {{fmt::format("the recipe maps {} kinds of text, but a sample has one", texts.size()),
           fmt::format("{}", fmt::join(texts, " ")), "keep one of them"}};
}

}  // namespace

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

Conversation read_conversation(const Sample& sample, const SampleSpec& spec, const SampleFields& fields) {
  if (maps_texts(fields)) return read_by_recipe(sample, fields);
  return spec.field_map.empty() ? read_by_usual_names(sample) : read_typed(sample, spec);
}

}  // namespace braid
