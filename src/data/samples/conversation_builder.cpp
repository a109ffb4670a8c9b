#include "data/samples/conversation_builder.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "data/samples/sample_keys.h"
#include "data/text/chat.h"

namespace braid {
namespace {

using json = nlohmann::ordered_json;  // chat templates write keys in the order of the file

std::string role_of(const std::string& word) {
  if (word == "human" || word == "user") return "user";
  if (word == "gpt" || word == "assistant" || word == "model") return "assistant";
  if (word == "system" || word == "tool" || word == "developer") return word;
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

// Trainers have several names for the weight of a turn in the loss.
constexpr std::array kWeightKeys = {"weight", "train", "loss", "loss_mask"};

bool is_weight_key(const std::string& key) {
  return std::find(kWeightKeys.begin(), kWeightKeys.end(), key) != kWeightKeys.end();
}

bool is_learned(const json& turn) {
  if (find_any(turn, {"mask"}))
    throw DataError("a turn has the key 'mask', which trainers read in opposite ways; use weight: 0 or 1");
  bool is_learned = true;
  for (const char* key : kWeightKeys) {
    const json* weight = find_any(turn, {key});
    if (!weight || *weight == 1 || *weight == true) continue;
    if (*weight != 0 && *weight != false)
      throw DataError(fmt::format("a turn has the {} {}; only 0 (not learned) and 1 are supported", key,
                                  weight->is_structured() ? weight->type_name() : weight->dump()));
    is_learned = false;
  }
  return is_learned;
}

// The keys of a turn that are for the chat template; `used` are the values of the others.
json fields_of(const json& turn, std::initializer_list<const json*> used) {
  json fields = json::object();
  for (const auto& [key, value] : turn.items()) {
    const bool is_used = std::find(used.begin(), used.end(), &value) != used.end();
    if (is_used || is_weight_key(key) || value.is_null()) continue;
    refuse_sound_or_video(key, value);
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

}  // namespace

std::string ConversationBuilder::first_answer(const json& value) {
  if (value.is_array() && value.empty()) throw DataError("the list of answers is empty");
  if (value.is_array() && value.size() > 1) leave_out("answers after the first");
  return text_of(value.is_array() ? value.front() : value, "the answer");
}

bool ConversationBuilder::add_pictures(const FieldValue& value) {
  const SamplePart* const* part = std::get_if<const SamplePart*>(&value);
  if (pictures_.named() > 0)
    return part ? pictures_.is_same_list((*part)->name) : pictures_.is_same_list(std::get<json>(value));
  part ? pictures_.add_part(**part) : pictures_.add_list(std::get<json>(value));
  return true;
}

void ConversationBuilder::refuse_sound_and_video_parts() const {
  for (const SamplePart& part : sample_.parts)
    if (is_sound_or_video_part(part.name))
      throw DataError(
          fmt::format("its part {} is sound or video, which no encoder takes from a data set", in_quotes(part.name)));
}

void ConversationBuilder::leave_out_key(const std::string& key, const json& value) {
  const bool has_no_tools = key == "tools" && is_empty_value(value);
  if (!value.is_null() && !is_metadata_key(key) && !has_no_tools) leave_out(key);
}

void ConversationBuilder::add_turns(const json& turns) {
  if (!turns.is_array()) throw DataError("the conversation is not a list");
  for (const json& turn : turns) add_turn(turn);
}

void ConversationBuilder::add_turn(const json& turn) {
  if (!turn.is_object()) throw DataError("a turn of the conversation is not an object");
  const json* role = find_any(turn, {"role", "from", "sender"});
  const json* said = find_any(turn, {"content", "value", "text", "fragments"});
  const json* pictures = find_picture_list(turn);
  json fields = fields_of(turn, {role, said, pictures});
  if (!role || (!said && !(pictures && !is_empty_value(*pictures)) && !says_anything(fields)))
    throw DataError("a turn needs a role (role, from, sender) and a text (content, value, text)");
  const std::size_t named = pictures_.named();
  std::string text = !said ? "" : said->is_array() ? joined(*said) : text_of(*said, "a turn");
  if (pictures) text.insert(0, pictures_.add_turn_list(*pictures, named, text));
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

void ConversationBuilder::add_caption(std::string caption) {
  has_caption_ = true;
  add_answer("", std::move(caption));
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
  const std::size_t places = places_so_far();
  if (has_caption_ && pictures_.empty())
    throw DataError(fmt::format("its caption has no picture; {}", part_names(sample_)));
  conversation_.pictures = pictures_.finish(places);
  add_missing_tags(places);
  const auto is_picture = [&](const std::string& name) {
    return std::any_of(conversation_.pictures.begin(), conversation_.pictures.end(),
                       [&](const Picture& picture) { return picture.name == name; });
  };
  for (const SamplePart& part : sample_.parts)
    if (!contains(used_parts_, part.name) && !is_picture(part.name)) leave_out("part " + part.name);
  for (const std::string& name : sample_.replaced) leave_out(fmt::format("part {} before another {}", name, name));
  return std::move(conversation_);
}

std::size_t ConversationBuilder::places_so_far() const {
  std::size_t places = 0;
  for (const ChatTurn& turn : conversation_.turns) places += count_picture_tags(turn.text);
  return places;
}

void ConversationBuilder::add_missing_tags(std::size_t places) {
  for (const ChatTurn& turn : conversation_.turns)
    if (turn.role == "assistant" && count_picture_tags(turn.text) > 0) throw DataError("an answer has a picture");
  const std::size_t pictures = conversation_.pictures.size();
  if (places > pictures)
    throw DataError(fmt::format("its texts have {} times {}, but there {} {}", places, kPictureTag,
                                pictures == 1 ? "is" : "are", counted(static_cast<std::int64_t>(pictures), "picture")));
  for (ChatTurn& turn : conversation_.turns)
    if (turn.role == "user" || turn.role.empty()) {
      turn.text.insert(0, picture_tags(pictures - places));
      break;
    }
}

// Such a tag is the place of a video or a sound. An answer, a tool or a plain text may speak of HTML.
void ConversationBuilder::refuse_other_tags() const {
  for (const ChatTurn& turn : conversation_.turns)
    for (const char* tag : {"<video>", "<audio>"})
      if ((turn.role == "user" || turn.role == "system") && turn.text.find(tag) != turn.text.npos)
        throw DataError(fmt::format("its text has {}, but no encoder takes sound or video from a data set", tag));
}

// The text of a list of texts, and of objects with a text or a picture: {"type": "text", "text": ..}, {"t": "image",
// "value": ..}.
std::string ConversationBuilder::joined(const json& fragments) {
  std::string text;
  const std::size_t places = places_so_far();
  for (const json& fragment : fragments) {
    if (fragment.is_string()) {
      text += fragment.get<std::string>();
      continue;
    }
    if (!fragment.is_object()) throw DataError("a fragment of a turn is neither a text nor an object");
    const json* kind = find_any(fragment, {"type", "t"});
    const json* said = find_any(fragment, {"value", "text", "content"});
    const json* picture = find_picture_list(fragment);
    const std::string name = kind ? text_of(*kind, "the type of a fragment") : picture ? "image" : "text";
    const bool is_picture = name == "image" || name == "image_url";
    if (picture && said && (!is_picture || !kind) && !is_empty_value(*said))
      throw DataError("a fragment of a turn has both a text and a picture; make them two fragments");
    for (const auto& [key, value] : fragment.items()) {
      refuse_sound_or_video(key, value);
      if (&value != kind && &value != said && !is_picture && !is_empty_value(value) && !is_metadata_key(key))
        leave_out("fragment." + key);
    }
    if (is_picture) {
      pictures_.add_fragment(fragment, places + count_picture_tags(text));
      text += kPictureTag;
    } else if (name == "text" && said) {
      text += text_of(*said, "a fragment");
    } else {
      throw DataError(fmt::format("a fragment of a turn has the unknown type {}", in_quotes(name)));
    }
  }
  return text;
}

}  // namespace braid
