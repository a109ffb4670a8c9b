#include "samples/conversation_builder.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "samples/known_names.h"
#include "text/written_fields.h"

namespace braid {
namespace {

using json = nlohmann::ordered_json;  // chat templates write keys in the order of the file

// "img/0001.left.png" is part "left.png" or, if there is no such part, "png".
const SamplePart& part_named(const Sample& sample, const std::string& name) {
  if (const SamplePart* part = sample.find(name)) return *part;
  const std::string file = name.substr(name.rfind('/') + 1);
  if (const std::size_t dot = file.find('.'); dot != file.npos)
    if (const SamplePart* part = sample.find(file.substr(dot + 1))) return *part;
  if (const SamplePart* part = sample.find(last_extension(file))) return *part;
  throw DataError(fmt::format("there is no part {} for a picture; {}", in_quotes(name), part_names(sample)));
}

std::string role_of(const std::string& word) {
  if (word == "human" || word == "user") return "user";
  if (word == "gpt" || word == "assistant" || word == "model") return "assistant";
  if (word == "system" || word == "tool") return word;
  throw DataError(fmt::format("a turn is of the unknown role {}", in_quotes(word)));
}

constexpr int kDeepest = 32;  // of JSON for a chat template, which walks it recursively

// DataError if a chat template could not write the value as Python would.
void check_template_value(const json& value, const std::string& key, int depth = 0) {
  if (depth > kDeepest) throw DataError(fmt::format("its {} are nested too deep", in_quotes(key)));
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    throw DataError(fmt::format("a number in its {} has more than 63 bits", in_quotes(key)));
  if (value.is_structured())
    for (const json& item : value) check_template_value(item, key, depth + 1);
}

bool is_learned(const json& turn) {
  const json* weight = find_any(turn, {"weight"});
  if (!weight || *weight == 1 || *weight == true) return true;
  if (*weight == 0 || *weight == false) return false;
  throw DataError(fmt::format("a turn has the weight {}; only 0 (not learned) and 1 are supported",
                              weight->is_structured() ? weight->type_name() : weight->dump()));
}

// The keys of a turn that are for the chat template.
json fields_of(const json& turn, const json* role, const json* said) {
  json fields = json::object();
  for (const auto& [key, value] : turn.items()) {
    if (&value == role || &value == said || key == "weight" || value.is_null()) continue;
    check_template_value(value, key);
    fields[key] = value;
  }
  return fields;
}

bool says_anything(const json& fields) {
  for (const auto& [key, value] : fields.items())
    if (says_something(key) && !is_empty_value(value)) return true;
  return false;
}

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + word.size())) ++found;
  return found;
}

}  // namespace

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

std::string ConversationBuilder::first_answer(const json& value) {
  if (value.is_array() && value.empty()) throw DataError("the list of answers is empty");
  if (value.is_array() && value.size() > 1) leave_out("answers after the first");
  return text_of(value.is_array() ? value.front() : value, "the answer");
}

void ConversationBuilder::add_pictures(const FieldValue& value) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return add_part(**part);
  add_named_pictures(std::get<json>(value));
}

void ConversationBuilder::add_named_pictures(const json& names) {
  if (names.is_string()) return add_part(part_named(sample_, names.get<std::string>()));
  if (!names.is_array()) throw DataError("the field of pictures is neither a part nor a list of names");
  for (const json& name : names) add_part(part_named(sample_, text_of(name, "the name of a picture")));
}

void ConversationBuilder::add_picture_parts() {
  for (const SamplePart& part : sample_.parts) {
    if (is_unread_picture_part(part.name))
      throw DataError(
          fmt::format("its part {} is a picture in a format that Braid does not read; convert it to JPEG, "
                      "PNG or WebP",
                      in_quotes(part.name)));
    if (is_picture_part(part.name)) add_part(part);
  }
}

void ConversationBuilder::refuse_sound_and_video() const {
  for (const SamplePart& part : sample_.parts)
    if (is_sound_or_video_part(part.name))
      throw DataError(
          fmt::format("its part {} is sound or video, which no encoder takes from a data set", in_quotes(part.name)));
}

void ConversationBuilder::add_turns(const json& turns) {
  if (!turns.is_array()) throw DataError("the conversation is not a list");
  for (const json& turn : turns) add_turn(turn);
}

void ConversationBuilder::add_turn(const json& turn) {
  if (!turn.is_object()) throw DataError("a turn of the conversation is not an object");
  const json* role = find_any(turn, {"role", "from", "sender"});
  const json* said = find_any(turn, {"content", "value", "text", "fragments"});
  json fields = fields_of(turn, role, said);
  if (!role || (!said && !says_anything(fields)))
    throw DataError("a turn needs a role (role, from, sender) and a text (content, value, text)");
  std::string text = !said ? "" : said->is_array() ? joined(*said) : text_of(*said, "a turn");
  say(role_of(text_of(*role, "a role")), std::move(text));
  ChatTurn& last = conversation_.turns.back();
  last.is_learned = is_learned(turn);
  if (fields.empty()) return;
  if (last.text.empty() && (said || turn.contains("content"))) fields["content"] = said ? json("") : json();
  last.fields = std::make_shared<const json>(std::move(fields));
}

void ConversationBuilder::add_tools(const json& tools) {
  if (tools.is_string()) {
    const json parsed = json::parse(tools.get<std::string>(), nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_array()) throw DataError("its tools are a text that is not a JSON list");
    return add_tools(parsed);
  }
  const auto is_tool = [](const json& tool) { return tool.is_object(); };
  if (!tools.is_array() || !std::all_of(tools.begin(), tools.end(), is_tool))
    throw DataError("its tools are not a list of objects");
  check_template_value(tools, "tools");
  conversation_.tools = std::make_shared<const json>(tools);
}

void ConversationBuilder::add_sequence(const json& sequence) {
  if (!sequence.is_array()) throw DataError("the sequence is not a list");
  say("", joined(sequence));
}

void ConversationBuilder::add_answer(std::string question, std::string answer) {
  say("user", std::move(question));
  say("assistant", std::move(answer));
}

void ConversationBuilder::add_choices(const std::string& question, const json& choices, std::int64_t right) {
  if (!choices.is_array() || right < 0 || right >= std::ssize(choices) || choices.size() > 26)
    throw DataError("the choices are not a list of at most 26 that has the right one");
  std::string asked = question + "\n";
  for (std::size_t i = 0; i < choices.size(); ++i)
    asked += fmt::format("{}. {}\n", static_cast<char>('A' + i), text_of(choices[i], "a choice"));
  say("user", asked + "Answer with the option's letter from the given choices directly.");
  say("assistant", std::string(1, static_cast<char>('A' + right)));
}

Conversation ConversationBuilder::finish() {
  if (conversation_.turns.empty())
    throw DataError(fmt::format("the sample has neither turns nor text; {}", part_names(sample_)));
  refuse_other_tags();
  std::size_t tags = 0;
  for (const ChatTurn& turn : conversation_.turns) {
    const std::size_t here = count(turn.text, kPictureTag);
    if (here > 0 && turn.role == "assistant") throw DataError("an answer has a picture");
    tags += here;
  }
  const std::size_t pictures = conversation_.pictures.size();
  if (tags > pictures)
    throw DataError(fmt::format("its texts have {} times {}, but there {} {}", tags, kPictureTag,
                                pictures == 1 ? "is" : "are", counted(static_cast<std::int64_t>(pictures), "picture")));
  std::string missing;
  for (; tags < pictures; ++tags) missing += std::string(kPictureTag) + "\n";
  for (ChatTurn& turn : conversation_.turns)
    if (turn.role == "user" || turn.role.empty()) {
      turn.text.insert(0, missing);
      break;
    }
  for (const SamplePart& part : sample_.parts)
    if (!contains(used_parts_, part.name)) leave_out("part " + part.name);
  return std::move(conversation_);
}

// Such a tag is the place of a video or a sound. An answer, a tool or a plain text may speak of HTML.
void ConversationBuilder::refuse_other_tags() const {
  for (const ChatTurn& turn : conversation_.turns)
    for (const char* tag : {"<video>", "<audio>"})
      if ((turn.role == "user" || turn.role == "system") && turn.text.find(tag) != turn.text.npos)
        throw DataError(fmt::format("its text has {}, but no encoder takes sound or video from a data set", tag));
}

// A list of texts, and of objects with a text or a picture: {"type": "text", "text": ..}, {"t": "image", "value":
// ..}.
std::string ConversationBuilder::joined(const json& fragments) {
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
    for (const auto& [key, other] : fragment.items())
      if (&other != kind && &other != value && !is_empty_value(other) && !is_metadata_key(key))
        leave_out("fragment." + key);
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

}  // namespace braid
