#include "samples/conversation_builder.h"

#include <algorithm>
#include <array>

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

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + word.size())) ++found;
  return found;
}

}  // namespace

bool is_picture_part(std::string_view part) {
  return std::find(kPictureParts.begin(), kPictureParts.end(), last_extension(part)) != kPictureParts.end();
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

std::string answer_of(const json& value) {
  if (value.is_array() && value.empty()) throw DataError("the list of answers is empty");
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
  for (const SamplePart& part : sample_.parts)
    if (is_picture_part(part.name)) add_part(part);
}

void ConversationBuilder::add_turns(const json& turns) {
  if (!turns.is_array()) throw DataError("the conversation is not a list");
  for (const json& turn : turns) {
    if (!turn.is_object()) throw DataError("a turn of the conversation is not an object");
    const json* role = find_any(turn, {"role", "from", "sender"});
    const json* said = find_any(turn, {"content", "value", "text", "fragments"});
    if (!role || !said) throw DataError("a turn needs a role (role, from, sender) and a text (content, value, text)");
    say(role_of(text_of(*role, "a role")), said->is_array() ? joined(*said) : text_of(*said, "a turn"));
  }
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
  if (conversation_.turns.empty()) throw DataError("the sample has neither turns nor text");
  std::size_t tags = 0;
  for (const Turn& turn : conversation_.turns) {
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
  for (Turn& turn : conversation_.turns)
    if (turn.role == "user" || turn.role.empty()) {
      turn.text.insert(0, missing);
      break;
    }
  return std::move(conversation_);
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
