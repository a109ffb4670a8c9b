#include "samples/conversation.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr std::array kPictureParts = {"jpg", "jpeg", "png", "webp"};

std::string last_extension(std::string_view part) {
  std::string extension(part.substr(part.rfind('.') == part.npos ? 0 : part.rfind('.') + 1));
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return extension;
}

bool is_picture(std::string_view part) {
  return std::find(kPictureParts.begin(), kPictureParts.end(), last_extension(part)) != kPictureParts.end();
}

// "img/0001.left.png" is part "left.png" or, if there is no such part, "png".
const SamplePart& part_named(const Sample& sample, const std::string& name) {
  if (const SamplePart* part = sample.find(name)) return *part;
  const std::string file = name.substr(name.rfind('/') + 1);
  if (const std::size_t dot = file.find('.'); dot != file.npos)
    if (const SamplePart* part = sample.find(file.substr(dot + 1))) return *part;
  if (const SamplePart* part = sample.find(last_extension(file))) return *part;
  throw DataError(fmt::format("there is no part {} for a picture", in_quotes(name)));
}

std::string role_of(const std::string& word) {
  if (word == "human" || word == "user") return "user";
  if (word == "gpt" || word == "assistant" || word == "model") return "assistant";
  if (word == "system" || word == "tool") return word;
  throw DataError(fmt::format("a turn is of the unknown role {}", in_quotes(word)));
}

const json* find_any(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end() && !found->is_null()) return &*found;
  return nullptr;
}

std::string text_of(const json& value, const char* what) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  throw DataError(fmt::format("{} is not a text", what));
}

// JSON is passed by reference, never copied: a copy of a value that is nested very deep would overflow the stack.
std::string answer_in(const json& value) {
  if (value.is_array() && value.empty()) throw DataError("the list of answers is empty");
  return text_of(value.is_array() ? value.front() : value, "the answer");
}

std::string answer_in(const FieldValue& value) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return std::string((*part)->bytes);
  return answer_in(std::get<json>(value));
}

// Collects what the fields of one sample say.
class Reader {
 public:
  explicit Reader(const Sample& sample) : sample_(sample) {}

  // --- pictures

  void add_part(const SamplePart& part) { conversation_.pictures.push_back({part.name, part.bytes}); }

  void add_pictures(const FieldValue& value) {
    if (const auto* part = std::get_if<const SamplePart*>(&value)) return add_part(**part);
    add_named_pictures(std::get<json>(value));
  }

  void add_named_pictures(const json& names) {
    if (names.is_string()) return add_part(part_named(sample_, names.get<std::string>()));
    if (!names.is_array()) throw DataError("the field of pictures is neither a part nor a list of names");
    for (const json& name : names) add_part(part_named(sample_, text_of(name, "the name of a picture")));
  }

  void add_picture_parts() {
    for (const SamplePart& part : sample_.parts)
      if (is_picture(part.name)) add_part(part);
  }

  // --- turns

  void say(std::string role, std::string text) { conversation_.turns.push_back({std::move(role), std::move(text)}); }

  void add_turns(const json& turns) {
    if (!turns.is_array()) throw DataError("the conversation is not a list");
    for (const json& turn : turns) {
      if (!turn.is_object()) throw DataError("a turn of the conversation is not an object");
      const json* role = find_any(turn, {"role", "from", "sender"});
      const json* said = find_any(turn, {"content", "value", "text", "fragments"});
      if (!role || !said) throw DataError("a turn needs a role (role, from, sender) and a text (content, value, text)");
      say(role_of(text_of(*role, "a role")), said->is_array() ? joined(*said) : text_of(*said, "a turn"));
    }
  }

  // Texts and pictures in turn, as plain text.
  void add_sequence(const json& sequence) {
    if (!sequence.is_array()) throw DataError("the sequence is not a list");
    say("", joined(sequence));
  }

  void add_answer(std::string question, std::string answer) {
    say("user", std::move(question));
    say("assistant", std::move(answer));
  }

  void add_choices(const std::string& question, const json& choices, std::int64_t right) {
    if (!choices.is_array() || right < 0 || right >= std::ssize(choices) || choices.size() > 26)
      throw DataError("the choices are not a list of at most 26 that has the right one");
    std::string asked = question + "\n";
    for (std::size_t i = 0; i < choices.size(); ++i)
      asked += fmt::format("{}. {}\n", static_cast<char>('A' + i), text_of(choices[i], "a choice"));
    say("user", asked + "Answer with the option's letter from the given choices directly.");
    say("assistant", std::string(1, static_cast<char>('A' + right)));
  }

  // Pictures without a tag come first, in the first turn of the user.
  Conversation finish() {
    if (conversation_.turns.empty()) throw DataError("the sample has neither turns nor text");
    std::size_t tags = 0;
    for (const Turn& turn : conversation_.turns) {
      const std::size_t here = count(turn.text, kPictureTag);
      if (here > 0 && turn.role == "assistant") throw DataError("an answer has a picture");
      tags += here;
    }
    const std::size_t pictures = conversation_.pictures.size();
    if (tags > pictures)
      throw DataError(
          fmt::format("its texts have {} times {}, but there are {} pictures", tags, kPictureTag, pictures));
    std::string missing;
    for (; tags < pictures; ++tags) missing += std::string(kPictureTag) + "\n";
    for (Turn& turn : conversation_.turns)
      if (turn.role == "user" || turn.role.empty()) {
        turn.text.insert(0, missing);
        break;
      }
    return std::move(conversation_);
  }

 private:
  static std::size_t count(std::string_view text, std::string_view word) {
    std::size_t found = 0;
    for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + word.size())) ++found;
    return found;
  }

  // A list of texts, and of objects with a text or a picture: {"type": "text", "text": ..}, {"t": "image", "value":
  // ..}.
  std::string joined(const json& fragments) {
    std::string text;
    for (const json& fragment : fragments) {
      if (fragment.is_string()) {
        text += fragment.get<std::string>();
        continue;
      }
      if (!fragment.is_object()) throw DataError("a fragment of a turn is neither a text nor an object");
      const json* kind = find_any(fragment, {"type", "t"});
      const std::string name = kind ? text_of(*kind, "the type of a fragment") : "text";
      const json* value = find_any(fragment, {"value", "text", "image", "content"});
      if (name == "text" && value) {
        text += text_of(*value, "a fragment");
      } else if (name == "image") {
        if (value) add_part(part_named(sample_, text_of(*value, "the name of a picture")));
        text += kPictureTag;
      } else {
        throw DataError(fmt::format("a fragment of a turn has the unknown type {}", in_quotes(name)));
      }
    }
    return text;
  }

  const Sample& sample_;
  Conversation conversation_;
};

std::string text_in(const FieldValue& value, const char* what) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return std::string((*part)->bytes);
  return text_of(std::get<json>(value), what);
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
  Reader reader(sample);
  for (const char* name : {"image", "images"})
    if (const FieldSource* source = fields.source(name)) reader.add_pictures(field_value(sample, *source));
  const std::string& type = spec.sample_type;
  if (type == "CaptioningSample") {
    reader.add_answer("", fields.text("caption"));
  } else if (type == "OCRSample") {
    reader.add_answer("", fields.text("text"));
  } else if (type == "VQASample") {
    reader.add_answer(fields.text("context"), answer_in(fields.value("answers")));
  } else if (type == "MultiChoiceVQASample") {
    const json right =
        fields.source("correct_choice_idx") ? json_in(fields.value("correct_choice_idx"), "the choice") : json(0);
    reader.add_choices(fields.text("context"), json_in(fields.value("choices"), "the list of choices"),
                       right.is_number_integer() ? right.get<std::int64_t>() : -1);
  } else if (type == "TextSample") {
    reader.say("", fields.text("text"));
  } else if (type == "InterleavedSample") {
    reader.add_sequence(json_in(fields.value("sequence"), "the sequence"));
  } else {  // SimilarityInterleavedSample
    reader.add_turns(json_in(fields.value("texts"), "the list of texts"));
  }
  return reader.finish();
}

Conversation read_by_recipe(const Sample& sample, const SampleFields& fields) {
  Reader reader(sample);
  const auto value = [&](const std::string& field) {
    return field_value(sample, parse_field_source(field, "data.fields"));
  };
  // A data set may have samples without pictures among others.
  if (!fields.images.empty())
    if (const auto pictures = find_field(sample, parse_field_source(fields.images, "data.fields.images")))
      reader.add_pictures(*pictures);
  if (!fields.conversation.empty()) {
    reader.add_turns(json_in(value(fields.conversation), "the conversation"));
  } else if (!fields.question.empty()) {
    reader.add_answer(text_in(value(fields.question), "the question"), answer_in(value(fields.answer)));
  } else if (!fields.caption.empty()) {
    reader.add_answer("", answer_in(value(fields.caption)));
  } else {
    reader.say("", text_in(value(fields.text), "the text"));
  }
  return reader.finish();
}

// The usual names. A sample without a part `json` is a picture with its caption in `txt`, or plain text.
Conversation read_by_usual_names(const Sample& sample) {
  Reader reader(sample);
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
    reader.add_named_pictures(*images);
  else if (!names_pictures)
    reader.add_picture_parts();
  if (turns) {
    reader.add_turns(*turns);
  } else if (named("question") && named("answer")) {
    reader.add_answer(text_of(*named("question"), "the question"), answer_in(*named("answer")));
  } else if (named("caption")) {
    reader.add_answer("", answer_in(*named("caption")));
  } else if (named("text")) {
    reader.say("", text_of(*named("text"), "the text"));
  } else if (const SamplePart* text = sample.find("txt")) {
    const bool is_caption = std::any_of(sample.parts.begin(), sample.parts.end(),
                                        [](const SamplePart& other) { return is_picture(other.name); });
    is_caption ? reader.add_answer("", std::string(text->bytes)) : reader.say("", std::string(text->bytes));
  }
  return reader.finish();
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
  static const std::array kTypes = {"CaptioningSample",           "OCRSample",  "VQASample",
                                    "MultiChoiceVQASample",       "TextSample", "InterleavedSample",
                                    "SimilarityInterleavedSample"};
  std::vector<Problem> problems = problems_of(fields);
  if (maps_texts(fields)) return problems;
  for (const Leaf& leaf : blend.leaves) {
    if (leaf.spec.needs_python) problems.push_back(*leaf.spec.needs_python);
    const bool is_known = std::find(kTypes.begin(), kTypes.end(), leaf.spec.sample_type) != kTypes.end();
    if (!leaf.spec.needs_python && !leaf.spec.field_map.empty() && !is_known)
      problems.push_back({fmt::format("{} has samples of type {}", leaf.data.path, leaf.spec.sample_type), "data.path",
                          fmt::format("known types are {}", fmt::join(kTypes, ", "))});
  }
  return problems;
}

Conversation read_conversation(const Sample& sample, const SampleSpec& spec, const SampleFields& fields) {
  if (maps_texts(fields)) return read_by_recipe(sample, fields);
  return spec.field_map.empty() ? read_by_usual_names(sample) : read_typed(sample, spec);
}

}  // namespace braid
