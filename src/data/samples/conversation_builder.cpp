#include "data/samples/conversation_builder.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/template_targets.h"

namespace braid {
namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

using json = nlohmann::ordered_json;  // chat templates write keys in the order of the file

std::string last_of_path(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Null if there are none or several.
template <class Condition>
const SamplePart* only_part(const Sample& sample, const Condition& condition) {
  const auto found = std::find_if(sample.parts.begin(), sample.parts.end(), condition);
  if (found == sample.parts.end() || std::any_of(found + 1, sample.parts.end(), condition)) return nullptr;
  return &*found;
}

// "img/0001.left.png" is part "left.png" of sample 0001. Otherwise the name is that of a file before it was packed,
// whose part may be called "png" only.
const SamplePart* part_named(const Sample& sample, const std::string& name) {
  const std::string file = last_of_path(name), rest = file.substr(file.find('.') + 1);
  for (const std::string& spelling : {name, file})
    if (const SamplePart* part = sample.find(spelling)) return part;
  const bool has_key = file.starts_with(last_of_path(sample.key) + "."), has_stem = rest.find('.') != rest.npos;
  if (const SamplePart* part = sample.find(rest); part && (has_key || has_stem)) return part;
  const std::string ending = last_extension(file);
  const SamplePart* part =
      only_part(sample, [&](const SamplePart& other) { return last_extension(other.name) == ending; });
  return part && part->name.find('.') == part->name.npos ? part : nullptr;
}

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

bool is_sound_or_video_key(std::string_view key) {
  return is_one_of(key, {"video", "videos", "video_path", "video_file", "audio", "audios", "audio_path", "audio_file",
                         "sound", "speech"});
}

void refuse_sound_or_video(const std::string& key, const json& value) {
  if (is_sound_or_video_key(key) && !is_empty_value(value))
    throw DataError(fmt::format("its {} is sound or video, which no encoder takes from a data set", in_quotes(key)));
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

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + word.size())) ++found;
  return found;
}

std::string tags(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += std::string(kPictureTag) + "\n";
  return text;
}

std::vector<std::string> picture_names(const json& names) {
  if (names.is_string()) return {names.get<std::string>()};
  if (!names.is_array()) throw DataError("the field of pictures is neither a part nor a list of names");
  std::vector<std::string> texts;
  for (const json& name : names) texts.push_back(text_of(name, "the name of a picture"));
  return texts;
}

// A picture in a format that Braid does not read.
bool is_unread_picture_part(std::string_view part) {
  return is_one_of(last_extension(part), {"gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jp2", "jxl", "ppm",
                                          "pgm", "svg", "ico", "apng", "jfif"});
}

bool is_sound_or_video_part(std::string_view part) {
  return is_one_of(last_extension(part),
                   {"wav", "mp3", "flac", "ogg", "opus", "m4a", "aac",  "wma", "aiff", "aif", "mp4",
                    "m4v", "mov", "avi",  "mkv", "webm", "mpg", "mpeg", "wmv", "flv",  "3gp", "ogv"});
}

}  // namespace

std::string last_extension(std::string_view part) {
  std::string extension(part.substr(part.rfind('.') == part.npos ? 0 : part.rfind('.') + 1));
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return extension;
}

bool is_picture_part(std::string_view part) { return is_one_of(last_extension(part), {"jpg", "jpeg", "png", "webp"}); }

bool is_metadata_key(std::string_view key) {
  return key.starts_with("__") ||
         is_one_of(key, {"id",      "_id",    "uid",      "uuid",        "key",          "sample_id", "image_id",
                         "index",   "idx",    "turn_id",  "message_id",  "url",          "urls",      "source",
                         "src",     "origin", "dataset",  "data_source", "dataset_name", "license",   "split",
                         "subset",  "task",   "category", "tags",        "language",     "lang",      "model",
                         "version", "date",   "created",  "created_at",  "timestamp",    "metadata",  "meta",
                         "width",   "height", "size",     "sha256",      "md5",          "hash"});
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

std::string ConversationBuilder::first_answer(const json& value) {
  if (value.is_array() && value.empty()) throw DataError("the list of answers is empty");
  if (value.is_array() && value.size() > 1) leave_out("answers after the first");
  return text_of(value.is_array() ? value.front() : value, "the answer");
}

void ConversationBuilder::add_pictures(const FieldValue& value) {
  if (const auto* part = std::get_if<const SamplePart*>(&value)) return add_part(**part);
  add_named_pictures(std::get<json>(value));
}

void ConversationBuilder::add_named_pictures(const json& names) { add_parts_named(picture_names(names)); }

// `names`: all that the sample has. One name and one picture belong together, whatever they are called.
void ConversationBuilder::add_parts_named(const std::vector<std::string>& names) {
  const bool is_one = std::all_of(names.begin(), names.end(), [&](const auto& name) { return name == names[0]; });
  const SamplePart* only =
      is_one ? only_part(sample_, [](const SamplePart& part) { return is_picture_part(part.name); }) : nullptr;
  std::map<const SamplePart*, std::string> name_of;
  for (const std::string& name : names) {
    const SamplePart* named = part_named(sample_, name);
    const SamplePart* part = named ? named : only;
    if (!part)
      throw DataError(fmt::format("there is no part {} for a picture; {}", in_quotes(name), part_names(sample_)));
    const std::string& first = name_of.emplace(part, name).first->second;
    if (first != name)
      throw DataError(fmt::format("its pictures {} and {} would both be its part {}; {}", in_quotes(first),
                                  in_quotes(name), in_quotes(part->name), part_names(sample_)));
    add_part(*part);
  }
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

void ConversationBuilder::refuse_sound_and_video_parts() const {
  for (const SamplePart& part : sample_.parts)
    if (is_sound_or_video_part(part.name))
      throw DataError(
          fmt::format("its part {} is sound or video, which no encoder takes from a data set", in_quotes(part.name)));
}

// An empty list of tools means that there are none.
void ConversationBuilder::leave_out_key(const std::string& key, const json& value) {
  if (value.is_null() || is_metadata_key(key) || (key == "tools" && is_empty_value(value))) return;
  refuse_sound_or_video(key, value);
  leave_out(key);
}

void ConversationBuilder::add_turns(const json& turns) {
  if (!turns.is_array()) throw DataError("the conversation is not a list");
  for (const json& turn : turns) add_turn(turn);
}

void ConversationBuilder::add_turn(const json& turn) {
  if (!turn.is_object()) throw DataError("a turn of the conversation is not an object");
  const json* role = find_any(turn, {"role", "from", "sender"});
  const json* said = find_any(turn, {"content", "value", "text", "fragments"});
  const json* pictures = find_any(turn, {"images", "image"});
  json fields = fields_of(turn, {role, said, pictures});
  const bool has_pictures = pictures && !is_empty_value(*pictures);
  if (!role || (!said && !has_pictures && !says_anything(fields)))
    throw DataError("a turn needs a role (role, from, sender) and a text (content, value, text)");
  const std::size_t named = fragment_names_.size();
  std::string text = !said ? "" : said->is_array() ? joined(*said) : text_of(*said, "a turn");
  if (has_pictures) text.insert(0, tags_of_turn(*pictures, named, text));
  say(role_of(text_of(*role, "a role")), std::move(text));
  ChatTurn& last = conversation_.turns.back();
  last.is_learned = is_learned(turn);
  if (fields.empty()) return;
  if (last.text.empty() && (said || turn.contains("content"))) fields["content"] = said ? json("") : json();
  last.fields = std::make_shared<const json>(std::move(fields));
}

// The places of the pictures that a turn lists, if its text does not have them. The fragments of its text begin with
// number `fragments` of all.
std::string ConversationBuilder::tags_of_turn(const json& pictures, std::size_t fragments, const std::string& text) {
  const std::vector<std::string> names = picture_names(pictures);
  if (fragment_names_.size() > fragments) {
    if (std::vector(fragment_names_.begin() + static_cast<std::ptrdiff_t>(fragments), fragment_names_.end()) != names)
      throw DataError("a turn lists other pictures than its fragments name");
    return "";
  }
  fragment_names_.insert(fragment_names_.end(), names.begin(), names.end());
  const std::size_t places = count(text, kPictureTag);
  if (places != 0 && places != names.size())
    throw DataError(fmt::format("a turn lists {}, but its text has {} times {}", counted(std::ssize(names), "picture"),
                                places, kPictureTag));
  return places == 0 ? tags(names.size()) : "";
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
  add_parts_named(fragment_names_);
  if (has_caption_ && !has_pictures())
    throw DataError(fmt::format("its caption has no picture; {}", part_names(sample_)));
  const std::int64_t pictures = std::ssize(conversation_.pictures);
  if (!identifier_.empty() && pictures > 1)
    throw DataError(
        fmt::format("a fragment names its picture by {} only; the names of parts are needed, since it has "
                    "{}",
                    in_quotes(identifier_), counted(pictures, "picture")));
  add_missing_tags();
  for (const SamplePart& part : sample_.parts)
    if (!contains(used_parts_, part.name)) leave_out("part " + part.name);
  for (const std::string& name : sample_.replaced) leave_out(fmt::format("part {} before another {}", name, name));
  return std::move(conversation_);
}

void ConversationBuilder::add_missing_tags() {
  std::size_t places = 0;
  for (const ChatTurn& turn : conversation_.turns) {
    const std::size_t here = count(turn.text, kPictureTag);
    if (here > 0 && turn.role == "assistant") throw DataError("an answer has a picture");
    places += here;
  }
  const std::size_t pictures = conversation_.pictures.size();
  if (places > pictures)
    throw DataError(fmt::format("its texts have {} times {}, but there {} {}", places, kPictureTag,
                                pictures == 1 ? "is" : "are", counted(static_cast<std::int64_t>(pictures), "picture")));
  for (ChatTurn& turn : conversation_.turns)
    if (turn.role == "user" || turn.role.empty()) {
      turn.text.insert(0, tags(pictures - places));
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
    const std::string name = kind                            ? text_of(*kind, "the type of a fragment")
                             : find_any(fragment, {"image"}) ? "image"
                                                             : "text";
    const json* value = name == "image" ? find_any(fragment, {"image", "value", "url", "path", "src", "image_url",
                                                              "file", "file_name", "filename", "content"})
                                        : find_any(fragment, {"value", "text", "content"});
    for (const auto& [key, other] : fragment.items())
      if (&other != kind && &other != value && !is_empty_value(other) && !is_metadata_key(key))
        leave_out("fragment." + key);
    if (name == "text" && value) {
      text += text_of(*value, "a fragment");
    } else if (name == "image") {
      add_picture_fragment(fragment, value && *value != "" ? value : nullptr);
      text += kPictureTag;
    } else {
      throw DataError(fmt::format("a fragment of a turn has the unknown type {}", in_quotes(name)));
    }
  }
  return text;
}

// Fragments without a name have the sample's pictures in turn.
void ConversationBuilder::add_picture_fragment(const json& fragment, const json* name) {
  const int place = picture_fragments_++;
  if (name) return fragment_names_.push_back(text_of(*name, "the name of a picture"));
  if (const json* index = find_any(fragment, {"index", "idx"}); index && *index != place)
    throw DataError(
        fmt::format("fragment {} of the pictures (from 0) has the index {}; fragments need the names of "
                    "their parts or the order of the pictures",
                    place, index->is_primitive() ? index->dump() : index->type_name()));
  for (const char* key : {"id", "_id", "image_id", "key", "uid", "uuid", "sha256", "md5", "hash"})
    if (find_any(fragment, {key})) identifier_ = key;
}

}  // namespace braid
